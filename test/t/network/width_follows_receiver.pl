# A slow receiver gets many requests at a time, and a fast one few: where connections are scarce, one.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant IN_FLIGHT => 150;
use constant BURST => 20; # events of one endpoint at once

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

$receiver->control(path => '/ok/far', behave => '/hold');
endpoint($node, $receiver, 'far', '/ok/far', "topics => '{far}', max_in_flight => " . IN_FLIGHT . ", timeout => '10 min'");
$node->safe_psql('postgres', "SELECT count(outbox.emit('far', '{}')) FROM generate_series(1, " . 2 * IN_FLIGHT . ')');
ok($receiver->wait_for(IN_FLIGHT, path => '/ok/far'), 'max_in_flight requests, of which none is answered');
ok(wait_sql($node, 'SELECT processing = ' . IN_FLIGHT . " FROM outbox.stats WHERE endpoint = 'far'"), 'no more are on their way');
is(scalar(() = $receiver->requests(path => '/ok/far')), IN_FLIGHT, 'and no more have come');
$receiver->control(path => '/ok/far', behave => '/ok');
ok($receiver->wait_delivered(2 * IN_FLIGHT, path => '/ok/far'), 'then all are delivered');
ok(wait_settled($node), 'and settled');
is($node->safe_psql('postgres', "SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'far'"), 0, 'none has failed');

# What is kept back is not on its way, so a receiver that asks for time gets it.
endpoint($node, $receiver, 'busy', '/status/429?retry_after=300', "topics => '{busy}', max_in_flight => 1000");
$node->safe_psql('postgres', "SELECT count(outbox.emit('busy', '{}')) FROM generate_series(1, 1000)");
ok( wait_sql($node, "SELECT failed_attempts > 0 AND processing = 0 AND next_attempt_at > now() + '1 min' FROM outbox.stats WHERE endpoint = 'busy'"),
	'a receiver that asks for time');
cmp_ok($node->safe_psql('postgres', "SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'busy'"), '<=', 128, 'gets it');

# A few of at most eight connections are there, and more to one host would close the others.
my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:*.many.localhost');
my $front = start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/good.crt", key => "$dir/good.key");
$node->append_conf('postgresql.conf', "outbox.ssl_ca_file = '$dir/authority.crt'\noutbox.worker_max_connections = 8");
$node->restart;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
$node->safe_psql('postgres', "SELECT count(outbox.create_endpoint('many.' || i, 'https://host-' || i || '.many.localhost:$front->{port}/ok/many',"
	  . " topics => ARRAY['many.' || i])) FROM generate_series(1, 5) i");
my $sent = 0;
foreach my $i (1 .. 5)
{
	$node->safe_psql('postgres', "SELECT outbox.emit('many.$i', '{}')");
	$receiver->wait_delivered(++$sent, path => '/ok/many');
}
foreach my $i (map { 1 .. 5 } 1 .. 3)
{
	$node->safe_psql('postgres', "SELECT count(outbox.emit('many.$i', '{}')) FROM generate_series(1, " . BURST . ')');
	$sent += BURST;
	$receiver->wait_delivered($sent, path => '/ok/many');
}
is(scalar(() = $receiver->delivered(path => '/ok/many')), $sent, 'all are delivered');
my $connections = () = lines_of($front->{journal}, qr/^tls /);
note("$sent requests over $connections connections");
cmp_ok($connections, '<', $sent / 2, 'most use a connection that is there');
$node->stop;
done_testing();
