# A copy of a follower takes no event of the original, and is followed anew.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(streaming => 1);
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};
my $dir = PostgreSQL::Test::Utils::tempdir();

sub ask { return $servers->ask(@_) }
sub slots { return $servers->provider("SELECT count(*) FROM pg_replication_slots") }

# Each event is in the log of the copy once.
sub has_all
{
	my ($node, $dbname, $name) = @_;
	my $told = $servers->{told};

	wait_until { $node->safe_psql($dbname, "SELECT count(*) FROM outbox.all_events WHERE id = '$told->[-1]'") } "$name: the last one";
	return is($node->safe_psql($dbname, 'SELECT string_agg(id::text, chr(32) ORDER BY seq) FROM outbox.all_events'), join(' ', @$told), "$name: it has each event once");
}

sub streams
{
	my ($name) = @_;
	return ok((wait_until { ask('SELECT outbox.keep_sources()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } $name), $name);
}

endpoint($follower, $receiver, 'all', '/ok/all');
$servers->announce(3);
$servers->follow;
$servers->announce(3);
$servers->all_are_taken('the original');
streams('it streams');
wait_settled($follower);

# --- A physical copy, which is held

$follower->backup('clone');
my $clone = PostgreSQL::Test::Cluster->new('clone');
$clone->init_from_backup($follower, 'clone');
$clone->append_conf('postgresql.conf', "outbox.instance_name = 'clone'\nmax_logical_replication_workers = 0\n");
$clone->start;
foreach my $sql ($servers->follow_sql, "SELECT outbox.unfollow('shop')")
{
	like(($clone->psql('postgres', "\\set VERBOSITY verbose\n$sql"))[2], qr/ERROR:  55000: .*in a copy.*^HINT: .*adopt/ms, "clone: refused: $sql");
}
$clone->safe_psql('postgres', 'ALTER SUBSCRIPTION outbox_shop DISABLE; ALTER SUBSCRIPTION outbox_shop SET (slot_name = NONE); DROP SUBSCRIPTION outbox_shop');
$clone->stop;
$servers->announce(2);
streams('clone: the original goes on');

# --- One that is not to send, restored while the original is away

my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($follower, 'clone');
$restored->append_conf('postgresql.conf', "outbox.enabled = off\nmax_logical_replication_workers = 0\nrestore_command = 'false'\n");
append_to_file($restored->data_dir . '/recovery.signal', '');
$follower->stop;
wait_until { $servers->provider('SELECT count(*) FROM pg_replication_slots WHERE active') == 0 } 'the original is away';
my $slot = 'SELECT (SELECT f::text FROM outbox.followers f), slot_name, confirmed_flush_lsn FROM pg_replication_slots';
my ($was, $now) = ($servers->provider($slot), $servers->provider('SELECT clock_timestamp()'));
$restored->start;
ok(wait_sql($restored, "SELECT state = 'disabled' AND EXISTS (SELECT FROM outbox.workers WHERE pid IS NOT NULL) FROM outbox.status"), 'restored: a worker runs');
nothing_arrives($receiver, 'restored: it sends nothing', 2);
is($restored->safe_psql('postgres', "SELECT asked_at < '$now' FROM outbox.followed"), 't', 'restored: it asks no source');
is($servers->provider($slot), $was, 'restored: the slot is that of the original');
$restored->stop;
$follower->start;
$servers->announce(2);
streams('restored: the original goes on');

# --- A database of which this one is the template

ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
wait_until { ask('SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL') == 0 } 'nothing receives';
wait_until { !$follower->psql('template1', 'CREATE DATABASE copy TEMPLATE postgres') } 'a copy';
ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
$servers->announce(2);
$follower->safe_psql('copy', "SELECT outbox.pause_endpoint('all'); SELECT outbox.adopt()");
is($follower->safe_psql('copy', 'SELECT count(*) FROM outbox.sources'), 0, 'template: the copy follows nothing');
streams('template: the original goes on');
$follower->safe_psql('copy', $servers->follow_sql);
is(slots(), 2, 'template: it is followed with a slot of its own');
$servers->announce(2);
has_all($follower, 'copy', 'template');
$follower->safe_psql('copy', "SELECT outbox.unfollow('shop')");
streams('template: the original goes on without it');
# From 17 on pg_upgrade refuses what such a copy has of the subscription in PostgreSQL's own tables.
$follower->safe_psql('postgres', 'DROP DATABASE copy WITH (FORCE)');

# --- A dump has the subscription, and not what outbox knows of it

my $other = outbox_node('other', extension => 0);
ask("INSERT INTO outbox.forgotten (tenant, snapshot, upto, requested_at, endpoints, complete_at, sources) VALUES ('gone', pg_current_snapshot(), 0, now(), 0, now(), '{former}')");
$follower->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $follower->connstr('postgres') ], 'pg_dump');
$other->command_ok([ 'pg_restore', '--exit-on-error', '-d', $other->connstr('postgres'), "$dir/dump" ], 'pg_restore');
$other->safe_psql('postgres', "SELECT outbox.pause_endpoint('all'); SELECT outbox.adopt()");
is($other->safe_psql('postgres', 'SELECT count(*) FROM outbox.forget_progress WHERE complete_at IS NOT NULL'), 1, 'dump: it waits for no source of the original to forget');
$servers->announce(2);
is($other->psql('postgres', $servers->follow_sql), 0, 'dump: it is followed');
is(slots(), 2, 'dump: with a slot of its own');
$servers->announce(2);
has_all($other, 'postgres', 'dump');
$other->safe_psql('postgres', "SELECT outbox.unfollow('shop')");
$other->stop;
streams('dump: the original goes on');

# --- pg_upgrade, to the same version

chomp(my $bindir = qx{${\ ($ENV{PG_CONFIG} || 'pg_config')} --bindir});
my $new = outbox_node('new', extension => 0, start => 0, conf => "wal_retrieve_retry_interval = '100 ms'\n");
wait_settled($follower);
$follower->stop;
$servers->announce(3);
chdir $dir or die "$dir: $!\n";
command_ok([ "$bindir/pg_upgrade", '--no-sync', '-b', $bindir, '-B', $bindir, '-d', $follower->data_dir, '-D', $new->data_dir,
		'-s', $new->host, '-p', $follower->port, '-P', $new->port ], 'pg_upgrade');
$servers->{follower} = $new;
$new->start;
ask('SELECT outbox.adopt()');
like(ask('SELECT state, reason FROM outbox.sources'), qr/^gone\|.*outbox\.follow\(\)/, 'pg_upgrade: outbox.follow() is asked for');
$servers->announce(3);
$servers->follow;
is(slots(), 1, 'pg_upgrade: no slot is left over');
$servers->announce(3);
$servers->all_are_taken('pg_upgrade');
is(ask('SELECT missed FROM outbox.sources'), 0, 'pg_upgrade: none is missed');
ask("UPDATE outbox.followed SET keep = '0'");
ok((wait_until { ask('SELECT outbox.keep_sources()'); $servers->at_source('SELECT count(*) FROM outbox.events') == 0 } 'emptied'), 'pg_upgrade: what was taken leaves the source');

# --- The subscription was dropped, so the slot cannot be

ask('ALTER SUBSCRIPTION outbox_shop DISABLE; ALTER SUBSCRIPTION outbox_shop SET (slot_name = NONE); DROP SUBSCRIPTION outbox_shop');
my (undef, undef, $said) = $new->psql('postgres', "SELECT outbox.unfollow('shop')");
like($said, qr/WARNING: .*slot "outbox_shop_\w+" may still retain WAL.*^HINT: .*pg_drop_replication_slot/ms, 'unfollow() names a slot that it cannot drop');
is(ask('SELECT count(*) FROM outbox.sources'), 0, 'and ends');
done_testing();
