# A wait that a receiver asked for with Retry-After is not shortened by a probe of before.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The worker sends before it can carry out the probe of resume_endpoint(), which is set aside.
endpoint($node, $receiver, 'busy', '/ok/busy', "topics => '{busy}'");
$receiver->control(path => '/ok/busy', behave => '/flaky?first=1&status=429&retry_after=5');
ask("SELECT outbox.pause_endpoint('busy')");
ok(wait_sql($node, "SELECT state = 'paused' FROM outbox.stats WHERE endpoint = 'busy'"), 'it is paused');
emit($node, 'busy', '{}');
my $worker = worker_pid($node);
kill 'STOP', $worker;
ask("SELECT outbox.resume_endpoint('busy')");
my $lock = $node->background_psql('postgres', on_error_stop => 1);
$lock->query_safe('BEGIN; SELECT action FROM outbox.commands FOR KEY SHARE');
kill 'CONT', $worker;
$receiver->wait_for(1, path => '/ok/busy');
ok(wait_sql($node, "SELECT retrying = 1 FROM outbox.stats WHERE endpoint = 'busy'"), 'the receiver asks for a rest');
ok(wait_sql($node, "SELECT action = 'probe' AND retry_at IS NOT NULL FROM outbox.commands"), 'the probe is set aside');
$lock->query_safe('COMMIT');
$lock->quit;
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'now it is');
$receiver->wait_for(2, path => '/ok/busy');
my @busy = $receiver->requests(path => '/ok/busy');
cmp_ok($busy[1]{wall} - $busy[0]{wall}, '>', 4.9, 'the second request does not come earlier than asked for');

# One that is asked for while it rests is carried out.
$receiver->control(path => '/ok/busy', behave => '/flaky?first=1&status=429&retry_after=600');
emit($node, 'busy', '{}');
ok(wait_sql($node, "SELECT retrying = 1 FROM outbox.stats WHERE endpoint = 'busy'"), 'it asks for a long rest');
ask("SELECT outbox.resume_endpoint('busy')");
ok(wait_sql($node, "SELECT delivered = 2 FROM outbox.stats WHERE endpoint = 'busy'"), 'the operator ends it');
$node->stop;
done_testing();
