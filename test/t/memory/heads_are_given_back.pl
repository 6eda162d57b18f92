# What libcurl keeps of answers is given back when their requests have ended.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant EVENTS => 2000;
use constant AT_ONCE => 200;    # libcurl keeps 120 kB of each head
use constant MOST => 14;        # MB

my $node = outbox_node('main');
my $hostile = start_hostile('receivers', 'has long heads');
my $worker = worker_pid($node);

ask("SELECT outbox.create_endpoint('one', 'http://127.0.0.1:$hostile->{port}{'has long heads'}/', topics => '{one}', max_in_flight => " . AT_ONCE . ')');
ask(q{SELECT outbox.emit('one', '{}')});
wait_sql($node, q{SELECT delivered = 1 FROM outbox.stats});
my $before = private_memory($worker);
ask(q{SELECT count(outbox.emit('one', '{}')) FROM generate_series(1, } . EVENTS . ')');
ok(wait_sql($node, 'SELECT delivered = 1 + ' . EVENTS . ' FROM outbox.stats'), 'all are delivered');

# A worker that has nothing to do gives nothing back.
my $took;
wait_until {
	ask(q{SELECT outbox.emit('one', '{}')});
	$took = private_memory($worker) - $before;
	$took <= MOST
} 'memory is given back', 30;
cmp_ok($took, '<=', MOST, 'MB that the worker has more');
is(worker_pid($node), $worker, 'in the same process');
$node->stop;
done_testing();
