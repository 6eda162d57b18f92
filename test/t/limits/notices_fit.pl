# A notice fits into outbox.max_payload_size, however many deliveries die together.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.max_payload_size = 1024\noutbox.settle_interval = 1000\n");
my $receiver = OutboxTest::Receiver->new('main');
my $name = 'dead';

endpoint($node, $receiver, $name, '/hold/dead', "topics => '{dead.*}', max_attempts => 1, max_in_flight => 50");
endpoint($node, $receiver, 'told', '/ok/told', "topics => '{outbox.dead}'");
ask("SELECT count(outbox.emit('dead.n', jsonb_build_object('n', n))) FROM generate_series(1, 30) n");

# All are in flight, so that a backoff keeps none back
$receiver->wait_for(30, path => '/hold/dead');
$receiver->control(path => '/hold/dead', behave => '/status/500');
ok(wait_sql($node, 'SELECT count(*) = 30 FROM outbox.dead_letters'), 'all are dead');
is(scalar(() = $receiver->requests(path => '/hold/dead')), 30, 'each was sent once');
ok(wait_sql($node, "SELECT sum((payload->>'count')::int) = 30 FROM outbox.events WHERE topic = 'outbox.dead'"), 'all are told');
my ($size, $named) = split /\|/,
  ask("SELECT max(length(payload::text)), max(jsonb_array_length(payload->'events')) FROM outbox.events WHERE topic = 'outbox.dead'");
cmp_ok($size, '<=', 1024, 'in no more bytes than an event may have');
cmp_ok($size, '>', 900, 'and not many less');
cmp_ok($named, '>', 5, 'as many as fit are named');
$receiver->wait_delivered(1, path => '/ok/told');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended');
is(ask('SELECT count(*) FROM outbox.held_steps'), '0', 'nothing is on hold');
$node->stop;
done_testing();
