# A connection that fails costs one attempt, and each request that a receiver saw is recorded.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
$ENV{CONNECTIONS_CERT} = "$dir/good.crt";
$ENV{CONNECTIONS_KEY} = "$dir/good.key";
my $hostile = start_hostile('connections');
my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\n");

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

# The second request on each connection is read, and gets no answer
foreach my $name ('second', 'batch')
{
	my $batch = $name eq 'batch';
	my $url = $batch ? plain('second') : plain($name);
	my $before = saw('second');

	ok(deliver($name, $url, 200, $batch ? ', batch_size => 2, max_in_flight => 4' : ''), "$name: connections end before the answer");
	is(dead($name), '0', 'no event is dead of that');
	my $saw = saw('second') - $before;
	my $requests = $batch ? q{count(DISTINCT (started_at, attempt))} : 'count(*)';
	ok(wait_sql($node, "SELECT count(*) = 200 FROM outbox.attempts WHERE endpoint = '$name' AND error IS NULL"), 'all are recorded');
	is(ask("SELECT $requests FROM outbox.attempts WHERE endpoint = '$name'"), $saw, 'each request that the receiver saw is recorded');
	cmp_ok(rows($name), '>', 200, 'also those that were lost');
	is(ask("SELECT string_agg(DISTINCT error, '; ') FROM outbox.attempts WHERE endpoint = '$name'"),
		'the connection was closed before the answer, and it was sent again', 'with the reason');
	is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = '$name'"), '0', 'no attempt has failed');
}

# What was not even read
ok(deliver('unread', plain('unread'), 100), 'connections are reset before the request is read');
is(dead('unread'), '0', 'no event is dead of that');

# Streams that the receiver has not processed
foreach my $name (qw(goaway refused))
{
	ok(deliver($name, secure($name), 100, q(, config => '{"http_version": "2"}')), "$name: streams are not processed");
	cmp_ok(dead($name), '<=', $name eq 'goaway' ? 1 : 0, 'of streams that followed another one none has failed');
	is(ask("SELECT max(attempt) FROM outbox.attempts WHERE endpoint = '$name'"), '1', 'each is delivered at its first attempt');
}

# A receiver that refuses all of them for a while
append_to_file("$hostile->{journal}.busy", '');
ask(q{SELECT outbox.create_endpoint('busy', '} . secure('busy') . q{', topics => '{busy}', max_attempts => 1, config => '{"http_version": "2"}')});
ask("SELECT count(outbox.emit('busy', '{}')) FROM generate_series(1, 20)");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.stats WHERE endpoint = 'busy' AND reason = 'the receiver refuses streams of HTTP/2'"),
	'streams are refused: outbox.stats says so');
my ($since, $had) = (time, scalar(lines_of($hostile->{journal}, qr/^busy\trefused/)));
wait_until { time - $since >= 3 && lines_of($hostile->{journal}, qr/^busy\trefused/) >= $had + 40 } 'it is asked again';
cmp_ok(lines_of($hostile->{journal}, qr/^busy\trefused/) - $had, '<=', 40 + 150 * (time - $since), 'but not without a pause');
unlink "$hostile->{journal}.busy";
ok(wait_sql($node, "SELECT count(*) FILTER (WHERE status = 'delivered') = 20 FROM outbox.deliveries WHERE endpoint = 'busy'"),
	'none is dead, and all are delivered when they are taken');
$node->stop;
done_testing();
