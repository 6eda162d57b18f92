# Copies that were kept for an endpoint go when it is dropped, whichever worker serves it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.retention = '2 s'\noutbox.workers_per_database = 2\n");
my $receiver = OutboxTest::Receiver->new('main');

# One of the two workers does the work of the database.  Each has an endpoint with dead letters.
endpoint($node, $receiver, $_, "/status/500/$_", "topics => '{$_.*}', max_attempts => 1") foreach qw(a b);
ok(wait_sql($node, "SELECT count(*) = 2 AND bool_and(endpoints = 1) FROM outbox.workers WHERE state = 'running'"), 'each worker has one endpoint');
emit($node, "$_.n", '{}') foreach qw(a a a b b b);
ok(wait_sql($node, 'SELECT count(*) = 6 FROM outbox.parked'), 'dead letters');
ok(wait_sql($node, 'SELECT (SELECT count(*) FROM outbox.kept_events) = 6 AND NOT EXISTS (SELECT FROM outbox.events)'), 'their events are kept as copies only');

# From now on no piece of the log is emptied
ask("SELECT outbox.set_retention(events => '1 h')");
ok(wait_sql($node, "SELECT since < clock_timestamp() - interval '3 s' FROM outbox.pieces WHERE log = 'events'"), 'the piece in use stays');
my $piece = ask("SELECT piece, since FROM outbox.pieces WHERE log = 'events'");
foreach my $name (qw(a b))
{
	ask("SELECT outbox.drop_endpoint('$name', discard => true)");
	ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.kept_events WHERE topic = '$name.n'"), "$name: its copies go with it")
	  or diag ask('TABLE outbox.kept_events');
}
is(ask("SELECT piece, since FROM outbox.pieces WHERE log = 'events'"), $piece, 'and no piece was emptied for that');
# Endpoints are dropped faster than all copies are examined: the log is emptied nevertheless
sub dead_letters
{
	my ($name, $n) = @_;
	endpoint($node, $receiver, $name, "/ok/$name", "topics => '{$name.*}'");
	ask("SELECT count(outbox.emit('$name.n', '{}', expires_at => clock_timestamp() - interval '1 s')) FROM generate_series(1, $n)");
	return wait_sql($node, "SELECT dead = $n FROM outbox.stats WHERE endpoint = '$name'");
}

my $dropped = 0;

sub drop_one
{
	my $name = 'gone' . ++$dropped;
	return 0 if !dead_letters($name, 1);
	ask("SELECT outbox.drop_endpoint('$name', discard => true)");
	return wait_sql($node, "SELECT count(*) = 0 FROM outbox.parked JOIN outbox.all_events e USING (seq) WHERE e.topic = '$name.n'");
}

ok(dead_letters('many', 3000), 'many dead letters');
ask("SELECT outbox.set_retention(events => '2 s')");
ok(wait_sql($node, 'SELECT (SELECT count(*) FROM outbox.kept_events) = 3000 AND NOT EXISTS (SELECT FROM outbox.events)'), 'their events are kept as copies only');
ask("SELECT outbox.set_retention(events => '1 h')");
ask("CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END'");
ask('CREATE TRIGGER slow BEFORE DELETE ON outbox.kept_events FOR EACH STATEMENT EXECUTE FUNCTION public.slow()');
drop_one() foreach 1 .. 3;
$piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
ask("SELECT outbox.set_retention(events => '2 s')");
ok((wait_until { drop_one() && ask("SELECT piece <> $piece FROM outbox.pieces WHERE log = 'events'") eq 't' } 'the next piece'), 'while endpoints are dropped, a piece of the log is emptied');
ask('DROP TRIGGER slow ON outbox.kept_events');
ok(wait_sql($node, "SELECT count(*) = 3000 AND bool_and(topic = 'many.n') FROM outbox.kept_events"), 'and the copies of what was dropped go')
  or diag ask('SELECT topic, count(*) FROM outbox.kept_events GROUP BY 1');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');

$node->stop;
done_testing();
