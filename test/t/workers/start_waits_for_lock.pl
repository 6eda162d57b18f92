# A worker that waits for a lock at its start still answers other processes and ends when told to.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# No source sleeps, or waits for the time alone
my @files = glob "$top/src/{,*/,*/*/}*.[ch]";
cmp_ok(scalar @files, '>', 50, 'the sources are there');
foreach my $file (@files)
{
	my $source = PostgreSQL::Test::Utils::slurp_file($file);
	$source =~ s{/\*.*?\*/}{}gs;
	unlike($source, qr/\b(?:pg_usleep|usleep|sleep|nanosleep|pg_nanosleep|clock_nanosleep)\s*\(/, "$file: no sleep");
	while ($source =~ /\bWaitLatch\s*\(([^;]*);/g)
	{
		my $arguments = $1;
		like($arguments, qr/WL_LATCH_SET.*WL_EXIT_ON_PM_DEATH/s, "$file: a wait hears its latch and the postmaster's death");
	}
}

# A table is locked, and a worker starts
endpoint($node, $receiver, 'all', '/ok/all');
$receiver->wait_delivered(1, id => emit($node, 'before.lock', '{}'));
ask('CREATE DATABASE other');
ask('CREATE DATABASE another');

my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE outbox.commands IN ACCESS EXCLUSIVE MODE');

sub worker_that_waits
{
	my $old = worker_pid($node);
	ask("SELECT pg_terminate_backend($old)");
	my $new = new_worker($node, $old);
	ok( wait_sql($node,
			"SELECT state = 'starting' AND pid <> $old FROM outbox.workers WHERE datname = 'postgres' AND pid IS NOT NULL"),
		'a worker starts while the lock is held');
	return $new;
}

my $worker = worker_that_waits();
# What a process asks of all others
my ($rc, undef, $err) = $node->psql('postgres', 'DROP DATABASE other', timeout => 20);
is($rc, 0, 'another database can be dropped') or diag($err);
is(ask("SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE datname LIKE '%other'"),
	'another', 'and is gone');
is(worker_pid($node), $worker, 'the same worker waits on');
ok( wait_sql($node, "SELECT state = 'no_worker' AND reason ~ 'waits for a lock' FROM outbox.status"),
	'outbox.status says what it waits for');

# It ends when it is told to
watch_machine();
my $start = time;
ask("SELECT pg_terminate_backend($worker)");
ok(wait_until(sub { process_is_gone($worker) }, 'it ends', 30), 'SIGTERM ends it');
cmp_ok(seconds_since($start), '<', 2, 'within two seconds');
$worker = new_worker($node, $worker);

# The lock is free: it works
$holder->query_safe('COMMIT');
$receiver->wait_delivered(1, id => emit($node, 'after.lock', '{}'));
is(worker_pid($node), $worker, 'the lock is free, and the worker that waited goes on');
ok(wait_sql($node, "SELECT state = 'running' AND reason IS NULL FROM outbox.status"), 'outbox.status says so');

# The server stops
$holder->query_safe('BEGIN; LOCK TABLE outbox.commands IN ACCESS EXCLUSIVE MODE');
worker_that_waits();
$start = time;
$node->stop('fast');
cmp_ok(seconds_since($start), '<', 5, 'a fast stop is not held up');
eval { $holder->quit };

# Its postmaster dies
$node->start;
$holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE outbox.commands IN ACCESS EXCLUSIVE MODE');
$worker = worker_that_waits();
kill 'KILL', $node->{_pid};
ok(wait_until(sub { !-e "/proc/$worker" || OutboxTest::is_zombie($worker) }, 'it ends', 10),
	'it ends with the postmaster');
eval { $holder->quit };
$node->{_pid} = undef;
done_testing();
