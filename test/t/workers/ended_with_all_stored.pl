# A worker that is asked to end stores what it has done, also while a table is locked.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $sent = 0;

sub emitted
{
	$sent += $_[0];
	return ask("SELECT count(outbox.emit('a.b', '{}', tenant => 'acme')) FROM generate_series(1, $_[0])");
}

sub delivered
{
	return ok(wait_sql($node, "SELECT sum(delivered) = $sent FROM outbox.stats"), "$sent are delivered");
}

# What the former worker had counted
sub billed
{
	my ($name) = @_;
	return is(ask("SELECT sum(delivered) FROM outbox.tenant_usage(now() - interval '1 day', now() + interval '1 hour')"), $sent, $name);
}

# A trigger that sleeps as long as the sequence is below 10
ask(<<'SQL');
CREATE SEQUENCE public.times START 10;
CREATE FUNCTION public.rests() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF nextval('public.times') < 10 THEN PERFORM pg_sleep(600); END IF;
	RETURN NEW;
END $$;
SQL
ask("CREATE TRIGGER rests BEFORE INSERT ON outbox.$_ FOR EACH ROW EXECUTE FUNCTION public.rests()") foreach qw(attempt_log attempt_runs);

endpoint($node, $receiver, 'a', '/ok/a', "tenant => 'acme'");
emitted(7);
delivered();
my $worker = worker_pid($node);
ask("BEGIN; LOCK TABLE outbox.kept_events IN ACCESS EXCLUSIVE MODE; SELECT pg_terminate_backend($worker); SELECT pg_sleep(0.2); COMMIT");
$worker = new_worker($node, $worker);
billed('figures are written when the table is free');

# Totals are stored once a second, and when the worker ends.  The second event is counted within that second.
emitted(1);
delivered();
emitted(1);
delivered();
$worker = replace_worker($node);
ok(wait_sql($node, "SELECT value FROM outbox.metrics(0) WHERE name = 'outbox_delivered_total'", $sent), 'totals that were stored last are shown');

my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE outbox.attempt_log IN ACCESS EXCLUSIVE MODE');
emitted(4);
delivered();
$locker->query_safe("SELECT pg_terminate_backend($worker); SELECT pg_sleep(0.2); COMMIT");
$locker->quit;
$worker = new_worker($node, $worker);
is(ask('SELECT count(*) FROM outbox.attempts'), $sent, 'so are attempts');
billed('and figures once');

# In the transaction that stores the next delivery.  With a second one, an answer could still be missing then.
emitted(5);
delivered();
ok(wait_sql($node, 'SELECT count(*) FROM outbox.attempts', $sent), 'and stored');
ask("SELECT setval('public.times', 9, false)");
emitted(1);
ok(wait_sql($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $worker"), 'it is in a transaction');
ask("SELECT pg_terminate_backend($worker)");
$worker = new_worker($node, $worker);
delivered();
billed('that is cancelled, and figures are written');
is(scalar(() = $receiver->requests), $sent, 'what it had delivered was stored, and is not repeated');
is(ask('SELECT count(*) FROM outbox.held_steps'), 0, 'no step is on hold');
is(ask('SELECT restarts FROM outbox.workers'), 0, 'and the end was no error');

# A statement that does not end, again and again
ask("SELECT setval('public.times', 1, false)");
emitted(2);
ok(wait_sql($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $worker"), 'the trigger sleeps');
ask("SELECT pg_terminate_backend($worker)");
$worker = new_worker($node, $worker);
pass('does not hold up the end');
ok(wait_sql($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $worker"), 'and sleeps in the next worker');
ask("SELECT setval('public.times', 10, false)"); # ALTER SEQUENCE would wait for that worker
$worker = replace_worker($node);
delivered();

$node->stop;
done_testing();
