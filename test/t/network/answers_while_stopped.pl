# A receiver that answers while the worker is held up has not failed.
# The disk or the machine may hold a worker up until after the timeout of its requests.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# Failures of 30 events in a row would open a breaker, and each of them is dead at once.
my $settings = "timeout => '10 s', max_attempts => 1";
endpoint($node, $receiver, 'well', '/hold/well', "topics => '{well}', $settings, max_in_flight => 30");
endpoint($node, $receiver, 'batches', '/hold/batches', "topics => '{batches}', $settings, max_in_flight => 3, batch_size => 10");
endpoint($node, $receiver, 'hangs', '/hang/hangs', "topics => '{hangs}', $settings");
my $worker = worker_pid($node);
ask("SELECT count(outbox.emit(t, '{}')) FROM unnest('{well,batches}'::text[]) t, generate_series(1, 30) UNION ALL SELECT count(outbox.emit('hangs', '{}'))");
$receiver->wait_for(30, path => '/hold/well');
$receiver->wait_for(3, path => '/hold/batches');
$receiver->wait_for(1, path => '/hang/hangs');
kill 'STOP', $worker;
foreach my $path ('/hold/well', '/hold/batches')
{
	$receiver->control(path => $path, behave => '/ok');
}
sleep 13;    # longer than the timeout
kill 'CONT', $worker;

ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.stats WHERE endpoint IN ('well', 'batches') AND delivered + dead = 30"), 'all have ended');
is(ask("SELECT string_agg(concat_ws(' ', endpoint, delivered, failed_attempts, state), ', ' ORDER BY endpoint) FROM outbox.stats WHERE endpoint <> 'hangs'"),
	'batches 30 0 active, well 30 0 active', 'nothing has failed');
is(ask("SELECT sum(value) FROM outbox.metrics() WHERE name = 'outbox_breaker_openings_total'"), '0', 'no breaker has opened');
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.attempts WHERE endpoint = '$_' AND error ~ '^the worker was held up'"), "$_: requests that were sent again are recorded")
  foreach qw(well batches);

ok(wait_sql($node, "SELECT dead = 1 AND failed_attempts = 1 FROM outbox.stats WHERE endpoint = 'hangs'"), 'a receiver that hangs has failed all the same');
is(worker_pid($node), $worker, 'it is the same worker');
$node->stop;
done_testing();
