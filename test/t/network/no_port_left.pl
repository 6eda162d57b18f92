# A lack of local ports is no failure of a receiver, over IPv4 and over IPv6.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

own_network('echo 40000 40019 > /proc/sys/net/ipv4/ip_local_port_range');

my $endpoints = 3;
my $each = 40;
my $all = $endpoints * $each;
my $node = outbox_node('main', conf => "outbox.allowed_networks = '127.0.0.0/8, ::1/128'\n");

foreach my $v (4, 6)
{
	my $receiver = OutboxTest::Receiver->new("v$v", ipv6 => $v == 6);

	ask("SELECT count(outbox.create_endpoint('v$v-' || n, '" . $receiver->url("/slow/v$v") . "-' || n || '?ms=100', topics => '{v$v}', max_attempts => 1)) FROM generate_series(1, $endpoints) n");
	ask("SELECT count(outbox.emit('v$v', '{}')) FROM generate_series(1, $each)");
	ok( wait_sql($node,
			"SELECT count(*) = $all FROM outbox.deliveries WHERE endpoint ~ '^v$v' AND status IN ('delivered', 'dead')"), "IPv$v: all events are done");
	is(ask("SELECT string_agg(DISTINCT error, '; ') FROM outbox.attempts WHERE endpoint ~ '^v$v'"), '', 'no attempt has failed');
	is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint ~ '^v$v'"), $all, 'each event took one');
}
$node->stop;
done_testing();
