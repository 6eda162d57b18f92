# After a 429 without Retry-After the whole endpoint waits as the delivery does.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = OutboxTest::Receiver->new('main');
my $node = outbox_node('main');

endpoint($node, $receiver, 'busy', '/status/429', "topics => '{busy}', max_in_flight => 1, backoff_base => '1 h', backoff_max => '1 h'");
endpoint($node, $receiver, 'torn', '/status/503', "topics => '{torn}', max_in_flight => 1, backoff_base => '1 h', backoff_max => '1 h'");
endpoint($node, $receiver, 'ok', '/ok/a', "topics => '{ok}'");
ask("SELECT count(outbox.emit('$_', '{}')) FROM generate_series(1, 10)") foreach qw(torn busy);
ok(wait_sql($node, "SELECT count(*) = 10 FROM outbox.attempts WHERE endpoint = 'torn'"), '503: other events are tried');
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.attempts WHERE endpoint = 'busy'"), '429: one is tried');
foreach my $n (1 .. 3)
{
	my $id = emit($node, 'ok', '{}');
	emit($node, 'busy', '{}');
	wait_status($node, $id, 'delivered', 'another endpoint goes on');
}
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = 'busy'"), '1', 'and all others of the endpoint wait');
is(ask("SELECT reason FROM outbox.stats WHERE endpoint = 'busy'"), 'the receiver asked to wait', 'which outbox.stats says');
ask("SELECT outbox.resume_endpoint('busy')");
ok(wait_sql($node, "SELECT count(*) > 1 FROM outbox.attempts WHERE endpoint = 'busy'"), 'an operator need not wait');
$node->stop;
done_testing();
