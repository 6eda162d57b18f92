# Events of a topic that a receiver refuses do not keep back other topics.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Autovacuum would write WAL.
my $node = outbox_node('main', conf => "autovacuum = off\n");
my $receiver = OutboxTest::Receiver->new('main');

# The receiver refuses what has the number 7.
sub make
{
	my ($name, $status, $more) = @_;
	endpoint($node, $receiver, $name, "/poison/$name?n=7&how=$status", "topics => '{$name.*}', max_in_flight => 4" . ($more // ''));
	return;
}

sub emit_some
{
	my ($topic, $n, $count, $key) = @_;
	$key = $key ? ", key => '$key'" : '';
	return "SELECT count(outbox.emit('$topic', '{\"n\": $n}'$key)) FROM generate_series(1, $count);";
}

sub openings
{
	my ($name) = @_;
	return scalar(() = slurp_file($node->logfile) =~ /endpoint "$name" is backing off/g);
}


# Behind many that are refused, others are found: one of them is the second probe.
foreach my $status (400, 409, 413, 415, 422)
{
	my $name = "e$status";
	make($name, $status);
	ask('BEGIN;' . emit_some("$name.refused", 7, 120) . emit_some("$name.taken", 1, 50) . 'COMMIT');
	ok($receiver->wait_delivered(50, path => "/poison/$name"), "$status: 50 behind 120 that are refused");
	ok(wait_sql($node, "SELECT (state, reason) = ('active', 'the receiver refuses the topic $name.refused') FROM outbox.stats WHERE endpoint = '$name'"),
		"$status: it is said which topic is refused");
	is(openings($name), 1, "$status: the breaker opened once");
}
my $first = (grep { $_->{status} == 200 } $receiver->requests(path => '/poison/e400'))[0];
my $before = grep { $_->{request} < $first->{request} } $receiver->requests(path => '/poison/e400');
cmp_ok($before, '<', 40, "the first of them is sent after a few that were refused: $before");

# Later they are the topic's, and the breaker stays closed.
ask(emit_some('e400.refused', 7, 500) . emit_some('e400.taken', 1, 50));
ok($receiver->wait_delivered(100, path => '/poison/e400'), 'and 50 behind 500 more');
is(openings('e400'), 1, 'the breaker stays closed');

# The receiver takes the topic, too.
$receiver->control(path => '/poison/e400', behave => '/ok');
ask("SELECT outbox.resume_endpoint('e400'); SELECT outbox.retry('e400')");
ok(wait_sql($node, "SELECT reason IS NULL FROM outbox.stats WHERE endpoint = 'e400'"), 'nothing is refused any more');

# A topic that is refused by a receiver which takes others is held.  Nothing of it is sent but probes.
foreach my $batch (1, 10)
{
	my $name = "held$batch";
	my $refused = sub { return scalar(grep { ($_->{status} // 0) == 400 } $receiver->requests(path => "/poison/$name")) };
	make($name, 400, ", batch_size => $batch, backoff_base => '1 h', backoff_max => '1 h'");
	ask(emit_some("$name.taken", 1, 1));
	ok($receiver->wait_delivered(1, path => "/poison/$name"), "$name: it takes an event");
	foreach my $n (1 .. 20)
	{
		emit($node, "$name.refused", '{"n": 7}');
		wait_until { $refused->() == $n };
	}
	ok(wait_sql($node, "SELECT reason = 'the receiver refuses the topic $name.refused' FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: a topic is refused");
	is(openings($name), 0, "$name: the breaker stays closed");
	ask(emit_some("$name.refused", 7, 300) . emit_some("$name.taken", 3, 50));
	ok(wait_sql($node, "SELECT delivered = 51 AND pending = 0 AND processing = 0 FROM outbox.stats WHERE endpoint = '$name'"), "$name: others are delivered");
	is($refused->(), 20, "$name: refused ones are not sent");
	ask("SELECT outbox.resume_endpoint('$name')");
	ok(wait_until { $refused->() > 20 }, "$name: an operator sends a probe");
	# Only now events with a key: the key would wait behind that probe.
	ask(emit_some("$name.refused", 7, 300, 'k') . emit_some("$name.taken", 2, 5, 'k') . emit_some("$name.refused", 7, 100) . emit_some("$name.taken", 4, 50));
	ok(wait_sql($node, "SELECT delivered = 101 AND pending = 0 AND processing = 0 FROM outbox.stats WHERE endpoint = '$name'"), "$name: others go on");
	is($refused->(), 21, "$name: one probe and no more");

	# One that is taken lets all go that were not tried, in their order.
	$receiver->control(path => "/poison/$name", behave => '/ok');
	ask("SELECT outbox.resume_endpoint('$name')");
	ok(wait_sql($node, "SELECT reason IS NULL AND pending + processing + blocked = 0 AND delivered >= 806 - 21 FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: a success frees the topic at once");
	my $order = join '', map { $_->{topic} =~ /taken/ ? 't' : 'r' } grep { ($_->{key} // '') eq 'k' } map { $_->{batch} ? @{ $_->{batch} } : $_ }
	  grep { ($_->{status} // 0) == 200 } $receiver->requests(path => "/poison/$name");
	is($order, 'r' x 300 . 't' x 5, "$name: in the order of the key");
}

# What is held is dead in the end, but not before it was sent.
make('aged', 400, ", backoff_base => '1 h', backoff_max => '1 h', max_age => '3 s'");
ask(emit_some('aged.taken', 1, 1));
ok($receiver->wait_delivered(1, path => '/poison/aged'), 'aged: it takes an event');
ask(emit_some('aged.refused', 7, 40));
ok(wait_sql($node, "SELECT dead = 40 FROM outbox.stats WHERE endpoint = 'aged'"), 'aged: all are dead');
my %sent = map { $_->{id} => 1 } grep { $_->{status} == 400 } $receiver->requests(path => '/poison/aged');
is(scalar(keys %sent), 40, 'aged: each was sent');
is(openings('aged'), 0, 'aged: the breaker stays closed');
ok(wait_sql($node, "SELECT reason IS NULL FROM outbox.stats WHERE endpoint = 'aged'"), 'aged: nothing is said of a topic of which nothing waits');

# A receiver that refuses everything gets no more requests than one that is down, and has no more rows.
foreach my $status (400, 404)
{
	my $name = "none$status";
	make($name, $status, ", backoff_base => '1 h', backoff_max => '1 h'");
	ask("SELECT outbox.pause_endpoint('$name')");
	ask(join '', map { emit_some("$name.$_", 7, 1000) } 1 .. 6);
	ok(wait_sql($node, "SELECT pending = 6000 AND pending_exact FROM outbox.stats WHERE endpoint = '$name'"), "$name: all wait");
	my $begin = ask('SELECT pg_current_wal_insert_lsn()');
	ask("SELECT outbox.resume_endpoint('$name')");
	ok(wait_sql($node, "SELECT state = 'backing_off' AND processing = 0 AND retrying BETWEEN 20 AND 23 AND dead + blocked = 0 FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: few rows");
	my $written = ask("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$begin')::int8");
	cmp_ok($written, '<', 500_000, "$name: few bytes of WAL: $written");
	cmp_ok(scalar(() = $receiver->requests(path => "/poison/$name")), '<=', 23, "$name: few requests");
}

# What waits behind a refused event of its key is not sent before it.
make('key', 400);
ask('BEGIN;' . emit_some('key.refused', 7, 60, 'k') . emit_some('key.refused', 7, 60) . emit_some('key.taken', 1, 5, 'k') . emit_some('key.taken', 2, 5) . 'COMMIT');
ok($receiver->wait_delivered(5, path => '/poison/key'), 'others are delivered');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'key' AND topic = 'key.taken' AND key = 'k' AND status = 'delivered'"), 0,
	'and none behind one of its key that is refused');

# A status that is about the endpoint opens the breaker again and again.
make('e404', 404, ", backoff_base => '1 ms', backoff_max => '1 ms'");
ask('BEGIN;' . emit_some('e404.refused', 7, 60) . emit_some('e404.taken', 1, 5) . 'COMMIT');
ok($receiver->wait_delivered(5, path => '/poison/e404'), '404: delivered in the end');
is(scalar(grep { $_->{topic} eq 'e404.refused' } $receiver->requests(path => '/poison/e404')) >= 60 ? 'all' : 'some', 'all', '404: each before it was sent first');

$node->stop;
done_testing();
