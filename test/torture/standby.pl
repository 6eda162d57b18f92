# Reading a standby for MINUTES cancels nothing, and a snapshot that is held costs few rows.
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
				  '-c', 4, '-T', $minutes * 60, 'postgres'
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

	foreach my $view (qw(stats status endpoints tenants workers metrics()))
	{
		my ($rc, undef, $err) = $standby->psql('postgres', "SELECT count(*) FROM outbox.$view");
		next if $view eq 'tenants' && $err =~ /does not exist/;
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
ok(wait_sql($_, 'SELECT sum(pending + processing) = 0 FROM outbox.stats'), 'everything is delivered: ' . $_->name)
  foreach $held, $primary;
diag(sprintf '%d minutes: %d reads of the standby, the slowest round %.1f s; at most %d positions, %.1f MB now; those of the primary: %s',
	$minutes, $reads, $slowest, $most,
	$held->safe_psql('postgres', "SELECT sum(pg_total_relation_size(oid)) / 1048576 FROM pg_class WHERE relname IN ('positions_0', 'positions_1')"),
	$primary->safe_psql('postgres', 'SELECT count(*) FROM outbox.positions'));
# It ends with its server: the patience of a session's queries may be over by now.
$_->stop foreach $standby, $primary, $held;
eval { $snapshot->quit };
done_testing();
