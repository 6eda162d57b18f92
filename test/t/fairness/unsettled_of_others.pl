# While many deliveries of one endpoint have ended and cannot be settled, another endpoint sends.
use strict;
use warnings;

use OutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = outbox_node('main', conf => "outbox.worker_max_in_flight = 16\n");
my $receiver = OutboxTest::Receiver->new('main');
my $many = 8000;
my $few = 50;

sub requests_of
{
	my ($name) = @_;
	return scalar(() = $receiver->requests(path => "/slow/$name"));
}

endpoint($node, $receiver, $_, "/slow/$_?ms=10", "topics => '{$_.*}'") foreach qw(busy other);
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN');
ask("SELECT count(outbox.emit('busy.n', '{}')) FROM generate_series(1, $many)");
$receiver->wait_for(1, path => '/slow/busy');
$locker->query_safe('LOCK TABLE outbox.positions IN SHARE MODE');
my ($n, $before) = (0, -1);
while ($n > $before || ask('SELECT in_flight > 0 FROM outbox.workers') eq 't')
{
	$before = $n;
	usleep(1_500_000);
	$n = requests_of('busy');
}
cmp_ok($n, '<', $many, "the busy endpoint sends no more, after $n");

ask("SELECT count(outbox.emit('other.n', '{}')) FROM generate_series(1, $few)");
$receiver->wait_delivered($few, path => '/slow/other');
pass('the other one sends all that it has');
is(requests_of('busy'), $n, 'meanwhile the busy one waits');

$locker->query_safe('COMMIT');
$locker->quit;
$receiver->wait_delivered($many, path => '/slow/busy');
ok(wait_settled($node), 'released: everything goes on');
is(requests_of('busy') + requests_of('other'), $many + $few, 'each once');
$node->stop;
done_testing();
