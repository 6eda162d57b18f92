# A role that takes every lock for which the server has room does not end the worker.
# What was delivered meanwhile is not sent again.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_connections = 20\noutbox.settle_interval = '1s'\n");
my $receiver = OutboxTest::Receiver->new('main');

ask('CREATE ROLE least LOGIN');
endpoint($node, $receiver, 'well', '/ok/well', "topics => '{well.*}'");
$receiver->wait_delivered(1, id => emit($node, 'well.first', '{}'));
wait_settled($node);

# Locks of a session stay after the error that there is no room for more
my $worker = worker_pid($node);
my $taker = $node->background_psql('postgres', extra_params => [ '-U', 'least' ], on_error_stop => 0);
$receiver->control(path => '/ok/well', behave => '/hold');
my $id = emit($node, 'well.second', '{}');
$receiver->wait_for(1, id => $id);
$taker->query('SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1000000) n');
$receiver->control(path => '/ok/well', behave => '/ok');
$receiver->wait_delivered(1, id => $id);
ok(wait_until(sub { slurp_file($node->logfile) =~ /WARNING:  outbox step "settle" failed and is on hold for \d+ s: out of shared memory/ }, 'a settle fails'),
	'an outcome cannot be written');
$taker->quit;
ok(wait_until(sub { $node->psql('postgres', 'SELECT 1') == 0 }, 'there is room'), 'the locks are gone');
wait_settled($node);
is(worker_pid($node), $worker, 'it is the same worker');
is(scalar(() = $receiver->requests(id => $id)), 1, 'and the event was sent once');
$node->stop;
done_testing();
