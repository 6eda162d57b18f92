# Each source has an exact count of the events that were taken from it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(source => "logical_decoding_work_mem = '64 kB'\n");
my ($source, $follower) = @$servers{qw(source follower)};

sub at { my ($db, $sql) = @_; return $source->safe_psql($db, $sql, extra_params => [ '-U', 'provided' ]) }
sub ask { return $servers->ask(@_) }
sub emits { my ($n) = @_; return "SELECT count(outbox.emit('order.n', '{}')) FROM generate_series(1, $n) i" }

sub follow
{
	my ($name) = @_;
	my $conninfo = $servers->{conninfo} =~ s/dbname='?shop'?/dbname=$name/r;

	return ask("SELECT outbox.follow('$name', " . OutboxTest::Followed::quoted($conninfo) . ')');
}

# So many, and one more that comes behind them
sub taken
{
	my ($name, $n, $said) = @_;
	my $here = at($name, "SELECT outbox.emit('order.last', '{}')");

	wait_until { ask("SELECT count(*) FROM outbox.all_events WHERE id = '$here'") } "$said: all of it is here";
	wait_until { ask("SELECT taken > $n FROM outbox.sources WHERE name = '$name'") eq 't' } "$said: and counted";
	return is(ask("SELECT s.taken, m.value FROM outbox.sources s, outbox.metrics() m WHERE s.name = '$name'"
			. " AND m.name = 'outbox_source_taken_total' AND m.labels ->> 'source' = s.name"), ($n + 1) . '|' . ($n + 1), $said);
}

$source->safe_psql('postgres', 'CREATE DATABASE market OWNER provided');
$source->safe_psql('market', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ]);
at('market', "SELECT outbox.grant_follow('outbox_follower')");

# A source lets an INSERT have the id that emit() has returned. The follower has one event of the two.
my $twice = "BEGIN; SELECT outbox.emit('order.twice', '{}') AS id \\gset\nINSERT INTO outbox.outgoing (id, topic, payload) VALUES (:'id', 'order.twice', '{}'); COMMIT";

# What a source has already is counted, too. What is set aside is not.
ask("ALTER SYSTEM SET outbox.max_payload_size = '1 kB'; SELECT pg_reload_conf()");
ok(wait_sql($follower, "SELECT current_setting('outbox.max_payload_size') = '1kB'"), 'the follower allows less than the source');
at('shop', emits(3) . "; SELECT outbox.emit('order.large', to_jsonb(repeat('x', 2000))); $twice");
follow($_) foreach qw(shop market);
is(ask("SELECT string_agg(concat(name, ' ', taken, ' ', refused), ', ' ORDER BY name) FROM outbox.sources"), 'market 0 0, shop 4 2', 'of what was there');

# Transactions of different sizes, some of which are undone
at('shop', emits(1) . '; BEGIN; ' . emits(7) . '; SAVEPOINT s; ' . emits(5) . '; ROLLBACK TO s; COMMIT; BEGIN; ' . emits(9) . '; ROLLBACK');
at('shop', "SELECT outbox.emit('order.large', to_jsonb(repeat('x', 2000))), outbox.emit('order.later', '{}', deliver_at => now() + interval '1 hour')");
at('shop', $twice);
at('market', emits($_)) foreach 4, 2500;
taken('shop', 14, 'of several transactions');
my $later = ask('SELECT id FROM outbox.scheduled');
at('market', "INSERT INTO outbox.scheduled (id, deliver_at, topic, payload) VALUES ('$later', now() + interval '1 hour', 'order.later', '{}')");
taken('market', 2504, 'of another source');
is(ask("SELECT string_agg(concat_ws(' ', source, event ->> 'topic'), ', ' ORDER BY refused_id) FROM outbox.refused_events WHERE error = 'another event has this id'"),
	'shop order.twice, shop order.twice, market order.later', 'an event whose id is taken is set aside, wherever it comes from');
is(ask('SELECT sum(apply_error_count) FROM pg_stat_subscription_stats'), 0, 'and is no error');

# One that is sent before it ends, by several processes where PostgreSQL has them
ask('ALTER SUBSCRIPTION outbox_shop SET (streaming = ' . ($follower->pg_version >= 16 ? 'parallel' : 'on') . ')');
at('shop', 'BEGIN; ' . emits(2000) . '; SAVEPOINT s; ' . emits(2000) . '; SAVEPOINT t; ' . emits(2000)
	. '; ROLLBACK TO s; ' . emits(10) . '; SAVEPOINT u; ' . emits(20) . '; RELEASE u; ' . emits(30) . '; COMMIT');
taken('shop', 15 + 2060, 'of a transaction that is streamed, a part of which is undone');

# An error in the middle: the transaction is applied once more.
my $before = ask("SELECT taken FROM outbox.sources WHERE name = 'shop'");
ask("CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS \$\$BEGIN RAISE 'not yet'; END\$\$;"
	. " CREATE TRIGGER fails BEFORE INSERT ON outbox.emitted FOR EACH ROW WHEN (NEW.topic = 'order.fails') EXECUTE FUNCTION fails();"
	. ' ALTER TABLE outbox.emitted ENABLE ALWAYS TRIGGER fails');
at('shop', 'BEGIN; ' . emits(600) . "; SELECT outbox.emit('order.fails', '{}'); " . emits(300) . '; COMMIT');
ok(wait_sql($follower, "SELECT apply_error_count > 1 FROM pg_stat_subscription_stats WHERE subname = 'outbox_shop'"), 'it fails, twice');
is(ask("SELECT taken FROM outbox.sources WHERE name = 'shop'"), $before, 'then nothing was taken');
ask('DROP FUNCTION fails CASCADE');
taken('shop', $before + 901, 'of a transaction that failed before');

# From when it counts, and who may see it
ask("SELECT outbox.unfollow('shop')");
at('shop', emits(2));
follow('shop');
taken('shop', 2, 'followed again: from then on');
ask("CREATE ROLE watcher LOGIN; SELECT outbox.grant_to('watcher', 'watch')");
is($follower->safe_psql('postgres', "SELECT taken FROM outbox.sources WHERE name = 'market'", extra_params => [ '-U', 'watcher' ]), 2505, 'a watcher sees it');
$follower->restart;
taken('market', 0, 'and from the start of the server on');
$follower->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$follower->restart;
is(ask('SELECT count(*), count(taken) FROM outbox.sources'), '2|0', 'without the library in all processes nothing is counted');
done_testing();
