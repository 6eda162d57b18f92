# A test event that was delivered stays delivered in outbox.deliveries, also after a seek.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $fast = $receiver->url('/ok/b');

sub statuses { return ask("SELECT string_agg(status, ',' ORDER BY seq) FROM outbox.deliveries WHERE endpoint = '$_[0]'") }

ask("SELECT outbox.create_endpoint('b', '$fast', topics => '{none}')");
ask("SELECT outbox.send_test('b')");
$receiver->wait_delivered(1, path => '/ok/b');
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE endpoint = 'b'"), 'a test event');
ask("SELECT outbox.pause_endpoint('b'), outbox.seek_endpoint('b', 'beginning')");
is(statuses('b'), 'delivered', 'stays delivered after a seek');

done_testing();
