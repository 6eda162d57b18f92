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
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');

$node->stop;
done_testing();
