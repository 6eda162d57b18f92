# Answers that cannot be written yet take a bounded part of a worker's memory, also when they are.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'a memory checker needs memory of its own' if $ENV{OUTBOX_MEMORY_CHECKER};

use constant EVENTS => 3000;
use constant MOST => 40;    # MB

my $node = outbox_node('main', conf => "outbox.worker_memory = '16MB'\noutbox.log_attempts = 'answers'\noutbox.log_answer_size = '16kB'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $worker = worker_pid($node);

endpoint($node, $receiver, 'one', '/big-body?bytes=16000', "topics => '{one}'");
my $before = private_memory($worker);
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE outbox.attempt_log IN ACCESS EXCLUSIVE MODE');
ask(q{SELECT count(outbox.emit('one', '{}')) FROM generate_series(1, } . EVENTS . ')');
$receiver->wait_delivered(EVENTS, path => '/big-body');
my $most = private_memory($worker);
ok(wait_sql($node, "SELECT failures > 3 FROM outbox.held_steps WHERE step = 'attempts'"), 'they are on hold, and nothing else is left to settle');
$locker->query_safe('COMMIT');
wait_until
{
	my $now = private_memory($worker);
	$most = $now if $now > $most;
	return ask('SELECT count(*) >= ' . EVENTS . ' FROM outbox.attempts') eq 't';
}
'all attempts are written', 60;
$locker->quit;
note(sprintf 'at most %.0f MB more, %s answers', $most - $before, ask('SELECT count(response_body) FROM outbox.attempts'));
cmp_ok($most - $before, '<=', MOST, 'MB that the worker had more');
is(worker_pid($node), $worker, 'in the same process');
$node->stop;
done_testing();
