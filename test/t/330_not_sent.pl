# A connection that fails costs one attempt, and each request that a receiver saw is recorded.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
$ENV{CONNECTIONS_CERT} = "$dir/good.crt";
$ENV{CONNECTIONS_KEY} = "$dir/good.key";
my $hostile = start_hostile('connections');
my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\n");

sub ask { return $node->safe_psql('postgres', $_[0]) }

# An endpoint whose events are dead after one failure, and so many events for it at once
sub deliver
{
	my ($name, $url, $n, $more) = @_;

	ask("SELECT outbox.create_endpoint('$name', '$url', topics => '{$name}', max_attempts => 1,"
		  . " backoff_base => '10 ms', backoff_max => '50 ms'" . ($more // '') . ")");
	emit_at_once($node, $name, $n, 'n::text');
	return wait_sql($node, "SELECT count(*) = $n FROM outbox.deliveries WHERE endpoint = '$name' AND status IN ('delivered', 'dead')");
}

sub plain { return "http://localhost:$hostile->{port}{$_[0]}/$_[0]" }
sub secure { return "https://localhost:$hostile->{port}{$_[0]}/$_[0]" }
sub dead { return ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = '$_[0]' AND status = 'dead'") }
sub rows { return ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = '$_[0]'") }
sub saw { return scalar(() = lines_of($hostile->{journal}, qr/^$_[0]\tsaw/)) }

# One connection is reset, while 31 requests wait for it
ok(deliver('reset', secure('reset'), 100), 'the first connection is reset');
is(dead('reset'), '1', 'of the requests that wait for a connection one has failed with it');
is(saw('reset'), '99', 'the others are sent');
is(rows('reset'), '100', 'each at its first attempt');
is(ask("SELECT value FROM outbox.metrics() WHERE name = 'outbox_breaker_openings_total'"), '0', 'and the endpoint was never stopped');
$node->stop;
done_testing();
