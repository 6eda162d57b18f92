# A key that is hot or stuck holds up no other key, and its own events stay in order.
# What a dead first event means for its key is tried here, too.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $slowly = "backoff_base => '1 h', backoff_max => '1 h'";

# n events, numbered, of which every one has a key made of its number
sub emit_many
{
	my ($topic, $n, $key) = @_;
	return ask("SELECT count(outbox.emit('$topic', jsonb_build_object('n', n), key => $key))"
		  . " FROM generate_series(1, $n) n");
}

sub numbers
{
	my (%match) = @_;
	return map { JSON::PP::decode_json($_->{body})->{data}{n} } $receiver->delivered(%match);
}

sub status
{
	my ($id) = @_;
	return ask("SELECT string_agg(status || COALESCE(':' || reason, ''), ',') FROM outbox.deliveries WHERE event_id = '$id'");
}

# The receiver gets the next request before the tables show the end of the last one.
sub becomes
{
	my ($id, $status, $name) = @_;
	wait_until { status($id) eq $status } $name;
	return is(status($id), $status, $name);
}

# One key, whose head fails once
endpoint($node, $receiver, 'one', '/ok/one',
	"topics => '{one.*}', backoff_base => '1 s', backoff_max => '1 s'");
$receiver->control(path => '/ok/one', behave => '/status/500');
emit_many('one.n', 200, "'k'");
$receiver->wait_for(1, path => '/ok/one');
$receiver->control(path => '/ok/one', behave => '/ok');
$receiver->wait_delivered(200, path => '/ok/one');
ok(wait_settled($node), 'a failing head: all is settled');
is_deeply([ numbers(path => '/ok/one') ], [ 1 .. 200 ], 'each once, in order');
ok(wait_sql($node, "SELECT (blocked, retrying, pending, dead) = (0, 0, 0, 0) FROM outbox.stats WHERE endpoint = 'one'"),
	'blocked is back to 0');
is(ask('SELECT count(*) FROM outbox.parked'), 0, 'no row is left');

# Several that fail at random
endpoint($node, $receiver, 'some', '/fail/some?rate=0.1',
	"topics => '{some.*}', backoff_base => '10 ms', backoff_max => '50 ms'");
emit_many('some.n', 600, "'k' || n % 6");
$receiver->wait_delivered(600, path => '/fail/some');
ok(wait_settled($node), 'heads that fail at random: all is settled');
is(scalar(() = $receiver->delivered(path => '/fail/some')), 600, 'each once');
foreach my $k (0 .. 5)
{
	my @n = numbers(path => '/fail/some', key => "k$k");
	is_deeply(\@n, [ sort { $a <=> $b } @n ], "key $k in order");
}
ok(wait_sql($node, "SELECT (blocked, retrying) = (0, 0) FROM outbox.stats WHERE endpoint = 'some'"),
	'and nothing is blocked');

# Hot keys and a healthy receiver: nothing is parked
endpoint($node, $receiver, 'hot', '/slow/hot?ms=3', "topics => '{hot.*}'");
emit_many('hot.n', 4800, "'k' || n % 24");
my $most = 0;
while ((() = $receiver->delivered(path => '/slow/hot')) < 4800)
{
	my $parked = ask('SELECT count(*) FROM outbox.parked');
	$most = $parked if $parked > $most;
	usleep(50_000);
}
cmp_ok($most, '<', 100, "24 hot keys: (almost) nothing is parked ($most)");
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->requests(path => '/slow/hot')), 4800, 'no duplicates');

# One hot key holds up no other key
endpoint($node, $receiver, 'dam', '/slow/dam?ms=20', "topics => '{dam.*}'");
emit_many('dam.hot', 10000, "'hot'");
emit_many('dam.other', 100, "'k' || n");
wait_until
{
	100 <= grep { $_->{key} ne 'hot' } $receiver->delivered(path => '/slow/dam')
}
'the other keys';
my @n = numbers(path => '/slow/dam', key => 'hot');
cmp_ok(scalar @n, '<', 1000, 'one hot key with 10,000 events does not delay the others (' . @n . ' before them)');
is_deeply(\@n, [ 1 .. @n ], 'and goes on in order, each once');
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");

# Nor does a key whose head fails again and again, alone: no breaker opens
endpoint($node, $receiver, 'stuck', '/poison/stuck?n=1', "topics => '{stuck.*}', backoff_base => '20 ms', backoff_max => '50 ms'");
ask("SELECT outbox.emit('stuck.hot', '{\"n\": 1}', key => 'hot')");
ok(wait_sql($node, "SELECT failed_attempts >= 12 FROM outbox.stats WHERE endpoint = 'stuck'"), 'a head that fails alone');
ask(q{SELECT count(outbox.emit('stuck.hot', jsonb_build_object('n', n), key => 'hot')) FROM generate_series(2, 3000) n});
my $cold = ask(q{SELECT outbox.emit('stuck.cold', '{"n": 3001}', key => 'cold')});
$receiver->wait_delivered(1, id => $cold);
is(scalar(() = $receiver->delivered(path => '/poison/stuck')), 1, 'another key goes on, behind 3,000 of that one');
ask("SELECT outbox.drop_endpoint('stuck', discard => true)");

# A restart while a head is in flight and its followers are parked
endpoint($node, $receiver, 'head', '/ok/head', "topics => '{head.*}'");
$receiver->control(path => '/ok/head', behave => '/hang');
emit_many('head.n', 600, "'h'");
ok(wait_sql($node, "SELECT blocked > 0 AND processing = 1 FROM outbox.stats WHERE endpoint = 'head'"),
	'a head that hangs: its followers leave memory');
$receiver->control(path => '/ok/head', behave => '/ok');
my $before = worker_pid($node);
ask("SELECT pg_terminate_backend($before)");
new_worker($node, $before);
$receiver->wait_delivered(600, path => '/ok/head');
is_deeply([ numbers(path => '/ok/head') ], [ 1 .. 600 ], 'a restart: it comes before them');
ask("SELECT outbox.drop_endpoint('head', discard => true)");

# One at a time: what comes back together, whose head fails, with keys or without
endpoint($node, $receiver, 'strict', '/ok/strict',
	"topics => '{strict.*}', ordering => 'strict', max_attempts => 1, backoff_base => '100 ms', backoff_max => '100 ms'");
$receiver->control(path => '/ok/strict', behave => '/flaky?first=2');
my @strict = map { emit($node, 'strict.n', "{\"n\": $_}", $_ < 3 ? "key => 'k$_'" : undef) } 1 .. 4;
wait_status($node, $_, 'dead', 'dead') foreach @strict;
ask("SELECT outbox.alter_endpoint('strict', max_attempts => 1000)");
ask("SELECT outbox.retry('strict')");
$receiver->wait_delivered(1, id => $_) foreach @strict;
is_deeply([ numbers(path => '/ok/strict') ], [ 1 .. 4 ], 'strict: all are tried again, in order');
$receiver->control(path => '/ok/strict', behave => '/status/500');
ask("SELECT outbox.alter_endpoint('strict', max_attempts => 1)");
@strict = map { emit($node, 'strict.n', "{\"n\": $_}") } 5 .. 7;
wait_status($node, $_, 'dead', 'dead again') foreach @strict;
ask("SELECT outbox.alter_endpoint('strict', max_attempts => 1000, $slowly)");
ask("SELECT outbox.retry('strict')");
ok(wait_sql($node, "SELECT blocked = 2 FROM outbox.stats WHERE endpoint = 'strict'"), 'blocked without a key')
  or diag(ask("SELECT s::text FROM outbox.stats s WHERE endpoint = 'strict'"), ask('SELECT p::text FROM outbox.parked p'));
$receiver->control(path => '/ok/strict', behave => '/ok');
ask("SELECT outbox.alter_endpoint('strict', ordering => 'key')");
ask("SELECT outbox.retry('strict', '$strict[0]')");
$receiver->wait_delivered(1, id => $_) foreach @strict;
pass('and let go when keys are what counts');
ask("SELECT outbox.drop_endpoint('strict', discard => true)");

# on_exhausted = block
endpoint($node, $receiver, 'block', '/ok/block',
	"topics => '{block.*}', on_exhausted => 'block', max_attempts => 1, filter => '\$.n > 0', $slowly");
my $expired = emit($node, 'block.expired', '{"n": 1}',
	"key => 'e', expires_at => clock_timestamp() - interval '1 s'");
my $after = emit($node, 'block.after', '{"n": 2}', "key => 'e'");
$receiver->wait_delivered(1, id => $after);
becomes($expired, 'dead:expired', 'expired: dead');
my $odd = emit($node, 'block.odd', '{"n": "x"}', "key => 'e'");
$after = emit($node, 'block.after', '{"n": 3}', "key => 'e'");
$receiver->wait_delivered(1, id => $after);
becomes($odd, 'dead:filter failed', 'what was never tried does not block its key');

sub dead_heads
{
	my (@keys) = @_;
	my @ids;

	$receiver->control(path => '/ok/block', behave => '/status/500');
	push @ids, emit($node, 'block.head', '{"n": 1}', "key => '$_'") foreach @keys;
	wait_status($node, $_, 'dead', 'a dead head') foreach @ids;
	$receiver->control(path => '/ok/block', behave => '/ok');
	emit_many('block.behind', 3, "'$_'") foreach @keys;
	ok(wait_sql($node, "SELECT count(*) = 3 * " . @keys . " FROM outbox.deliveries WHERE status = 'blocked'"),
		'its followers are blocked');
	return @ids;
}

my ($retried, $discarded) = dead_heads('retried', 'discarded');
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
nothing_arrives($receiver, 'after a restart, too', 1, path => '/ok/block');
is(scalar(() = $receiver->delivered(key => $_)), 0, "$_: nothing was delivered") foreach qw(retried discarded);
is(ask("SELECT outbox.retry('block', '$retried')"), 1, 'retry() of the head');
$receiver->wait_delivered(4, key => 'retried');
is( join(' ', map { $_->{headers}{'outbox-topic'} =~ s/.*\.//r } $receiver->delivered(key => 'retried')),
	'head behind behind behind', 'it comes first, then its followers');
is(join(' ', numbers(key => 'retried')), '1 1 2 3', 'in order');
is(scalar(() = $receiver->delivered(key => 'discarded')), 0, 'the other key is still blocked');
is(ask("SELECT outbox.discard('block', '$discarded')"), 1, 'discard() of the head');
$receiver->wait_delivered(3, key => 'discarded');
is(join(' ', numbers(key => 'discarded')), '1 2 3', 'its followers go on, in order');
becomes($discarded, 'cancelled:discarded', 'and it is shown as discarded');

my ($skipped) = dead_heads('skipped');
ask("SELECT outbox.alter_endpoint('block', on_exhausted => 'skip')");
$receiver->wait_delivered(3, key => 'skipped');
is(join(' ', numbers(key => 'skipped')), '1 2 3', "altered to 'skip': the key goes on");
is(status($skipped), 'dead:max_attempts', 'the head stays dead');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
