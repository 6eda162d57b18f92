# Events behind a parked one that is gone do not overtake others of their key, and do not wait for it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $path = '/status/500/gone';

# Events with these numbers and one key, in one transaction
sub emit_numbers
{
	my ($from, $to) = @_;
	return split /\n/,
	  ask("SELECT outbox.emit('gone.n', jsonb_build_object('n', n), key => 'k') FROM generate_series($from, $to) n");
}

sub shows
{
	my ($condition, $name) = @_;

	ok(wait_sql($node, "SELECT $condition FROM outbox.stats WHERE endpoint = 'gone'"), $name)
	  or diag ask("SELECT pending, processing, retrying, blocked, dead FROM outbox.stats WHERE endpoint = 'gone'");
	return;
}

# The first one fails once.  While it is sent again, the event of the next one is removed, and one
# more comes.  That one waits in memory, because nothing blocks the key at that time.
endpoint($node, $receiver, 'gone', $path, "topics => '{gone.*}', backoff_base => '50 ms', backoff_max => '50 ms', timeout => '5 min'");
my @ids = emit_numbers(1, 4);
shows('blocked = 3', 'three are parked behind the first');
$receiver->control(path => $path, behave => '/hold');
shows('processing = 1', 'the first is sent again');
ask("DELETE FROM outbox.events WHERE id = '$ids[1]'");
push @ids, emit_numbers(5, 5);
shows('pending = 1 AND blocked = 3', 'one more waits in memory');
$receiver->control(path => $path, behave => '/ok');
$receiver->wait_delivered(1, id => $_) foreach @ids[ 0, 2 .. 4 ];
is_deeply([ map { JSON::PP::decode_json($_->{body})->{data}{n} } $receiver->delivered(path => $path) ],
	[ 1, 3, 4, 5 ], 'the others come in their order');
shows("dead = 1 AND pending + processing + retrying + blocked = 0 AND EXISTS (SELECT FROM outbox.parked WHERE status = 'dead')", 'the one that is gone is dead');
is(ask('SELECT seq, status, reason FROM outbox.parked'), '2|dead|event is gone', 'and its row says so');

# The event of a dead head is removed, and the head is to be sent again: it blocks its key no longer
endpoint($node, $receiver, 'head', '/status/500/head', "topics => '{head.*}', on_exhausted => 'block', max_attempts => 1");
my ($head, $next) = split /\n/, ask("SELECT outbox.emit('head.n', '{}', key => 'k') FROM generate_series(1, 2)");
wait_status($node, $head, 'dead', 'a dead head');
wait_status($node, $next, 'blocked', 'blocks its key');
ask("DELETE FROM outbox.events WHERE id = '$head'");
$receiver->control(path => '/status/500/head', behave => '/ok');
is(ask("SELECT outbox.retry('head')"), 1, 'it is to be sent again');
wait_status($node, $next, 'delivered', 'as it is gone, the next one is sent');

$node->stop;
done_testing();
