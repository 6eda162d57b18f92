# The rows of a dropped or moved endpoint are deleted in slices, and nothing of another one.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $many = 3000;

# An endpoint with that many dead letters
sub dead_letters
{
	my ($name, $n) = @_;

	$n //= $many;
	endpoint($node, $receiver, $name, "/ok/$name", "topics => '{$name.*}'");
	ask("SELECT count(outbox.emit('$name.n', jsonb_build_object('n', n))) FROM generate_series(1, $n) n");
	ok(wait_sql($node, "SELECT delivered = $n AND processing = 0 FROM outbox.stats WHERE endpoint = '$name'"), "$name: $n events");
	my $id = ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = '$name'");
	ask(park_as_dead("s.endpoint_id = $id AND e.topic = '$name.n'"));
	return $id;
}

# Rows that one statement deletes at most, and how many all have
sub slices
{
	my ($id, $what) = @_;

	ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.parked WHERE endpoint_id = $id"), "$what: no row is left");
	is(ask("SELECT sum(n), max(n) BETWEEN 1 AND 1000 FROM public.slices WHERE id = $id"), "$many|t",
		"$what: each was deleted, with few others at a time")
	  or diag ask("SELECT n FROM public.slices WHERE id = $id");
	return;
}

ask(<<'SQL');
CREATE TABLE public.slices (id int, n int8);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.slices SELECT endpoint_id, count(*) FROM gone GROUP BY 1; RETURN NULL; END $$;
CREATE TRIGGER note AFTER DELETE ON outbox.parked REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.note();
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'an obstacle'; END $$;
SQL
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");

# Dropped
my $id = dead_letters('dropped');
ask("SELECT outbox.drop_endpoint('dropped', discard => true)");
slices($id, 'dropped');

# Dropped while no worker runs
$id = dead_letters('unseen');
ask('DELETE FROM public.slices');
$node->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->start;
ask("SET session_replication_role = replica; DELETE FROM outbox.endpoint_settings WHERE name = 'unseen'");
$node->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\n");
$node->start;
slices($id, 'dropped without a worker');
is(ask("SELECT count(*) FROM outbox.endpoint_secrets WHERE endpoint_id = $id"), '0', 'its secret is deleted, too');

# Moved: it is not served before its rows are deleted, and the others are
$id = dead_letters('moved');
ask("CREATE TRIGGER obstacle BEFORE DELETE ON outbox.parked FOR EACH ROW WHEN (OLD.endpoint_id = $id) EXECUTE FUNCTION public.obstacle()");
ask("SELECT outbox.seek_endpoint('moved', 'beginning')");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'seek' AND endpoint = 'moved' AND failures > 1"),
	'moved: its rows cannot be deleted');
my $other = emit($node, 'other.n', '{}');
$receiver->wait_delivered(1, id => $other);
is(scalar(() = $receiver->requests(path => '/ok/moved')), $many, 'others are served, and it is not');
ask('DROP TRIGGER obstacle ON outbox.parked');
$node->reload;
slices($id, 'moved');
$receiver->wait_delivered(2 * $many, path => '/ok/moved');
ok(wait_sql($node, "SELECT delivered = 2 * $many AND dead + pending + retrying = 0 FROM outbox.stats WHERE endpoint = 'moved'"),
	'then all its events are sent again');
# Keeps the endpoint's last row, and so the last slice, until it is told to go on.
sub last_row
{
	my ($of) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 1);

	$session->query_safe("BEGIN; SELECT seq FROM outbox.parked WHERE endpoint_id = $of ORDER BY seq DESC LIMIT 1 FOR UPDATE");
	return $session;
}

# Moved, and its position cannot be read when its rows are deleted
$id = dead_letters('unread', 10);
my $row = last_row($id);
ask("SELECT outbox.seek_endpoint('unread', 'beginning')");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'seek' AND endpoint = 'unread'"), 'unread: the slice waits');
ask("UPDATE outbox.positions SET pending = '\\x80' WHERE endpoint_id = $id");
$row->query_safe('COMMIT');
$row->quit;
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'reload' AND endpoint = 'unread' AND failures > 1"),
	'unread: it cannot be loaded');
is(ask("SELECT count(*) FROM outbox.parked WHERE endpoint_id = $id"), '0', 'its rows are deleted');
my $ticks = cpu_ticks(worker_pid($node));
sleep 3;
cmp_ok(cpu_ticks(worker_pid($node)) - $ticks, '<', 30, 'the worker sleeps until it tries again');
ask("UPDATE outbox.positions SET pending = NULL WHERE endpoint_id = $id");
$node->reload;
$receiver->wait_delivered(20, path => '/ok/unread');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'unread: it is loaded, and its events are sent again');

# Moved, and dropped when its rows are deleted and its settings are to be read
$id = dead_letters('late');
ask("DELETE FROM outbox.parked WHERE endpoint_id = $id AND seq = (SELECT max(seq) FROM outbox.parked WHERE endpoint_id = $id)");
ask("UPDATE outbox.parked SET status = 'cancelled' WHERE endpoint_id = $id AND seq = (SELECT min(seq) FROM outbox.parked WHERE endpoint_id = $id)");
my %session = (row => last_row($id), settings => $node->background_psql('postgres', on_error_stop => 1));
ask("SELECT outbox.seek_endpoint('late', 'beginning')");
ok(wait_sql($node, "SELECT count(*) = 500 FROM outbox.parked WHERE endpoint_id = $id"), 'late: the last slice waits');
$session{settings}->query_safe('BEGIN; LOCK TABLE outbox.forgotten IN ACCESS EXCLUSIVE MODE');
$session{row}->query_safe('COMMIT');
ok(wait_sql($node, "SELECT count(*) = 1 AND bool_and(status = 'cancelled') FROM outbox.parked WHERE endpoint_id = $id"),
	'late: its cancelled row is left');
ask("SELECT outbox.drop_endpoint('late', discard => true)");
$session{settings}->query_safe('COMMIT');
$_->quit foreach values %session;
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.parked WHERE endpoint_id = $id"), 'late: it goes, too, when the endpoint is dropped before it is loaded');
is(ask("SELECT count(*) FROM outbox.endpoint_secrets WHERE endpoint_id = $id"), '0', 'and its secret');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');

# Dropped while a piece of the log is to be emptied and not all is copied of it: the copies that exist, and the
# cancelled rows of their events, stay as long as the log has the events.  The second slice waits for a lock.
$id = dead_letters('kept');
my $gone = dead_letters('gone');
my ($cancelled, $behind, $epoch) = split /[|]/, ask("SELECT (array_agg(id ORDER BY seq))[1], (array_agg(seq ORDER BY seq))[2000], min(epoch)"
	  . " FROM outbox.events WHERE topic = 'kept.n'");
ask("SELECT outbox.discard('kept', event => '$cancelled')");
my $shown = "SELECT status FROM outbox.deliveries WHERE event_id = '$cancelled' AND endpoint = 'kept'";
ok(wait_sql($node, $shown, 'cancelled'), 'an event is cancelled');
ok( wait_sql(
		$node,
		'SELECT bool_and(shared IS NOT NULL) FROM (SELECT DISTINCT ON (endpoint_id) endpoint_id, shared FROM outbox.positions'
		  . ' ORDER BY endpoint_id, number DESC) p JOIN outbox.endpoint_settings USING (endpoint_id)'),
	'all endpoints are idle');
my $session = $node->background_psql('postgres');
my $copy = 'INSERT INTO outbox.kept_events (seq, xid, epoch, id, created_at, topic) VALUES';
$session->query_safe("BEGIN; $copy ($behind, '3', $epoch, gen_random_uuid(), now(), 'n')");
ask("UPDATE outbox.pieces SET piece = 2, since = since - interval '8 days' WHERE log = 'events'");
ask('SELECT pg_terminate_backend(' . worker_pid($node) . ')');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'retention'"), 'copying is on hold');
my $kept = "SELECT count(*) FROM outbox.kept_events WHERE id = '$cancelled'";
is(ask($kept), 1, 'its event is copied');
ask("$copy (1000000000, '3', $epoch, gen_random_uuid(), now(), 'needless')");
ask("SELECT outbox.drop_endpoint('gone', discard => true)");
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.parked WHERE endpoint_id = $gone"), 'the rows of another endpoint are deleted');
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.kept_events WHERE topic = 'needless'"), 'and a copy that nothing needs');
is(ask($kept), 1, 'the copy stays');
is(ask($shown), 'cancelled', 'and the event is cancelled');
is(ask("SELECT outbox.replay('kept', now() - interval '1 h')"), 0, 'a replay does not send it');
$session->quit;
$node->reload;
# When a piece cannot be emptied at once, that is tried again 10 s later.
ok((wait_until { ask("SELECT piece FROM outbox.pieces WHERE log = 'events'") == 0 } 'the piece', 60), 'the piece is emptied');
ok(wait_sql($node, $kept, 0), 'then the copy is removed');
is(ask("SELECT count(*) FROM outbox.dead_letters WHERE endpoint = 'kept'"), $many - 1, 'the others are kept');

$node->stop;
done_testing();
