# Reading a standby for MINUTES cancels nothing, and a snapshot that is held costs few rows.
# Without feedback, a transaction that has read views and is idle is not cancelled either.
# The default is 15 minutes.  20 endpoints get RATE (700) events a second while the snapshot is held.
use strict;
use warnings;

use OutboxTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $minutes = $ENV{MINUTES} || 15;
my $rate = $ENV{RATE} || 700;
alarm $minutes * 120 + 900;
$PostgreSQL::Test::Utils::timeout_default = $minutes * 60 + 600;

# The table is emptied every ten minutes at most, and 20 endpoints write less than 50 rows a second each.
my $rows_max = 20 * 50 * 600;
my $dir = PostgreSQL::Test::Utils::tempdir('standby');
my $n = 0;

# A server with 20 endpoints, to which pgbench emits.
sub loaded
{
	my ($name, $per_second) = @_;
	my $node = outbox_node($name, streaming => 1);
	my $receiver = OutboxTest::Receiver->new($name, brief => 1);

	endpoint($node, $receiver, "e$_", "/ok/e$_", "topics => '{load.n$_}'") foreach 1 .. 20;
	PostgreSQL::Test::Utils::append_to_file("$dir/$name.sql", <<'SQL');
\set k random(1, 20)
SELECT outbox.emit('load.n' || :k, '{}', key => ':k');
SQL
	return ($node, $receiver, sub {
			my $pid = fork // die "fork: $!";
			if ($pid == 0)
			{
				open(STDOUT, '>&', \*STDERR);
				exec 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-f', "$dir/$name.sql", '-R', $per_second,
				  '-c', 4, '-T', int($minutes * 60), 'postgres'
				  or POSIX::_exit(127);
			}
			push @OutboxTest::Receiver::started, $pid;
		});
}

my ($held, undef, $load_held) = loaded('held', $rate);
my ($primary, undef, $load_primary) = loaded('primary', $rate / 5);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby_feedback = on\nwal_receiver_status_interval = 1s\nmax_standby_streaming_delay = 1s\n");
$standby->start;
$primary->wait_for_catchup($standby);

my $snapshot = $held->background_psql('postgres');
$snapshot->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$snapshot->query_safe('SELECT count(*) FROM outbox.stats');
$_->() foreach $load_held, $load_primary;

my ($reads, $failed, $most, $slowest) = (0, 0, 0, 0);
my $until = time + $minutes * 60;
while (time < $until)
{
	my $begun = time;

	foreach my $view (qw(stats status endpoints workers metrics()))
	{
		my ($rc, undef, $err) = $standby->psql('postgres', "SELECT count(*) FROM outbox.$view");
		$reads++;
		$failed++ if $rc != 0;
		diag($err) if $rc != 0;
	}
	my $took = time - $begun;
	$slowest = $took if $took > $slowest;
	my $rows = $held->safe_psql('postgres', 'SELECT count(*) FROM outbox.positions');
	$most = $rows if $rows > $most;
	sleep 1 if time - $begun < 1;
}
cmp_ok($reads, '>', $minutes * 60, 'the views of a standby were read');
is($failed, 0, 'and no query was cancelled');
is($standby->safe_psql('postgres', 'SELECT sum(confl_tablespace + confl_lock + confl_snapshot + confl_bufferpin + confl_deadlock) FROM pg_stat_database_conflicts'),
	0, 'nor does the standby know of a conflict');
cmp_ok($most, '<', $rows_max, 'positions stay below ten minutes of rows while a snapshot is held');
# However slow the machine is: as long as deliveries go on, they are waited for.
foreach my $node ($held, $primary)
{
	my ($done, $was);
	my $delivered = -1;

	do
	{
		$was = $delivered;
		$done = wait_sql($node, 'SELECT sum(pending + processing) = 0 AND bool_and(pending_exact) FROM outbox.stats');
		$delivered = $node->safe_psql('postgres', 'SELECT sum(delivered) FROM outbox.stats');
	} until ($done || $delivered == $was);
	ok($done, 'everything is delivered: ' . $node->name)
	  or diag($node->safe_psql('postgres', 'SELECT row_to_json(s)::text FROM outbox.stats s UNION ALL SELECT row_to_json(w)::text FROM outbox.workers w'));
}
diag(sprintf '%d minutes: %d reads of the standby, the slowest round %.1f s; at most %d positions, %.1f MB now; those of the primary: %s',
	$minutes, $reads, $slowest, $most,
	$held->safe_psql('postgres', "SELECT sum(pg_total_relation_size(oid)) / 1048576 FROM pg_class WHERE relname IN ('positions_0', 'positions_1')"),
	$primary->safe_psql('postgres', 'SELECT count(*) FROM outbox.positions'));

# --- Without feedback, a transaction that has read views and is idle outlives routine work

$standby->append_conf('postgresql.conf', "hot_standby_feedback = off\nmax_standby_streaming_delay = 30s\n");
$standby->reload;
ok(wait_sql($primary, q{SELECT bool_and(backend_xmin IS NULL) FROM pg_stat_activity WHERE backend_type = 'walsender'}),
	'the primary does not know what is read');
my $conflicts = 'SELECT sum(confl_lock + confl_snapshot) FROM pg_stat_database_conflicts';
my ($idle, $locks) = map { $standby->background_psql('postgres', on_error_stop => 0) } 1 .. 2;
$_->query_safe('BEGIN') foreach $idle, $locks;
$idle->query_safe("SELECT count(*) FROM outbox.$_") foreach qw(stats status endpoints workers metrics());
$locks->query_safe('SELECT count(*) FROM outbox.positions');
my $pid = $locks->query_safe('SELECT pg_backend_pid()');

# A worker moves the rows once, and then not for ten minutes.  So each round has a new worker,
# and as many rows as two minutes of deliveries write.
my $begun = time;
my $piece = 'SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1';
my $moved = 0;
while ($moved < 3 || time - $begun < 45)
{
	my $was = $primary->safe_psql('postgres', $piece);

	$primary->safe_psql('postgres', <<'SQL');
INSERT INTO outbox.positions SELECT (SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1), -n, p.endpoint_id, p.shared, p.generation,
	p.read_tick, p.read, p.read_seq_low, p.reading_tick, p.reading, p.reading_seq_low, p.reading_seq_high, p.last_seq, p.pending, p.delivered,
	p.failed_attempts, p.settled_at, p.counters, p.failing_since, p.failing_told, p.state_since, p.probes
FROM (SELECT DISTINCT ON (endpoint_id) * FROM outbox.positions ORDER BY endpoint_id, number DESC) p, generate_series(1, 6000) n ON CONFLICT DO NOTHING
SQL
	replace_worker($primary);
	$primary->safe_psql('postgres', "SELECT outbox.emit('load.n' || n, '{}') FROM generate_series(1, 20) n");
	wait_sql($primary, "SELECT ($piece) <> $was") or last;
	$moved++;
}
cmp_ok($moved, '>=', 3, "the table of positions was emptied $moved times in " . int(time - $begun) . ' s');
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid"), 0, 'which ends a transaction that has a lock on it');
is($standby->safe_psql('postgres', $conflicts), 1, 'and no other');
is($idle->query_safe('SELECT count(*) FROM outbox.stats'), 20, 'so one that has read views goes on');
$idle->query_safe('COMMIT');
eval { $locks->quit };
# It ends with its server: the patience of a session's queries may be over by now.
$_->stop foreach $standby, $primary, $held;
eval { $snapshot->quit };
done_testing();
