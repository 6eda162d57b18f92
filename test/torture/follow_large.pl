# A large transaction, or a follower that was away under load, loses no event and changes no order.
# EVENTS are in the one transaction (default 200,000).  The follower is away for AWAY seconds (20), while
# RATE transactions a second are asked for (500).
use strict;
use warnings;

use IPC::Run qw(start);
use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my ($events, $away, $rate) = ($ENV{EVENTS} || 200_000, $ENV{AWAY} || 20, $ENV{RATE} || 500);
my $longest = 600 + 2 * $away + $events / 500;
alarm $longest;

my $servers = OutboxTest::Followed->new(source => "max_wal_size = 4GB\n", follower => "max_wal_size = 4GB\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

sub ask { return $servers->ask(@_) }
sub told { my ($what, $begun) = @_; return diag(sprintf '%s: %.1f s', $what, time - $begun) }

# By its index: to count them all would take what is measured.
sub arrives
{
	my ($id) = @_;
	return wait_until { ask("SELECT count(*) FROM outbox.all_events WHERE id = '$id'") } 'the last one', $longest;
}

endpoint($follower, $receiver, 'small', '/ok/small', "topics => '{small.*}'");
$servers->follow;
wait_until { ask('SELECT outbox.keep_sources()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'it streams';

# --- One transaction.  While it is open, others pass it

my $begun = time;
my $open = $source->background_psql('shop', on_error_stop => 1);
$open->query_safe("SET ROLE shop_app; BEGIN; SELECT count(outbox.emit('large.n', jsonb_build_object('n', i), key => 'k' || i % 1000)) FROM generate_series(1, $events) i");
told("$events events are emitted", $begun);
my @small = $servers->at_source("SELECT outbox.emit('small.n', '{}')", 'shop_app');
$receiver->wait_delivered(1, path => '/ok/small', id => $small[0]);
pass('while it is open, the event of another is delivered');
$begun = time;
$open->query_safe('COMMIT');
$open->quit;
push @small, $servers->at_source("SELECT outbox.emit('small.n', '{}')", 'shop_app');
arrives($small[1]);
my $seconds = time - $begun;
diag(sprintf '%d events of one transaction were taken %.1f s after its commit, %.0f/s', $events, $seconds, $events / $seconds);
my $memory = private_memory(ask('SELECT pid FROM pg_stat_subscription'));
diag(sprintf 'the process that takes them has %.1f MB', $memory);
cmp_ok($memory, '<', 64, 'its memory does not grow with the transaction');
wait_until { scalar(() = $receiver->delivered(path => '/ok/small', id => $small[1])) } 'the next transaction', $longest;
told('the event behind it was delivered after', $begun);
is(ask("SELECT count(*) || ' ' || count(DISTINCT id) || ' ' || count(*) FILTER (WHERE n <> place) FROM (SELECT id, (payload ->> 'n')::int8 AS n, row_number() OVER (ORDER BY seq) AS place"
	  . " FROM outbox.all_events WHERE topic = 'large.n') s"), "$events $events 0", 'each is once in the log, in the order of the emits');

# --- The follower is away, and the source is not

$servers->provider('CREATE TABLE ledger (k int, n int, id uuid, PRIMARY KEY (k, n))');
my $script = "$PostgreSQL::Test::Utils::tmp_check/away.sql";
append_to_file($script, <<'SQL');
\set k random(1, 100)
BEGIN;
SELECT pg_advisory_xact_lock(:k);
INSERT INTO ledger SELECT :k, l.n, outbox.emit('away.n', jsonb_build_object('k', :k, 'n', l.n), key => :k)
FROM (SELECT COALESCE(max(n), 0) + 1 AS n FROM ledger WHERE k = :k) l;
COMMIT;
SQL
$follower->stop;
my $load = start [ 'pgbench', '-n', '-T', $away, '-c', 4, '-R', $rate, '-f', $script, $source->connstr('shop') ], '>', "$script.log", '2>&1';
$load->finish or die slurp_file("$script.log");
my $emitted = $servers->provider('SELECT count(*) FROM ledger');
diag("while it was away for $away s, $emitted transactions were committed; the slot retains "
	  . $servers->provider('SELECT pg_size_pretty(pg_current_wal_lsn() - restart_lsn) FROM pg_replication_slots'));
push @small, $servers->at_source("SELECT outbox.emit('small.n', '{}')", 'shop_app');
$begun = time;
$follower->start;
arrives($small[2]);
$seconds = time - $begun;
diag(sprintf 'they were taken %.1f s after its start, %.0f/s', $seconds, $emitted / $seconds);
my %log = map { $_ => 1 } split /\n/, ask("SELECT id FROM outbox.all_events WHERE topic = 'away.n'");
is(scalar(grep { !$log{$_} } split /\n/, $servers->provider('SELECT id FROM ledger')), 0, 'none is lost');
is(ask("SELECT count(*) || ' ' || count(*) FILTER (WHERE n <> place) FROM (SELECT (payload ->> 'n')::int8 AS n, row_number() OVER (PARTITION BY key ORDER BY seq) AS place"
	  . " FROM outbox.all_events WHERE topic = 'away.n') s"), "$emitted 0", 'each is once in the log, in the order of its key');
ok((wait_until { ask('SELECT outbox.keep_sources()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'it streams'), 'it streams');
ask("UPDATE outbox.followed SET keep = '0'");
ok((wait_until { ask('SELECT outbox.keep_sources()'); $servers->at_source('SELECT count(*) FROM outbox.events') == 0 } 'emptied'), 'what was taken leaves the source');
is(ask('SELECT count(*) FROM outbox.refused_events'), 0, 'none is set aside');
done_testing();
