# Commands and replays do not wait for long where an endpoint cannot be stored or has many of them.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub id_of
{
	my ($name) = @_;
	return ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = '$name'");
}

# What is written to outbox.parked for the endpoint fails.
sub obstruct
{
	my ($name, $event, $row) = @_;

	ask('INSERT INTO public.obstacles VALUES (1)');
	ask("CREATE TRIGGER obstacle BEFORE $event ON outbox.parked FOR EACH ROW"
		  . " WHEN ($row.endpoint_id = " . id_of($name) . ') EXECUTE FUNCTION public.obstacle()');
	return;
}

sub is_held
{
	my ($step, $name) = @_;
	return ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = '$step' AND endpoint = '$name'"),
		"$step: is on hold for endpoint $name");
}

sub sleeps
{
	my ($name) = @_;
	my $pid = worker_pid($node);
	my $before = cpu_ticks($pid);

	sleep 3;
	return cmp_ok(cpu_ticks($pid) - $before, '<', 30, "$name: the worker sleeps");
}

# A command for a dead letter of the endpoint that is all right
sub is_carried_out
{
	my ($event, $name) = @_;

	ask("SELECT outbox.discard('other', event => '$event')");
	return wait_status($node, $event, 'cancelled', "$name: a command for another endpoint is carried out");
}

# How many of the deliveries were cancelled by transactions before that which cancelled the one
sub cancelled_before
{
	my ($deliveries, $one) = @_;
	my $parked = 'FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id)';

	return ask("SELECT count(*) $parked WHERE $deliveries AND k.status = 'cancelled'"
		  . " AND k.xmin::text::int8 < (SELECT k.xmin::text::int8 $parked WHERE $one)");
}

ask(<<'SQL');
CREATE TABLE public.obstacles (n int);
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN
    IF EXISTS (SELECT FROM public.obstacles) THEN
        RAISE EXCEPTION 'an obstacle in %', TG_TABLE_NAME;
    END IF;
    RETURN COALESCE(NEW, OLD);
END $$;
CREATE FUNCTION public.lift() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN
    DELETE FROM public.obstacles;
    PERFORM pg_reload_conf();
    PERFORM pg_sleep(1); -- until the worker has the signal
    RETURN OLD;
END $$;
SQL
endpoint($node, $receiver, 'bad', '/status/500/bad', "topics => '{bad.*}', max_attempts => 1");
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");
endpoint($node, $receiver, 'late', '/ok/late', "topics => '{late.*}', max_attempts => 1000,"
	  . " backoff_base => '50 ms', backoff_max => '100 ms'");

# More dead letters than fit into one batch of commands
my $many = 600;
my @other = split /\n/, ask("SELECT outbox.emit('other.n', '{}', expires_at => clock_timestamp() - interval '1 s')"
	  . " FROM generate_series(1, $many)");
ask("SELECT count(outbox.emit('bad.n', '{}'::jsonb, expires_at => clock_timestamp() - interval '1 s'))"
	  . " FROM generate_series(1, $many)");
my $first = emit($node, 'bad.first', '{}');
ok(wait_sql($node, "SELECT count(*) = 2 * $many + 1 FROM outbox.dead_letters"), 'dead letters of two endpoints');

# The outcomes of one cannot be stored
obstruct('bad', 'INSERT OR UPDATE', 'NEW');
emit($node, 'bad.unsettled', '{}');
is_held('settle', 'bad');
is(ask("SELECT outbox.retry('bad')"), $many + 1, 'a command for each of its dead letters');
is_carried_out(shift @other, 'settle');
my $forgotten = ask("SELECT outbox.emit('other.n', '{}', tenant => 't', expires_at => clock_timestamp() - interval '1 s')");
wait_status($node, $forgotten, 'dead', 'a dead letter of a tenant');
ask("SELECT outbox.forget('t')");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forgotten WHERE tenant = 't'"), 'settle: a tenant is forgotten');
sleeps('settle');

# Among the commands that wait is one that was set aside and is to be tried again.
ask("UPDATE outbox.commands SET failed_at = now(), retry_at = now(), error = 'an obstacle'"
	  . ' WHERE command_id = (SELECT min(command_id) FROM outbox.commands)');
is_carried_out(shift @other, 'set aside');
sleeps('set aside');
is(ask("SELECT count(*) FROM outbox.commands WHERE endpoint_id = " . id_of('bad')), $many + 2, 'its commands wait');

# It can be stored again while the commands are gone through, behind the first of its own: they keep their order.
$receiver->control(path => '/status/500/bad', behave => '/ok');
my $last = ask("SELECT outbox.discard('other', event => '$other[-1]');"
	  . " SELECT seq FROM outbox.parked WHERE event_id = '$other[1]'") =~ s/.*\n//r;
wait_status($node, $other[-1], 'cancelled', 'nothing else waits');
pop @other;
ask("CREATE TRIGGER lift BEFORE DELETE ON outbox.commands FOR EACH ROW WHEN (OLD.seq = $last) EXECUTE FUNCTION public.lift()");
ask("BEGIN; SELECT outbox.discard('other'); SELECT outbox.discard('bad', event => '$first'); COMMIT");
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'all commands are carried out');
wait_status($node, $first, 'cancelled', 'the last one holds');
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.held_steps"), 'settle: works again');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'other' AND status = 'dead'"), 0, 'nothing is left out');
ask('DROP TRIGGER lift ON outbox.commands; DROP TRIGGER obstacle ON outbox.parked');

# Another one cannot be loaded.  It has a command, and a replay.
my @fresh = map { emit($node, 'other.fresh', '{}') } 1 .. 3;
$receiver->wait_delivered(1, id => $_) foreach @fresh;
my $replayed = emit($node, 'late.n', '{}');
wait_status($node, $replayed, 'delivered', 'something to replay');
$receiver->control(path => '/ok/late', behave => '/status/500');
my $retrying = emit($node, 'late.n', '{}');
wait_status($node, $retrying, 'retrying', 'and something to retry');
@other = map { ask("SELECT outbox.emit('other.n', '{}', expires_at => clock_timestamp() - interval '1 s')") } 1 .. 2;
wait_status($node, $_, 'dead', 'a dead letter of another endpoint') foreach @other;
obstruct('late', 'DELETE', 'OLD');
ask("BEGIN; SELECT outbox.replay('late', now() - interval '1 h'); SELECT outbox.retry('late');"
	  . " SELECT outbox.seek_endpoint('late', 'beginning'); COMMIT");
is_held('seek', 'late');
is_carried_out(shift @other, 'seek');
is(ask("SELECT outbox.replay('other', now() - interval '1 h', topics => '{other.fresh}')"), 3, 'a replay for another endpoint');
$receiver->wait_delivered(2, id => $_) foreach @fresh;
sleeps('seek');
is(ask("SELECT count(*) FROM outbox.replays WHERE finished_at IS NULL AND endpoint_id = " . id_of('late')), 1, 'its replay waits');
is(ask('SELECT count(*) FROM outbox.commands'), 2, 'and its commands');
is_held('seek', 'late');

$receiver->control(path => '/ok/late', behave => '/ok');
ask('DROP TRIGGER obstacle ON outbox.parked');
$node->reload;
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'seek: works again');
wait_status($node, $_, 'delivered', 'delivered') foreach $replayed, $retrying;
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.replays WHERE finished_at IS NULL'), 'the replay ends');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'and no command is left');

# Many commands for an endpoint are carried out a batch at a time, and it owes the time that each batch takes.
my $bulk = 6_000;
ask(<<"SQL");
BEGIN;
SELECT outbox.create_endpoint('bulk', '${\$receiver->url('/ok/bulk')}', topics => '{bulk.*}');
SELECT outbox.pause_endpoint('bulk');
SELECT count(outbox.emit('bulk.n', '{}', key => 'k' || n)) FROM generate_series(1, $bulk) n;
@{[park_as_dead("s.name = 'bulk' AND e.topic = 'bulk.n'")]};
COMMIT;
SQL
ok(wait_sql($node, "SELECT dead >= $bulk FROM outbox.stats WHERE endpoint = 'bulk'"), 'many dead letters');
my $dead = ask("SELECT outbox.emit('other.n', '{}', expires_at => clock_timestamp() - interval '1 s')");
wait_status($node, $dead, 'dead', 'and one of another endpoint');
ask("BEGIN; SELECT outbox.discard('bulk'); SELECT outbox.discard('other', event => '$dead'); COMMIT");
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'all are carried out');
wait_status($node, $dead, 'cancelled', 'that of another endpoint, too');
cmp_ok(cancelled_before("s.name = 'bulk'", "k.event_id = '$dead'"), '<', $bulk - 200, 'before many of these');
is(ask("SELECT count(*) FROM outbox.parked WHERE status = 'cancelled' AND endpoint_id = " . id_of('bulk')), $bulk, 'each once');
cmp_ok(ask('SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.parked WHERE endpoint_id = ' . id_of('bulk') . ' GROUP BY xmin::text) t'),
	'<=', 200, 'by transactions of a few');

# Endpoints of a tenant that owe go on in turn, whatever their names and ids.
ask('BEGIN;' . join('', map { "SELECT outbox.create_endpoint('$_', '" . $receiver->url("/ok/$_") . "', topics => '{turn.*}', tenant => 'turn');"
		  . "SELECT outbox.pause_endpoint('$_');" } qw(t1 t2 t3 t4)) . <<"SQL");
SELECT count(outbox.emit('turn.n', '{}', key => 'k' || n, tenant => 'turn')) FROM generate_series(1, 2000) n;
@{[park_as_dead("s.tenant = 'turn' AND e.topic = 'turn.n'")]};
COMMIT;
SQL
ok(wait_sql($node, "SELECT sum(dead) = 8000 FROM outbox.stats WHERE tenant = 'turn'"), 'dead letters of four endpoints');
ask("BEGIN; SELECT outbox.discard(t) FROM unnest('{t1,t2,t3}'::text[]) t;"
	  . " SELECT outbox.discard('t4', event => (SELECT min(event_id::text)::uuid FROM outbox.dead_letters WHERE endpoint = 't4')); COMMIT");
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'all are carried out');
is(ask("SELECT count(*) FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.tenant = 'turn' AND k.status = 'cancelled'"), 6001, 'each once');
cmp_ok(cancelled_before("s.tenant = 'turn'", "s.name = 't4' AND k.status = 'cancelled'"), '<', 3000,
	'the command of the last endpoint before most of the others');

# An endpoint that is dropped is not waited for.
ask("BEGIN; SELECT outbox.replay('other', now() - interval '1 h', topics => '{other.fresh}');"
	  . " SELECT outbox.drop_endpoint('other', discard => true); COMMIT");
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.replays WHERE finished_at IS NULL'), 'the replay of a dropped endpoint ends');
sleeps('at last');

is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');
$node->stop;
done_testing();
