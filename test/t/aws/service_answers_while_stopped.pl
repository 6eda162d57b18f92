# A service that answers while the worker is held up has not failed.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Aws;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();
my $aws = OutboxTest::Aws->new;
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");

ask('SELECT ' . $aws->create_endpoint($_, 'sqs', $_, "topics => '{$_}', timeout => '10 s', max_attempts => 1")) foreach qw(well hangs);
$aws->tell(rules => [ { with => 'slow', late => 6, times => 1 }, { with => 'never', hang => 60, times => 1 } ]);
emit($node, 'well', '{"is": "slow"}');
wait_until { $aws->requests('well') == 1 } 'a request is under way';
emit($node, 'hangs', '{"is": "never"}');
wait_until { $aws->requests('hangs') == 1 } 'and one that is never answered';
my $worker = worker_pid($node);
kill 'STOP', $worker;
sleep 13;    # longer than the timeout
kill 'CONT', $worker;

endpoint_shows($node, 'well', "delivered = 1 AND dead = 0 AND failed_attempts = 0 AND state = 'active'", 'what the service answered meanwhile is delivered');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.attempts WHERE endpoint = 'well' AND error ~ '^the worker was held up'"), 'the request that was sent again is recorded');
endpoint_shows($node, 'hangs', 'delivered = 1 AND failed_attempts = 0', 'one that hung is sent again, too');

$aws->tell(rules => [ { with => 'never', hang => 60, times => 1 } ]);
emit($node, 'hangs', '{"is": "never"}');
endpoint_shows($node, 'hangs', "dead = 1 AND last_error = 'SQS: timed out'", 'where the worker could have read, it has failed');
is(worker_pid($node), $worker, 'it is the same worker');
$node->stop;
done_testing();
