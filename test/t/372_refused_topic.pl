# Events of a topic that a receiver refuses do not keep back those of other topics.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

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
	ok(wait_sql($node, "SELECT (state, reason) = ('active', 'all events of a topic are refused') FROM outbox.stats WHERE endpoint = '$name'"),
		"$status: it is said why others wait");
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
