# outbox.deliveries says processing only where a request is in flight, and what was delivered stays delivered.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my ($slow, $fast) = map { $receiver->url($_) } '/slow/a?ms=2500', '/ok/b';

sub ask { return $node->safe_psql('postgres', $_[0]) }
sub statuses { return ask("SELECT string_agg(status, ',' ORDER BY seq) FROM outbox.deliveries WHERE endpoint = '$_[0]'") }

# --- Events that wait behind their key, at an endpoint that is paused

ask("SELECT outbox.create_endpoint('a', '$slow', topics => '{order.*}'), outbox.create_endpoint('b', '$fast', topics => '{none}')");
ask("SELECT outbox.emit('order.a', '{}', key => 'k') FROM generate_series(1, 3)");
ok(wait_sql($node, "SELECT processing = 1 FROM outbox.stats WHERE endpoint = 'a'"), 'the first of its key is in flight');
ok(wait_sql($node, "SELECT count(*) = 3 FROM outbox.deliveries WHERE endpoint = 'a' AND status = 'processing'"), 'all were read');
ask("SELECT outbox.pause_endpoint('a')");
ok(wait_sql($node, "SELECT processing = 0 AND delivered = 1 FROM outbox.stats WHERE endpoint = 'a'"), 'paused, and the request is answered');
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE endpoint = 'a' ORDER BY seq LIMIT 1"), 'one is delivered');
is(statuses('a'), 'delivered,pending,pending', 'the others are pending, as the stats say');
ask("SELECT outbox.resume_endpoint('a')");
$receiver->wait_delivered(3, path => '/slow/a');
ok(wait_settled($node), 'settled');
is(statuses('a'), 'delivered,delivered,delivered', 'resumed');

# --- A test event and a seek

ask("SELECT outbox.send_test('b')");
$receiver->wait_delivered(1, path => '/ok/b');
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE endpoint = 'b'"), 'a test event');
ask("SELECT outbox.pause_endpoint('b'), outbox.seek_endpoint('b', 'beginning')");
is(statuses('b'), 'delivered', 'stays delivered after a seek');

done_testing();
