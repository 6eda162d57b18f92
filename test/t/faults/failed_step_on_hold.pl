# An SQL error in one step of a worker puts that step on hold, and everything else goes on.
# A row or an endpoint that causes the error is set aside.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.dedup_window = '1s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $n = 0;

# What is written to a table fails, under a condition, until it is lifted.
sub obstruct
{
	my ($table, $event, $when, $return) = @_;
	my $level = $event =~ /TRUNCATE/ ? 'STATEMENT' : 'ROW';

	$when = $when ? "WHEN ($when)" : '';
	ask("CREATE TRIGGER obstacle BEFORE $event ON outbox.$table FOR EACH $level $when EXECUTE FUNCTION public.obstacle()");
	return;
}

sub lift
{
	ask("DROP TRIGGER obstacle ON outbox.$_") foreach @_;
	$node->reload;
	return;
}

sub set
{
	my ($name, $value) = @_;

	ask(defined $value ? "ALTER SYSTEM SET outbox.$name = '$value'" : "ALTER SYSTEM RESET outbox.$name");
	$node->reload;
	return;
}

# An endpoint that has nothing to do with it is served meanwhile.
sub goes_on
{
	my ($name) = @_;
	my @ids = map { emit($node, 'fine.n', '{"n": ' . ++$n . '}') } 1 .. 3;

	$receiver->wait_delivered(1, id => $_) foreach @ids;
	wait_status($node, $ids[-1], 'delivered', "$name: everything else goes on");
	return;
}

sub held
{
	my ($step, $reason, $endpoint) = @_;
	my $whose = $endpoint ? "endpoint = '$endpoint'" : 'endpoint IS NULL';

	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = '$step' AND reason = '$reason' AND $whose"
			  . " AND failures > 0 AND since <= now() AND next_try_at > since"),
		"$step: is on hold");
	like(ask('SELECT held_steps, reason FROM outbox.status'), qr/^[1-9]\d*\|on hold: .*$step \($reason\)/,
		"$step: the status says so")
	  if $step ne 'database';    # where the status asks for the column that is missing, too
	goes_on($step);
	return;
}

sub works_again
{
	my ($step) = @_;
	ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.held_steps WHERE step = '$step'"), "$step: works again");
	return;
}

ask(<<'SQL');
CREATE ROLE emitter;
GRANT USAGE ON SCHEMA outbox TO emitter;
GRANT INSERT (id, topic, key, payload) ON outbox.events TO emitter;
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'an obstacle in %', TG_TABLE_NAME; END $$;
SQL
my $quick = "backoff_base => '50 ms', backoff_max => '100 ms'";
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{fine.*,load.*}'");
endpoint($node, $receiver, 'bad', '/ok/bad', "topics => '{bad.*,load.*}', $quick");
endpoint($node, $receiver, 'dead', '/status/500/dead', "topics => '{dead.*}', max_attempts => 1");
endpoint($node, $receiver, 'told', '/ok/told', "topics => '{outbox.dead}'");
goes_on('at first');
my $pid = worker_pid($node);

# schedule: another event has the id
my $later = ask(<<'SQL');
BEGIN;
SELECT outbox.emit('fine.later', '{}', deliver_at => now() + '1 s') AS id \gset
SET LOCAL ROLE emitter;
INSERT INTO outbox.events (id, topic, payload) VALUES (:'id', 'fine.taken', '{}');
COMMIT;
SELECT :'id';
SQL
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.set_aside WHERE what = 'scheduled' AND event_id = '$later'"
		  . " AND error = 'the log has another event with this id'"),
	'schedule: an event whose id is taken is set aside');
is(ask("SELECT status, reason, last_error FROM outbox.deliveries WHERE event_id = '$later' AND status = 'scheduled'"),
	'scheduled|set aside|the log has another event with this id', 'and its delivery says why');
goes_on('an id that is taken');

# The same while its transaction is open: nothing waits for it
my $open = $node->background_psql('postgres');
my @due = split /\n/, ask("SELECT outbox.emit('fine.due', '{}', deliver_at => now() + '1 h') FROM generate_series(1, 3)");
$open->query_safe("BEGIN; INSERT INTO outbox.events (id, topic, payload) VALUES ('$due[1]', 'fine.open', '{}')");
ask("UPDATE outbox.scheduled SET deliver_at = now() WHERE id IN ('" . join("', '", @due) . "')");
$receiver->wait_delivered(1, id => $_) foreach @due[ 0, 2 ];
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.set_aside WHERE event_id = '$due[1]' AND error LIKE 'a transaction that is open%'"),
	'schedule: an event whose id is in doubt is set aside');
goes_on('an id that is in doubt');
$open->query_safe('ROLLBACK');
$open->quit;
$receiver->wait_delivered(1, id => $due[1]);
pass('rolled back: it is sent');

# Any other error with one of them
obstruct('scheduled', 'DELETE', q(OLD.topic = 'fine.blocked'));
my ($one, $blocked) = split /\n/,
  ask("SELECT outbox.emit(t, '{}', deliver_at => now() + '100 ms') FROM unnest('{fine.free,fine.blocked}'::text[]) t");
$receiver->wait_delivered(1, id => $one);
ok(wait_sql($node, "SELECT error FROM outbox.set_aside WHERE event_id = '$blocked'", 'an obstacle in scheduled'),
	'schedule: one that fails is set aside with the error');
goes_on('one that fails');
lift('scheduled');
ask("UPDATE outbox.scheduled SET retry_at = now() WHERE id = '$blocked'");
$receiver->wait_delivered(1, id => $blocked);

# and with what would set it aside, too: the step is on hold
obstruct('scheduled', 'DELETE OR UPDATE');
$one = ask("SELECT outbox.emit('fine.all', '{}', deliver_at => now() + '100 ms')");
held('schedule', 'error');
lift('scheduled');
works_again('schedule');
$receiver->wait_delivered(1, id => $one);

# settle: one endpoint's outcomes cannot be stored
obstruct('parked', 'INSERT OR UPDATE', 'NEW.endpoint_id = ' . ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'bad'"));
$receiver->control(path => '/ok/bad', behave => '/status/500');
my $unsettled = emit($node, 'bad.n', '{}');
held('settle', 'error', 'bad');
my $waits = emit($node, 'bad.n', '{}');
nothing_arrives($receiver, 'settle: nothing is sent whose outcome could not be stored', 1, id => $waits);
$receiver->control(path => '/ok/bad', behave => '/ok');
lift('parked');
works_again('settle');
wait_status($node, $_, 'delivered', 'settle: nothing is lost') foreach $unsettled, $waits;
is(ask("SELECT count(*) FROM outbox.attempts WHERE event_id = '$unsettled' AND status_code = 500"), '1',
	'settle: nothing was sent twice for it');

# read: the log cannot be read
my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
ask("ALTER INDEX outbox.events_${piece}_seq_idx RENAME TO hidden");
my $unread = emit($node, 'fine.unread', '{}');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'read' AND reason = 'missing'"), 'read: is on hold');
my @unread = map { emit($node, 'load.n', "{\"n\": $_}", "key => 'k'") } 1 .. 20;
ask("ALTER INDEX outbox.hidden RENAME TO events_${piece}_seq_idx");
$node->reload;
$receiver->wait_delivered(1, id => $_) foreach $unread, @unread;
works_again('read');
wait_status($node, $_, 'delivered', 'read: all are stored') foreach @unread[ 0, 19 ];
is(scalar(() = $receiver->requests(id => $_, path => '/ok/bad')), 1, 'read: once') foreach @unread[ 0, 19 ];

# retention, dedup
obstruct("events_$_", 'TRUNCATE') foreach 0 .. 2;
ask("ALTER SYSTEM SET outbox.retention = '1s'");
$node->reload;
held('retention', 'error');

# A process of the same worker that comes next does not begin with it
my $since = ask("SELECT since FROM outbox.held_steps WHERE step = 'retention'");
ask("SELECT pg_terminate_backend($pid)");
$pid = new_worker($node, $pid);
is(ask("SELECT since FROM outbox.held_steps WHERE step = 'retention'"), $since, 'retention: is on hold after a restart');
goes_on('a restart');
ask("DROP TRIGGER obstacle ON outbox.events_$_") foreach 0 .. 2;
$node->reload;
works_again('retention');
ask('ALTER SYSTEM RESET outbox.retention');
$node->reload;

obstruct('dedup', 'DELETE');
emit($node, 'fine.once', '{}', "dedup_key => 'a'");
held('dedup', 'error');
lift('dedup');
works_again('dedup');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.dedup'), 'dedup: the key is forgotten');

# replay
obstruct('replays', 'UPDATE');
ask("SELECT outbox.replay('bad', now() - interval '1 h', topics => '{load.*}')");
held('replay', 'error', 'bad');
lift('replays');
works_again('replay');
$receiver->wait_delivered(2, id => $unread[19], path => '/ok/bad');

# notice, and command: dead letters that are told, and one that cannot be retried
obstruct('events', 'INSERT', q(NEW.topic = 'outbox.dead'));
my @dead = map { emit($node, 'dead.n', "{\"n\": $_}") } 1 .. 3;
held('notice', 'error');
ok(wait_sql($node, 'SELECT count(*) = 3 FROM outbox.dead_letters'), 'notice: what it tells of is stored');
lift('events');
works_again('notice');
ok(wait_until { scalar(() = $receiver->requests(path => '/ok/told')) }, 'notice: it comes later');

obstruct('parked', 'UPDATE', "NEW.event_id = '$dead[1]'");
$receiver->control(path => '/status/500/dead', behave => '/ok');
ask("SELECT outbox.retry('dead')");
$receiver->wait_delivered(1, id => $_) foreach @dead[ 0, 2 ];
ok(wait_sql($node, "SELECT endpoint, action, error FROM outbox.set_aside WHERE what = 'command' AND event_id = '$dead[1]'",
		'dead|retry|an obstacle in parked'),
	'command: one that fails is set aside with the error');
goes_on('command');
ask('DROP TRIGGER obstacle ON outbox.parked');
ask("SELECT outbox.discard('dead', event => '$dead[1]')");
ask("SELECT outbox.resend('dead', event => '$dead[0]')");
$receiver->wait_delivered(2, id => $dead[0]);
is(ask("SELECT status FROM outbox.parked WHERE event_id = '$dead[1]'"), 'dead', 'command: a later one for the same delivery waits for it');
ask('UPDATE outbox.commands SET retry_at = now()');
ask("SELECT outbox.endpoint_changed(0)");
wait_status($node, $dead[1], 'cancelled', 'command: the last one holds');

# and one whose event cannot be read
my $order_key = ask("SELECT pg_get_functiondef('outbox.order_key'::regproc)");
my @again = map { emit($node, 'fine.n', '{}', "key => '$_'") } qw(unreadable readable);
wait_status($node, $_, 'delivered', 'command: an event is delivered') foreach @again;
ask(<<'SQL');
CREATE OR REPLACE FUNCTION outbox.order_key(tenant text, key text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN IF key = 'unreadable' THEN RAISE EXCEPTION 'an obstacle in an event'; END IF; RETURN key; END $$
SQL
ask("SELECT outbox.resend('fine', '$_')") foreach @again;
$receiver->wait_delivered(2, id => $again[1]);
ok(wait_sql($node, "SELECT endpoint, action, error FROM outbox.set_aside WHERE what = 'command' AND endpoint = 'fine'",
		'fine|resend|an obstacle in an event'),
	'command: one whose event cannot be read is set aside, and the next one is carried out');
ask($order_key);
ask('UPDATE outbox.commands SET retry_at = now()');
ask("SELECT outbox.endpoint_changed(0)");
$receiver->wait_delivered(2, id => $again[0]);
works_again('command');

# backlog: what a tenant may keep no longer cannot be given up
endpoint($node, $receiver, 'kept', '/ok/kept', "topics => '{kept.*}', tenant => 't'");
ask("SELECT count(outbox.emit('kept.n', '{}', tenant => 't', expires_at => clock_timestamp() - interval '1 s')) FROM generate_series(1, 20)");
ok(wait_sql($node, "SELECT dead = 20 FROM outbox.stats WHERE endpoint = 'kept'"), 'backlog: dead letters are kept');
obstruct('commands', 'INSERT', "NEW.action = 'limit'");
ask("SELECT outbox.set_tenant_limits('t', max_kept => 5)");
held('backlog', 'error');
lift('commands');
works_again('backlog');
ok(wait_sql($node, "SELECT dead = 5 FROM outbox.stats WHERE endpoint = 'kept'"), 'backlog: then it is');
ask("SELECT outbox.drop_endpoint('kept', discard => true)");

# attempts: twice, for what the first try has left behind must not harm the next one
my @logs = map { "attempt_log_$_" } 0 .. 2;
obstruct($_, 'INSERT') foreach @logs;
my $noted = emit($node, 'fine.noted', '{}');
held('attempts', 'error');
ok(wait_sql($node, "SELECT failures > 1 FROM outbox.held_steps WHERE step = 'attempts'"), 'attempts: a second time');
lift(@logs);
works_again('attempts');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.attempts WHERE event_id = '$noted'"), 'attempts: written later');

# The same where more endpoints have outcomes all the time than a settle one by one writes
ask("SELECT count(outbox.create_endpoint('each' || n, '" . $receiver->url('/ok/each') . "', topics => '{each.*}')) FROM generate_series(1, 60) n");
ask("CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END'");
ask("CREATE TRIGGER slow BEFORE INSERT ON outbox.positions_$_ FOR EACH ROW EXECUTE FUNCTION public.slow()") foreach 0, 1;
my $producer = start_producer($node, PostgreSQL::Test::Utils::tempdir() . '/producer', rate => 20, topic => 'each.n');
$receiver->wait_delivered(120, path => '/ok/each');
obstruct($_, 'INSERT') foreach @logs;
held('attempts', 'error');
stop_producer($producer);
lift(@logs);
ask("DROP TRIGGER slow ON outbox.positions_$_") foreach 0, 1;
works_again('attempts');
ok(wait_sql($node, "SELECT sum(pending) = 0 FROM outbox.stats WHERE endpoint ~ '^each'"), 'attempts: all are delivered');
ask("SELECT outbox.drop_endpoint('each' || n, discard => true) FROM generate_series(1, 60) n");

# settle: the same with the positions, which are written at once for all
endpoint($node, $receiver, 'late', '/ok/late', "topics => '{late.*}', max_attempts => 1000, $quick");
my $late = ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'late'");
obstruct("positions_$_", 'INSERT', "NEW.endpoint_id = $late") foreach 0, 1;
my $placed = emit($node, 'late.n', '{}');
held('settle', 'error', 'late');
ok(wait_sql($node, "SELECT failures > 1 FROM outbox.held_steps WHERE step = 'settle'"), 'settle: a second time');
lift('positions_0', 'positions_1');
works_again('settle');
wait_status($node, $placed, 'delivered', 'settle: the position is written later');

# followers: the next one of a key is not in the log any more, and where it is
# kept cannot be read
$receiver->control(path => '/ok/late', behave => '/status/500');
my @keyed = split /\n/, ask("SELECT outbox.emit('late.n', '{}', key => 'k') FROM generate_series(1, 2)");
wait_status($node, $keyed[0], 'retrying', 'one waits for its retry');
wait_status($node, $keyed[1], 'blocked', 'the other one behind it');
set(retention => '1s');
ok( wait_sql($node, "SELECT (SELECT count(*) FROM outbox.kept_events WHERE id IN ('$keyed[0]', '$keyed[1]')) = 2"
		  . " AND NOT EXISTS (SELECT 1 FROM outbox.events WHERE id IN ('$keyed[0]', '$keyed[1]'))"),
	'both are kept, and not in the log any more');
set('retention');
$receiver->control(path => '/ok/late', behave => '/hold');
ok(wait_sql($node, "SELECT processing = 1 FROM outbox.stats WHERE endpoint = 'late'"), 'the first one is on its way');
ask('ALTER TABLE outbox.kept_events RENAME COLUMN content_type TO hidden');
$receiver->control(path => '/ok/late', behave => '/ok');
held('followers', 'missing', 'late');
ask('ALTER TABLE outbox.kept_events RENAME COLUMN hidden TO content_type');
$node->reload;
works_again('followers');
wait_status($node, $_, 'delivered', 'followers: delivered') foreach @keyed;

# tidy: they are not needed any more
obstruct('kept_events', 'DELETE');
set(retention => '1s');
held('tidy', 'error');
lift('kept_events');
set('retention');
works_again('tidy');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.kept_events'), 'tidy: nothing is kept for nothing');

obstruct($_, 'TRUNCATE') foreach @logs;
set(attempts_retention => '1s');
held('forget_attempts', 'error');
lift(@logs);
works_again('forget_attempts');
set('attempts_retention');

# leftovers: what a dropped endpoint has left behind cannot be deleted
endpoint($node, $receiver, 'gone', '/ok/gone', "topics => '{gone.*}'");
wait_status($node, emit($node, 'gone.n', '{}'), 'delivered', 'another endpoint');
obstruct('subscriptions', 'DELETE');
ask("SELECT outbox.drop_endpoint('gone')");
held('leftovers', 'error');
lift('subscriptions');
works_again('leftovers');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.subscriptions s WHERE NOT EXISTS'
		  . ' (SELECT 1 FROM outbox.endpoint_settings e WHERE e.endpoint_id = s.endpoint_id)'),
	'leftovers: nothing is left');

# seek: what an endpoint will read again cannot be deleted
$receiver->control(path => '/ok/late', behave => '/status/500');
wait_status($node, emit($node, 'late.n', '{}'), 'retrying', 'a delivery waits for its retry');
obstruct('parked', 'DELETE', "OLD.endpoint_id = $late");
ask("SELECT outbox.seek_endpoint('late', 'beginning')");
held('seek', 'error', 'late');
$receiver->control(path => '/ok/late', behave => '/ok');
lift('parked');
works_again('seek');
wait_status($node, emit($node, 'late.n', '{}'), 'delivered', 'seek: it is served again');

# reload: one endpoint that loses its order cannot be read
$receiver->control(path => '/ok/late', behave => '/status/500');
@keyed = split /\n/, ask("SELECT outbox.emit('late.n', '{}', key => 'k') FROM generate_series(1, 2)");
wait_status($node, $keyed[1], 'blocked', 'a delivery waits behind another one');
obstruct('parked', 'UPDATE', "OLD.event_id = '$keyed[1]' AND OLD.status = 'blocked' AND NEW.status = 'retrying'");
ask("SELECT outbox.alter_endpoint('late', ordering => 'none')");
held('reload', 'error', 'late');
$receiver->control(path => '/ok/late', behave => '/ok');
lift('parked');
works_again('reload');
wait_status($node, $_, 'delivered', 'reload: it is served again') foreach @keyed;

# and nothing can be read
ask('ALTER TABLE outbox.tenant_limits_here RENAME TO hidden');
ask("SELECT outbox.alter_endpoint('late', ordering => 'key')");
held('reload', 'missing');
ask('ALTER TABLE outbox.hidden RENAME TO tenant_limits_here');
$node->reload;
works_again('reload');
wait_status($node, emit($node, 'late.n', '{}'), 'delivered', 'reload: new settings are read');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');
is(worker_pid($node), $pid, 'nor ended at all');

# positions and database: the next process takes the database over
ask(<<'SQL');
INSERT INTO outbox.positions (piece, number, endpoint_id, generation, read_tick, read, read_seq_low,
	last_seq, delivered, failed_attempts, settled_at)
SELECT p.piece, -g, p.endpoint_id, p.generation, p.read_tick, p.read, p.read_seq_low,
	p.last_seq, p.delivered, p.failed_attempts, p.settled_at
FROM (SELECT * FROM outbox.positions ORDER BY number DESC LIMIT 1) p CROSS JOIN generate_series(1, 60000) g
SQL
obstruct("positions_$_", 'TRUNCATE') foreach 0, 1;
ask('ALTER TABLE outbox.positions RENAME COLUMN piece TO hidden');
ask("SELECT pg_terminate_backend($pid)");
$pid = new_worker($node, $pid);
held('database', 'missing');
ask('ALTER TABLE outbox.positions RENAME COLUMN hidden TO piece');
$node->reload;
works_again('database');
held('positions', 'error');
lift('positions_0', 'positions_1');
works_again('positions');
ok(wait_sql($node, 'SELECT min(n) < 1000 FROM (SELECT count(*) AS n FROM outbox.positions GROUP BY piece) p'), 'positions: they are moved to the other table');

is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');
is(worker_pid($node), $pid, 'nor ended at all');

# What a worker had on hold that was one too many, and is not started again
set(workers_per_database => 2);
endpoint($node, $receiver, "two$_", '/status/500/two', "topics => '{two.*}', $quick") foreach 1 .. 4;
obstruct('parked', 'INSERT OR UPDATE', "NEW.endpoint_id >= (" . ask("SELECT min(endpoint_id) FROM outbox.endpoint_settings WHERE name ~ '^two'") . ')');
ok(wait_sql($node, "SELECT count(*) = 2 AND min(endpoints) > 1 FROM outbox.workers WHERE pid IS NOT NULL"), 'two workers');
emit($node, 'two.n', '{}');
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.held_steps WHERE worker = 2 AND step = 'settle'"), 'the second one has a step on hold');
set(workers_per_database => 1);
ask('SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE worker = 2');
ok(wait_sql($node, 'SELECT count(*) = 1 FROM outbox.workers WHERE pid IS NOT NULL'), 'and has ended');
$receiver->control(path => '/status/500/two', behave => '/ok');
lift('parked');
works_again('settle');
ok(wait_sql($node, "SELECT sum(delivered) = 4 FROM outbox.stats WHERE endpoint ~ '^two'"), 'the first one has delivered what it left');
is(ask('SELECT held_steps, reason FROM outbox.status'), '0|', 'nothing is on hold any more');
$node->stop;
done_testing();
