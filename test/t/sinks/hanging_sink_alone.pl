# A sink that hangs holds up no other endpoint, and gets everything in order when it goes on.
# The stand-in of a queue of AWS is stopped under load, for several timeouts, and with "make clients"
# for 90 s and with the timeout that is the default.  A webhook and another queue go on.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Aws;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();
my ($least, $timeout) = $ENV{OUTBOX_TEST_CLIENTS} ? (90, 15) : (0, 1);
my $in_flight = 20;
my %aws = map { $_ => OutboxTest::Aws->new } qw(hung other);
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';

endpoint($node, $receiver, 'web', '/ok/web');
ask('SELECT ' . $aws{$_}->create_endpoint($_, 'sqs', "$_.fifo", "max_in_flight => $in_flight, timeout => '@{[ $_ eq 'hung' ? $timeout : 15 ]} s', backoff_base => '100 ms', backoff_max => '1 s'"))
  foreach sort keys %aws;
my $producer = start_producer($node, $log, rate => 100, keys => 10);
endpoint_shows($node, $_, 'delivered > 50', "$_ gets events") foreach qw(hung other web);

my $stopped = time;
$aws{hung}->signal('STOP');
endpoint_shows($node, 'hung', "state = 'backing_off' AND reason = 'SQS: timed out' AND failed_attempts >= 3", 'what hangs is named');
wait_until { time - $stopped >= $least } 'it hangs for long enough', 2 * $least + 10;
foreach my $endpoint (qw(other web))
{
	my $before = stat_of($node, $endpoint, 'delivered');
	endpoint_shows($node, $endpoint, "delivered > $before + 200", "$endpoint goes on");
	is(stat_of($node, $endpoint, 'failed_attempts'), 0, 'and none of its attempts has failed');
}
ok(stat_of($node, 'hung', 'processing') <= 1, 'what hangs is asked with one request at a time');
$aws{hung}->signal('CONT');
endpoint_shows($node, 'hung', "state = 'active' AND reason IS NULL", 'it goes on');

# What was sent while it was stopped may have been stored then, or later.
my $sent = $in_flight * (2 + int((time - $stopped) / $timeout));
stop_producer($producer);
$aws{hung}->check($node, $log, 'hung.fifo', max_duplicates => $sent, name => 'the queue that was stopped: nothing is lost, and each key is in order');
$aws{other}->check($node, $log, 'other.fifo', name => 'the other: nothing is lost or stored twice, and each key is in order');
check_history($node, $receiver, $log, endpoints => ['/ok/web'], name => 'the webhook: nothing is lost or sent twice, and each key is in order');
is(stat_of($node, 'hung', 'dead'), 0, 'nothing is dead');
is(ask('SELECT restarts FROM outbox.workers'), 0, 'the worker has lived through all of it');
$node->stop;
done_testing();
