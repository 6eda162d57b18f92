# A worker whose role is dropped while it runs ends, and outbox.status says why.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'the worker has a role of its own' if $ENV{OUTBOX_TEST_WORKER_ROLE};

# A worker that is held looks again after 10 s, or when the configuration is reloaded.
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $grants = worker_grants();

endpoint($node, $receiver, 'all', '/ok/all');
foreach my $case (
	[ 'a superuser', 'CREATE ROLE serving SUPERUSER', 'DROP ROLE serving' ],
	[ 'one with grants', 'CREATE ROLE serving; ' . $grants =~ s/outbox_worker/serving/gr, 'DROP OWNED BY serving; DROP ROLE serving' ])
{
	my ($what, $create, $drop) = @$case;
	my $before = worker_pid($node);

	ask("$create; ALTER SYSTEM SET outbox.worker_role = 'serving'");
	$node->reload;
	ask("SELECT pg_terminate_backend($before)");
	new_worker($node, $before);
	my $id = emit($node, 'a.with', '{}');
	$receiver->wait_delivered(1, id => $id);

	# It does nothing
	ok(wait_sql($node, 'SELECT pending + processing = 0 FROM outbox.stats'), "$what: the worker runs as that role");
	my $log = -s $node->logfile;
	my $begun = time;
	ask($drop);
	ok( wait_sql($node, q{SELECT state = 'held' AND reason = 'outbox.worker_role: role "serving" does not exist' FROM outbox.status}),
		"$what: dropped, the worker is held, and says so");
	cmp_ok(time - $begun, '<', 30, 'within seconds');
	like(slurp_file($node->logfile, $log), qr/outbox worker ends: its role was dropped/, 'the server log says when it ended');
	my @meanwhile = map { emit($node, 'a.without', '{}') } 1 .. 3;
	nothing_arrives($receiver, "$what: nothing is sent meanwhile", 0.5, id => $meanwhile[0]);

	# Under load, when a role of the same name is made at once
	ask($create);
	$node->reload;
	$receiver->wait_delivered(1, id => $_) foreach @meanwhile;
	pass("$what: with the role the worker goes on");
	my $pid = worker_pid($node);
	my $producer = start_producer($node, PostgreSQL::Test::Utils::tempdir() . '/log', rate => 50, keys => 2, topic => 'a.load');
	$receiver->wait_delivered(50, topic => 'a.load');
	ask("BEGIN; $drop; $create; COMMIT");
	new_worker($node, $pid);
	stop_producer($producer);
	wait_settled($node);
	is(ask('SELECT count(*) FROM outbox.parked'), 0, "$what: dropped and made again under load: all is delivered");
	ask('ALTER SYSTEM RESET outbox.worker_role');
	$node->reload;
	ask("SELECT pg_terminate_backend(pid) FROM outbox.workers; $drop");
	ok(wait_sql($node, q{SELECT state = 'running' FROM outbox.status}), 'the owner again');
}

$node->stop;
done_testing();
