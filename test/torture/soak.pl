# Under a steady load for MINUTES, memory, files, sizes, throughput and latency do not grow.
# The default is 30 minutes: 800 events a second (RATE), of which 5 % fail at first, while
# a REPEATABLE READ transaction is held from the beginning to the end.  The last sixth of
# the time must look like the first.  Prints both, and slopes.
use strict;
use warnings;
no warnings 'portable';    # hex() of 48 bits

use List::Util qw(max);
use OutboxTest;
use OutboxTest::Trend qw(first_and_last);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $minutes = $ENV{MINUTES} || 30;
my $rate = $ENV{RATE} || 800;
my $sample_every = $minutes >= 10 ? 15 : $minutes * 1.5;
alarm $minutes * 60 + 300;

# The retention ends within the first sixth, so that each piece of the log has been
# emptied once when the comparison begins.
my $kept = max(1, int($minutes * 60 / 12));
my $node = outbox_node(
	'main', conf => <<CONF);
outbox.retention = ${kept}s
outbox.attempts_retention = ${kept}s
autovacuum_naptime = 10s
fsync = on
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
endpoint($node, $receiver, 'steady', '/fail/steady?rate=0.05',
	"backoff_base => '50 ms', backoff_max => '1 s'");

# The journal's news, and the file emptied: it is opened to append.  Latency is
# from the emit, whose time (ms) the id begins with, to the first request.
my (@latencies, $requests, $delivered);

sub read_journal
{
	@latencies = ();
	($requests, $delivered) = (0, 0);
	open(my $fh, '+<', $receiver->{journal}) or die "journal: $!";
	while (my $line = <$fh>)
	{
		next unless $line =~ /"wall": ([0-9.]+).*"status": (\d+), "id": "(\w{8})-(\w{4}).*"seen": (\d+)/;
		$requests++;
		$delivered++ if $2 == 200;
		push @latencies, $1 * 1000 - hex("$3$4") if $5 == 1;
	}
	truncate $fh, 0;
	close $fh;
	@latencies = sort { $a <=> $b } @latencies;
	return;
}

sub percentile
{
	my ($p) = @_;
	return @latencies ? $latencies[ $p * $#latencies ] : 0;
}

# Processor time of a process, ms
sub cpu
{
	my ($pid) = @_;
	my @stat = split / /, PostgreSQL::Test::Utils::slurp_file("/proc/$pid/stat") =~ s/.*\) //r;
	return ($stat[11] + $stat[12]) * 1000 / POSIX::sysconf(&POSIX::_SC_CLK_TCK);
}

my $size = sub {
	my ($tables) = @_;
	return ask("SELECT round(sum(pg_total_relation_size(c.oid)) / 1048576.0, 2) FROM pg_class c"
		  . " WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relname ~ '^($tables)'");
};

# The transaction: its snapshot is held while it sleeps.
my $holder = fork // die "fork: $!";
if ($holder == 0)
{
	exec 'psql', '-Xq', '-d', $node->connstr('postgres'), '-c',
	  'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_sleep(1000000)' or POSIX::_exit(127);
}
push @OutboxTest::Receiver::started, $holder;
my $held = "SELECT backend_xmin FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1000000)' AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()";
my $xmin = wait_until { ask($held) } 'a transaction with a snapshot';
my $producer = start_producer(
	$node, PostgreSQL::Test::Utils::tempdir() . '/producer',
	seconds => $minutes * 60,
	rate => $rate,
	sessions => 4,
	keys => 200,
	rollback => 0.02);
my $worker = worker_pid($node);
my $start = time;
my @samples;

# A moment to get going
usleep($sample_every * 1_000_000);
read_journal();
while (time - $start < $minutes * 60)
{
	my ($since, $spent) = (time, cpu($worker));

	usleep($sample_every * 1_000_000);
	read_journal();
	my %s = (
		minute => (time - $start) / 60,
		'deliveries per second' => $delivered / (time - $since),
		'CPU ms per request' => (cpu($worker) - $spent) / ($requests || 1),
		'p50 ms' => percentile(0.5),
		'p95 ms' => percentile(0.95),
		'p99 ms' => percentile(0.99),
		'RssAnon MB' => private_memory($worker),
		'open files' => scalar(() = glob "/proc/$worker/fd/*"),
		'events MB' => $size->('events_|ticks_'),
		'positions MB' => $size->('positions_'),
		'attempts MB' => $size->('attempt_'),
		'parked MB' => $size->('parked'));
	push @samples, \%s;
	note(join ', ', map { sprintf '%s %.2f', $_, $s{$_} } sort keys %s);
}
is(worker_pid($node), $worker, 'the same worker from the beginning to the end');
stop_producer($producer);
is(ask($held), $xmin, 'the transaction was held all the time');
ask('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE \'%pg_sleep(1000000)\' AND pid <> pg_backend_pid()');

diag("$minutes minutes, $rate events/s");
my ($first, $last) = first_and_last($minutes, @samples);

# Generous, because others may be at work on this machine.
my $same = 'deliveries per second';
cmp_ok($last->{$same}, '>', 0.9 * $first->{$same}, "$same: as many at the end");
cmp_ok($last->{'CPU ms per request'}, '<', 1.5 * $first->{'CPU ms per request'} + 0.02,
	'a request costs no more at the end');
cmp_ok($last->{'p50 ms'}, '<', 2 * $first->{'p50 ms'} + 5, 'p50 no higher at the end');
cmp_ok($last->{'p99 ms'}, '<', 3 * $first->{'p99 ms'} + 50, 'nor p99');
cmp_ok($last->{'RssAnon MB'}, '<', $first->{'RssAnon MB'} + 8, 'nor memory');
cmp_ok($last->{'open files'}, '<', $first->{'open files'} + 16, 'nor open files');
cmp_ok($last->{'events MB'}, '<', 3 * $first->{'events MB'} + 16, 'the log is shortened');
cmp_ok($last->{'attempts MB'}, '<', 3 * $first->{'attempts MB'} + 16, 'so are the attempts');
cmp_ok($last->{'positions MB'}, '<', 2 * $first->{'positions MB'} + 8, 'and the positions');

# Dead rows of failures cannot be removed while that transaction is open.
cmp_ok($last->{'parked MB'}, '<', $minutes * 60 * $rate * 0.05 * 1.1 * 1000 / 1048576 + 1,
	'a failure costs less than 1 kB');
ok(wait_settled($node), 'everything is delivered in the end');

$node->stop;
done_testing();
