# Events of a server without the library are delivered once and in order by one that follows it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(ready => 0, streaming => 1);
my ($source, $follower, $receiver, $conninfo) = @$servers{qw(source follower receiver conninfo)};

sub at_source { return $servers->at_source(@_) }
sub ask { return $servers->ask(@_) }
sub quoted { return OutboxTest::Followed::quoted(@_) }
sub follow { return $servers->follow_sql(@_) }

# --- What is missing is said, one thing after the other

sub refused
{
	my ($sql, $state, $said, $name) = @_;
	my (undef, undef, $err) = $follower->psql('postgres', "\\set VERBOSITY verbose\n$sql");

	like($err, qr/ERROR:\s+$state: .*$said/s, $name);
	like($err, qr/^HINT: /m, "$name: a hint");
	return;
}
refused(follow(), '(42501|28000|08006)', 'REPLICATION|replication', 'a role without the attribute');
$source->safe_psql('postgres', 'ALTER ROLE outbox_follower REPLICATION');
refused(follow(), '55000', 'no schema outbox of sql/source.sql', 'a server that has nothing');
is($servers->install, 0, 'its owner installs the source');
refused(follow(), '55000', 'grant_follow', 'a role without rights');
at_source("SELECT outbox.grant_emit('shop_app'); SELECT outbox.grant_follow('outbox_follower')");
refused("SELECT outbox.follow('shop', 'host=localhost password=x')", '22023', 'password', 'a password');
refused("SELECT outbox.follow('Shop', 'host=localhost')", '22023', 'invalid name', 'a name');
refused("SELECT outbox.follow('shop', " . quoted($follower->connstr('postgres')) . ')', '55000', 'this server', 'itself');
# A slot begins where no transaction is open.  (Without a bound this call waited as long as the transaction.)
my $open = $source->background_psql('shop', on_error_stop => 1);
my $pid = $open->query_safe('BEGIN; CREATE TEMP TABLE t (); SELECT pg_backend_pid()');
refused(follow("timeout => '0'"), '55P03', "process $pid", 'a transaction that stays open there');
$servers->provider('GRANT pg_read_all_stats TO outbox_follower');
my (undef, undef, $told) = $follower->psql('postgres', follow("timeout => '4 s'"));
like($told, qr/NOTICE: .* waits .*process $pid, .* since .*ERROR: /s, 'it is told while follow() waits');
$open->quit;
is(at_source('SELECT count(*) FROM pg_replication_slots'), 0, 'no slot is left there');

# --- From the source to the receiver

endpoint($follower, $receiver, 'billing', '/ok/billing', "topics => '{order.*}'");
my $earlier = at_source("SELECT outbox.emit('order.created', '{\"n\": 0}', key => 'c7', tenant => 'acme', headers => '{\"X-A\": \"b\"}')", 'shop_app');
# Several pages, and a transaction that begins before the others and ends after them
my $around = $source->background_psql('shop', on_error_stop => 1);
$around->query_safe("BEGIN; SELECT outbox.emit('copy.n', '0')");
at_source("SELECT count(outbox.emit('copy.n', to_jsonb(i))) FROM generate_series(@$_) i", 'shop_app') foreach [ '1, 2500' ], [ '2501, 4999' ];
$around->query_safe("SELECT outbox.emit('copy.n', '5000'); COMMIT");
$around->quit;
is(ask(follow()), 5002, 'what the source has already is taken over');
is(ask("SELECT count(*) || ' ' || count(*) FILTER (WHERE payload::text::int <> n) FROM (SELECT payload, row_number() OVER (ORDER BY seq) - 1 AS n FROM outbox.all_events WHERE topic = 'copy.n') e"),
	'5001 0', 'in its order');
my @ids = ($earlier);
$receiver->wait_delivered(1, id => $earlier);
sub announce { my ($n) = @_; return at_source("SELECT outbox.emit('order.created', '{\"n\": $n}', key => 'c7')", 'shop_app') }
push @ids, map { announce($_) } 1 .. 4;
at_source("BEGIN; SELECT outbox.emit('order.undone', '{}'); ROLLBACK", 'shop_app');
$receiver->wait_delivered(1, id => $_) foreach @ids;
is_deeply([ map { $_->{id} } $receiver->requests(path => '/ok/billing') ], \@ids, 'each is delivered under its id, in order, and what was rolled back is not');
is(ask("SELECT tenant || ' ' || headers::text || ' ' || key FROM outbox.all_events WHERE id = '$earlier'"), 'acme {"X-A": "b"} c7', 'with tenant, headers and key');
is(ask("SELECT created_at FROM outbox.all_events WHERE id = '$ids[1]'"), at_source("SELECT created_at FROM outbox.events WHERE id = '$ids[1]'"), 'and its time');
is(ask('SELECT s.state, t.reason FROM outbox.sources s, outbox.status t'), 'streaming|', 'the view says so');
ok(wait_sql($follower, 'SELECT answered_at IS NOT NULL FROM outbox.sources'), 'a process asks the source, without a call');
ask($OutboxTest::Followed::round);
is(ask('SELECT last_event_at FROM outbox.sources'), at_source('SELECT max(created_at) FROM outbox.events'), 'and learns when it emitted last');

# --- What outbox refuses is set aside, and the rest goes on

ask("ALTER SYSTEM SET outbox.max_payload_size = '1 kB'");
$follower->reload;
ok(wait_sql($follower, "SELECT current_setting('outbox.max_payload_size') = '1kB'"), 'the follower allows less than the source');
ask("SELECT pg_terminate_backend(pid) FROM pg_stat_subscription");
at_source("BEGIN; SELECT outbox.emit('order.large', to_jsonb(repeat('x', 2000))); SELECT outbox.emit('order.beside', '{}'); COMMIT", 'shop_app');
push @ids, announce(5);
$receiver->wait_delivered(1, id => $ids[-1]);
is(ask("SELECT source || ' ' || (event ->> 'topic') FROM outbox.refused_events WHERE error ~ 'too large'"), 'shop order.large', 'set aside, with the reason');
is(ask("SELECT count(*) FROM outbox.set_aside WHERE error ~ 'too large'"), 1, 'outbox.set_aside has it');
is(ask("SELECT count(*) FROM outbox.all_events WHERE topic = 'order.beside'"), 1, 'the good event of the same transaction is taken');

# --- An error that says nothing about an event sets none aside

ask("SELECT outbox.set_event_type('order.listed'); ALTER DATABASE postgres SET outbox.require_event_types = on; ALTER DATABASE postgres SET lock_timeout = '100 ms'");
my $refused = ask('SELECT count(*) FROM outbox.refused_events');
my $locks = $follower->background_psql('postgres', on_error_stop => 1);
$locks->query_safe('SET lock_timeout = 0; BEGIN; LOCK TABLE outbox.event_types');
my $errors = ask('SELECT sum(apply_error_count) FROM pg_stat_subscription_stats');
ask('SELECT pg_terminate_backend(pid) FROM pg_stat_subscription');
my $listed = at_source("SELECT outbox.emit('order.listed', '{}')", 'shop_app');
ok(wait_sql($follower, "SELECT sum(apply_error_count) > $errors OR (SELECT count(*) > $refused FROM outbox.refused_events) FROM pg_stat_subscription_stats"), 'a table that the check needs is locked');
$locks->quit;
$receiver->wait_delivered(1, id => $listed);
is(ask('SELECT count(*) FROM outbox.refused_events'), $refused, 'the event is taken when it is free');
ask('ALTER DATABASE postgres RESET ALL; SELECT pg_terminate_backend(pid) FROM pg_stat_subscription');

# --- While the follower is away, the source goes on

$follower->stop('immediate');
push @ids, map { announce($_) } 6 .. 10;
my $later = at_source("SELECT outbox.emit('order.later', '{}', deliver_at => clock_timestamp() + interval '1 hour')", 'shop_app');
$follower->start;
$receiver->wait_delivered(1, id => $_) foreach @ids;
ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.scheduled WHERE id = '$later'"), 'what is to be delivered later waits here');
# --- The source's table does not grow

my $inserted = at_source("INSERT INTO outbox.outgoing (topic, payload) VALUES ('order.inserted', '{}') RETURNING id", 'shop_app');
$receiver->wait_delivered(1, id => $inserted);
# Other consumers of the source have such a publication.
$servers->provider('CREATE PUBLICATION every FOR ALL TABLES');
ask("UPDATE outbox.followed SET keep = '0'");
wait_until { ask('SELECT outbox.keep_sources()'); at_source('SELECT count(*) FROM outbox.events') == 0 } 'what was taken leaves the source';
ok(wait_sql($follower, "SELECT behind >= 0 AND retained >= 0 AND reason IS NULL FROM outbox.sources"), 'and the view says how far behind it is');
$servers->provider('DROP PUBLICATION every');
my $rounds = ask('SELECT round FROM outbox.followed');
at_source('ALTER FUNCTION outbox.tidy(interval) RENAME TO untidy');
ask($OutboxTest::Followed::round);
is(ask("SELECT round > $rounds FROM outbox.followed"), 't', 'a source that cannot be emptied knows each round');
like(ask('SELECT reason FROM outbox.sources'), qr/tidy/, 'and the view says why');
at_source('ALTER FUNCTION outbox.untidy(interval) RENAME TO tidy');
# Nothing of it is taken while a session has this lock.
my $lock = $follower->background_psql('postgres', on_error_stop => 1);
$lock->query_safe('BEGIN; LOCK TABLE outbox.emitted IN EXCLUSIVE MODE');
push @ids, announce(11);
ok((wait_until { ask('SELECT outbox.keep_sources()'); ask("SELECT state = 'behind' AND late_since < now() AND behind > 0 FROM outbox.sources") eq 't' } 'behind'), 'a follower that is behind is seen');
is(ask("SELECT string_agg(name || '=' || (value > 0), ' ' ORDER BY name) FROM outbox.metrics() WHERE labels ->> 'source' = 'shop' AND name ~ 'streaming|behind_seconds'"), 'outbox_source_behind_seconds=true outbox_source_streaming=true', 'also in the figures');
$lock->query_safe('COMMIT');
$lock->quit;
$receiver->wait_delivered(1, id => $ids[-1]);
# A transaction sees the piece that was open when it began.
ask("UPDATE outbox.followed SET keep = '1 day'");
foreach my $way ("SELECT outbox.emit('order.late', '{}')", "INSERT INTO outbox.outgoing (topic, payload) VALUES ('order.late', '{}') RETURNING id")
{
	my $old = $source->background_psql('shop', on_error_stop => 1);
	my $piece = $old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox.current_piece()');
	wait_until { ask('SELECT outbox.keep_sources()'); at_source("SELECT outbox.tidy('0')"); at_source('SELECT outbox.current_piece()') != $piece } 'another piece is opened';
	wait_until
	{
		at_source("SELECT outbox.tidy(), outbox.emit('order.more', '{}')");
		ask('SELECT outbox.keep_sources()');
		at_source("SELECT count(*) FROM outbox.pieces p, outbox.followers f, pg_replication_slots s WHERE p.piece + 10 = $piece AND p.done_lsn <= LEAST(f.taken, s.confirmed_flush_lsn)")
	}
	'the follower has taken it';
	ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
	wait_until { at_source('SELECT count(*) FROM pg_replication_slots WHERE active') == 0 } 'it is disabled';
	my $late = $old->query_safe($way);
	$old->query_safe('COMMIT');
	$old->quit;
	at_source("UPDATE outbox.pieces SET closed_at = closed_at - interval '2 days'; SELECT outbox.tidy()");
	is(at_source("SELECT piece % 10 + 10 FROM outbox.events WHERE id = '$late'"), $piece, "$way: written late, it stays until it is taken");
	ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
	$receiver->wait_delivered(1, id => $late);
}

# --- Old deduplication keys leave the source, and the others are not read

my $make_keys = "INSERT INTO outbox.dedup SELECT 'order.old', i::text, '', gen_random_uuid(), now()";
at_source("$make_keys FROM generate_series(11, 100000) i; ANALYZE outbox.dedup");
my $read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'outbox.dedup'::regclass";
cmp_ok((split /\n/, at_source("BEGIN; LOCK TABLE outbox.pieces IN SHARE UPDATE EXCLUSIVE MODE; SELECT outbox.tidy(); $read; ROLLBACK"))[-1], '<', 1000, 'a call reads few keys');
my ($pause, $has_one) = map { $source->background_psql('shop', on_error_stop => 1) } 1, 2;
$pause->query_safe('BEGIN; LOCK TABLE outbox.pieces IN SHARE UPDATE EXCLUSIVE MODE');    # a call does nothing
at_source("$make_keys - interval '2 days' FROM generate_series(1, 10) i");
$has_one->query_safe("BEGIN; UPDATE outbox.dedup SET created_at = created_at WHERE dedup_key = '1'");
$pause->quit;
my $old_keys = "SELECT string_agg(dedup_key, ' ') FROM outbox.dedup WHERE created_at < now() - interval '1 day'";
ok((wait_until { at_source('SELECT outbox.tidy()'); at_source($old_keys) eq '1' } 'gone'), 'they go, but for one that a transaction has locked');
$has_one->quit;
ok((wait_until { at_source('SELECT outbox.tidy()'); at_source($old_keys) eq '' } 'gone'), 'which goes later');

# --- One of both is updated before the other

at_source("CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text LANGUAGE sql IMMUTABLE AS \$\$SELECT '2.0'\$\$");
ask($OutboxTest::Followed::round);
like(ask("SELECT state || ': ' || reason FROM outbox.sources"), qr/^version_differs: .* version 2\.0, .* knows 1\.0/, 'a source of another version');
like(($follower->psql('postgres', follow()))[2], qr/has version 2\.0, and this server knows 1\.0/, 'and follow() says the same');
at_source("CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text LANGUAGE sql IMMUTABLE AS \$\$SELECT '1.0'\$\$");
ok((wait_until { ask('SELECT outbox.keep_sources()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'streaming'), 'they are the same again');

# --- Ending it, and following again: nothing twice in the log

ask("SELECT outbox.unfollow('shop')");
is(at_source('SELECT count(*) FROM pg_replication_slots'), 0, 'the slot is gone');
push @ids, announce(12);
ask(follow());
push @ids, announce(13);
$receiver->wait_delivered(1, id => $_) foreach @ids;
is(ask("SELECT string_agg(payload ->> 'n', ' ' ORDER BY seq) FROM outbox.all_events WHERE topic = 'order.created'"),
	join(' ', 0 .. 13), 'each became one event, in order');

# --- A slot that is lost: what the source still has is taken again, and nothing twice

ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
wait_until { at_source('SELECT count(*) FROM pg_replication_slots WHERE active') == 0 } 'it is disabled';
is(ask("SELECT state || ': ' || reason FROM outbox.sources"), 'disabled: subscription outbox_shop is disabled', 'the view says so');
$source->safe_psql('shop', 'SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots');
push @ids, announce(14);
ask($OutboxTest::Followed::round);
is(ask('SELECT state FROM outbox.sources'), 'slot_lost', 'a slot that is gone is seen');
is(ask('SELECT state, reason FROM outbox.status'), 'running|not streaming: source shop (slot_lost); see outbox.sources', 'also in the status');
# It waits for a transaction of the source, and then reads.
$open = $source->background_psql('shop', on_error_stop => 1);
$open->query_safe('BEGIN; CREATE TEMP TABLE t ()');
my $call = IPC::Run::start([ 'psql', '-Xqd', $follower->connstr('postgres'), '-c', follow() ], '>', '/dev/null', '2>&1');
# In older minor releases, DROP SUBSCRIPTION locks the catalog until the transaction ends.
wait_sql($follower, q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'pg_subscription'::regclass AND mode ~ 'RowExclusive|AccessExclusive'});
if (ask(q{SELECT count(*) FROM pg_locks WHERE relation = 'pg_subscription'::regclass AND mode = 'AccessExclusiveLock'}))
{
	diag('NOT TESTED, that others see that it is copied: this PostgreSQL locks pg_subscription');
}
else { ok(wait_sql($follower, "SELECT state = 'copying' FROM outbox.sources"), 'others see that it is copied') }
$open->query_safe('COMMIT');
$open->quit;
ok($call->finish, 'and then it is');
push @ids, announce(15);
$receiver->wait_delivered(1, id => $_) foreach @ids;
is(ask("SELECT string_agg(payload ->> 'n', ' ' ORDER BY seq) FROM outbox.all_events WHERE topic = 'order.created'"),
	join(' ', 0 .. 15), 'nothing is lost, and nothing is twice in the log');

# --- What a watcher sees, and an operator may do

ask("CREATE ROLE watcher LOGIN; SELECT outbox.grant_to('watcher', 'watch')");
wait_until { ask('SELECT outbox.keep_sources()'); ask('SELECT late_since IS NULL AND behind IS NOT NULL FROM outbox.sources') eq 't' } 'it is asked';
is(ask("SELECT string_agg(name || '=' || value, ' ' ORDER BY name) FROM outbox.metrics() WHERE labels ->> 'source' = 'shop' AND name ~ 'streaming|lost'"), 'outbox_source_lost=0 outbox_source_streaming=1', 'the figures have it');
is(ask("SELECT count(*) FROM outbox.metrics() WHERE labels ->> 'source' = 'shop' AND name ~ 'behind_bytes|retained|answered' AND value >= 0"), 3, 'with how much is behind and retained');
ask("CREATE ROLE oncall LOGIN; SELECT outbox.grant_to('oncall', 'operate')");
is($follower->safe_psql('postgres', 'SELECT state FROM outbox.sources', extra_params => [ '-U', 'watcher' ]), 'streaming', 'a watcher sees the state');
my $services = $follower->data_dir . '/pg_service.conf';
append_to_file($services, "[shop]\n" . join("\n", map { s/'//gr } $conninfo =~ /(\w+=\S+)/g) . "\n");
{
	local $ENV{PGSERVICEFILE} = $services;
	$follower->restart;
}
my $as = sub { my (undef, $out, $err) = $follower->psql('postgres', "\\set VERBOSITY verbose\n$_[0]", extra_params => [ '-U', $_[1] ]); return $out . ($err =~ /ERROR:  (\w+)/ ? $1 : '') };
is($as->("SELECT outbox.unfollow('shop')", 'watcher'), '42501', 'and may not end it');
is($as->("SELECT outbox.unfollow('shop')", 'oncall'), '', 'an operator may');
is($as->(follow(), 'oncall'), '42501', 'and does not name an address');
# Nor in code of its own that PostgreSQL runs in the session of a superuser
my $asks = follow() =~ s/^SELECT/PERFORM/r;
ask('CREATE SCHEMA mine AUTHORIZATION oncall; CREATE TABLE public.parent (n int PRIMARY KEY); INSERT INTO public.parent VALUES (1); GRANT REFERENCES ON public.parent TO oncall');
is($as->(<<"SQL", 'oncall'), '', 'an operator has a table');
CREATE FUNCTION mine.asks(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$ BEGIN IF session_user <> 'oncall' THEN $asks; END IF; RETURN \$1; END \$\$;
CREATE FUNCTION mine.asks() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM mine.asks(1); RETURN OLD; END \$\$;
CREATE TABLE mine.t (n int REFERENCES public.parent ON DELETE CASCADE);
INSERT INTO mine.t VALUES (1);
CREATE INDEX ON mine.t (mine.asks(n));
CREATE TRIGGER asks BEFORE DELETE ON mine.t FOR EACH ROW EXECUTE FUNCTION mine.asks();
SQL
is($as->($_, 'postgres'), '42501', "nor by $_ of another") foreach 'ANALYZE mine.t', 'REINDEX TABLE mine.t', 'DELETE FROM public.parent';
is(ask('SELECT count(*) FROM outbox.followed'), 0, 'nothing is followed by that');
like($as->("SELECT outbox.follow('shop', 'service=shop')", 'oncall'), qr/^\d+$/, 'but a service that the administrator has named');
push @ids, announce(16);
$receiver->wait_delivered(1, id => $ids[-1]);

# --- Two followers, each with a share, and a follower of two sources

is(join(' ', split /\n/, at_source('SELECT outbox.divide(2)')), 'outbox_1_of_2 outbox_2_of_2', 'a source is divided');
ask("SELECT outbox.unfollow('shop')");
$follower->safe_psql('postgres', 'CREATE DATABASE half');
$follower->safe_psql('half', 'CREATE EXTENSION outbox');
my $some = "SELECT count(outbox.emit('share.n', '{}', key => CASE WHEN i <= 40 THEN 'k' || i % 20 END, tenant => CASE WHEN i > 60 THEN 't' || i % 10 END)) FROM generate_series(1, 100) i";
at_source($some, 'shop_app');
ask(follow("publication => 'outbox_1_of_2'"));
$follower->safe_psql('half', follow("publication => 'outbox_2_of_2'"));
ok(wait_sql($follower, 'SELECT answered_at IS NOT NULL FROM outbox.sources', 't', 'half'), 'it is looked after in a database without an endpoint, too');
at_source($some, 'shop_app');
sub shares
{
	return map { my $db = $_; [ split /\n/, $follower->safe_psql($db, "SELECT $_[0] FROM outbox.all_events WHERE topic = 'share.n'") ] } 'postgres', 'half';
}
wait_until { my ($one, $other) = shares('id'); @$one + @$other == 200 } 'both halves arrive';
my ($one, $other) = shares("DISTINCT COALESCE(tenant, key)");
my %in_one = map { $_ => 1 } grep { $_ ne '' } @$one;
is(scalar(grep { $in_one{$_} } @$other), 0, 'each key, and each tenant, is in one half');
cmp_ok(@$_, '>', 5, 'and each half has some') foreach $one, $other;

$source->safe_psql('postgres', 'CREATE DATABASE market OWNER provided');
$source->safe_psql('market', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ]);
$source->safe_psql('market', "SELECT outbox.grant_follow('outbox_follower')", extra_params => [ '-U', 'provided' ]);
my $before = $source->safe_psql('market', "SELECT outbox.emit('order.market', '{}')", extra_params => [ '-U', 'provided' ]);
ask("SELECT outbox.follow('market', " . quoted($conninfo =~ s/dbname='?shop'?/dbname=market/r) . ')');
my @market = ($before, $source->safe_psql('market', "SELECT outbox.emit('order.market', '{}')", extra_params => [ '-U', 'provided' ]));
$receiver->wait_delivered(1, id => $_) foreach @market;
is(ask("SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM outbox.sources"), 'market streaming, shop streaming', 'a follower has two sources');
ask("SELECT outbox.unfollow(name) FROM outbox.sources");
$follower->safe_psql('half', "SELECT outbox.unfollow('shop')");
is(at_source('SELECT count(*) FROM pg_replication_slots'), 0, 'and ends both');
done_testing();
