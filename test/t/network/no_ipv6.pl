# Without IPv6, an address of it is a failure, though its error is that of a lack of ports.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use Test::More;

own_network(<<'SH');
ip -6 route flush table local
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
SH

my $node = outbox_node('main', conf => "outbox.allowed_networks = '127.0.0.0/8, ::1/128'\n");

ask("SELECT outbox.create_endpoint('far', 'http://[::1]:8080/', max_attempts => 2, backoff_base => '10 ms')");
ask("SELECT outbox.emit('shop.event', '{}')");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.deliveries WHERE status = 'dead'"), 'the event is dead after its attempts');
is( ask("SELECT string_agg(DISTINCT error, '; ') FROM outbox.attempts"),
	'could not connect: Cannot assign requested address', 'which say why');
$node->stop;
done_testing();
