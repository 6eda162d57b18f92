# A worker whose role lacks a privilege is held, names it, and passes over no event.
# The same holds when the sequence of the log does not say how far the log goes.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the worker has a role of its own' if $ENV{OUTBOX_TEST_WORKER_ROLE};

# A worker that is held looks again after 10 s, or when the configuration is reloaded.
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $grants = worker_grants();

sub end_worker
{
	ask("SELECT pg_terminate_backend(pid) FROM outbox.workers");
	return;
}

endpoint($node, $receiver, 'all', '/ok/all');
emit($node, 'a.first', '{}');
$receiver->wait_delivered(1, path => '/ok/all');
ask("CREATE ROLE outbox_worker; $grants ALTER SYSTEM SET outbox.worker_role = 'outbox_worker'");
$node->reload;
end_worker();
my $running = q{SELECT coalesce(bool_and(state = 'running'), false) FROM outbox.status};
ok(wait_sql($node, $running), 'with what doc/security.md grants the worker runs');

my @needed = (
	[ 'SELECT', 'SEQUENCE outbox.events_seq', 'SELECT on sequence outbox.events_seq' ],
	[ 'TRUNCATE', 'outbox.positions_1', 'TRUNCATE on outbox.positions_1' ],
	[ 'SELECT', 'outbox.endpoint_positions', 'SELECT on outbox.endpoint_positions' ],
	[ 'INSERT', 'outbox.attempt_log_0', 'INSERT on outbox.attempt_log_0' ],
	[ 'EXECUTE', 'FUNCTION outbox.order_key', 'EXECUTE on function outbox.order_key' ],
	[ 'USAGE', 'SCHEMA outbox', 'USAGE on schema outbox' ]);
foreach my $case (@needed)
{
	my ($privilege, $object, $missing) = @$case;

	ok(wait_sql($node, $running), "$missing: granted");
	ask("REVOKE $privilege ON $object FROM outbox_worker");
	end_worker();
	ok( wait_sql($node, "SELECT state = 'held' AND reason = 'the role of the worker,"
			  . " \"outbox_worker\", lacks a privilege: $missing' FROM outbox.status"),
		"$missing: without it the worker is held, and says so")
	  or diag(ask('SELECT state, reason FROM outbox.status'));
	my $id = emit($node, 'a.meanwhile', '{}');
	ask("GRANT $privilege ON $object TO outbox_worker");
	$node->reload if $case != $needed[0];    # that one is seen by itself
	$receiver->wait_delivered(1, id => $id);
	pass("$missing: granted again, the event of then is delivered");
}

# A running worker that loses the privilege to see the sequence reads NULL (since
# PostgreSQL 18), and must not take that for an empty log.
ok(wait_sql($node, $running), 'all of it is granted');
ask('REVOKE SELECT ON SEQUENCE outbox.events_seq FROM outbox_worker');
my $id = emit($node, 'a.meanwhile', '{}');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'read'"), 'a running worker notices that the sequence shows it nothing');
ask('GRANT SELECT ON SEQUENCE outbox.events_seq TO outbox_worker');
$node->reload;
$receiver->wait_delivered(1, id => $id);
pass('the event of then is delivered');

# What the log's functions do
ask('REVOKE EXECUTE ON FUNCTION outbox.log_xid FROM PUBLIC');
end_worker();
ok(wait_sql($node, "SELECT state = 'held' AND reason LIKE '%EXECUTE on function outbox.log_xid' FROM outbox.status"),
	'a function that it may not call: held');
ask('GRANT EXECUTE ON FUNCTION outbox.log_xid TO PUBLIC');
$node->reload;
ok(wait_sql($node, $running), 'granted again');

# A role that does not exist
ask("ALTER SYSTEM SET outbox.worker_role = 'nobody_there'");
$node->reload;
end_worker();
ok( wait_sql($node, "SELECT state = 'held' AND reason = 'outbox.worker_role: role \"nobody_there\" does not exist' FROM outbox.status"),
	'a role that does not exist: held');
ask('ALTER SYSTEM RESET outbox.worker_role');
$node->reload;
end_worker();
ok(wait_sql($node, $running), 'the owner again');

# The owner goes, and another role gets what it had
ask('CREATE ROLE leaving SUPERUSER; CREATE DATABASE second');
$node->safe_psql('second', 'SET ROLE leaving; CREATE EXTENSION outbox');
endpoint($node, $receiver, 'all', '/ok/second', undef, 'second');
$receiver->wait_delivered(1, id => emit($node, 'a.before', '{}', undef, 'second'));
$node->safe_psql('second', 'REASSIGN OWNED BY leaving TO CURRENT_USER; DROP ROLE leaving');
$receiver->wait_delivered(1, id => emit($node, 'a.after', '{}', undef, 'second'));
pass('the worker is that of the new owner');
$node->safe_psql('postgres', 'DROP DATABASE second');

$node->stop;
done_testing();
