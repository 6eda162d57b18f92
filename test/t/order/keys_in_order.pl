# The events of a key arrive in the order of their emits, whatever fails.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '20 ms', backoff_max => '100 ms'";
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my @got;

# Load, with every kind of trouble
endpoint($node, $receiver, 'ok', '/ok/a', $quick);
endpoint($node, $receiver, 'fails', '/fail/b?rate=0.2', $quick);
endpoint($node, $receiver, 'slow', '/slow/c?ms=30', $quick);
endpoint($node, $receiver, 'breaks', '/fail/d?rate=0.3&status=503', $quick);
my $producer =
  start_producer($node, $log, seconds => 4, rate => 400, keys => 8);
stop_producer($producer, 1);
check_history($node, $receiver, $log,
	endpoints => [qw(/ok/a /fail/b /slow/c /fail/d)]);

# A stuck key does not hold others
$node->safe_psql('postgres', "SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");
endpoint($node, $receiver, 'stuck', '/ok/e', "topics => '{stuck.*}', timeout => '1 h', $quick");
$receiver->control(path => '/ok/e', behave => '/hang');
emit($node, 'stuck.first', '{"n": 1}', "key => 'a'");
$receiver->wait_for(1, path => '/ok/e');
$receiver->control(path => '/ok/e', behave => '/ok');
emit($node, 'stuck.second', '{"n": 2}', "key => 'a'");
my $other = emit($node, 'stuck.other', '{"n": 1}', "key => 'b'");
my $free = emit($node, 'stuck.free', '{}');
$receiver->wait_delivered(1, id => $other);
$receiver->wait_delivered(1, id => $free);
is( scalar(
		grep { $_->{headers}{'outbox-topic'} eq 'stuck.second' }
		  $receiver->requests(path => '/ok/e')),
	0,
	'the successor waits while the first request hangs, other keys do not');

# on_exhausted
foreach my $what (qw(skip block))
{
	endpoint($node, $receiver, $what, "/ok/$what",
		"topics => '{$what.*}', max_attempts => 2, on_exhausted => '$what', $quick");
	$receiver->control(path => "/ok/$what", behave => '/status/500');
	my $first = emit($node, "$what.first", '{}', "key => 'a'");
	ok( wait_sql(
			$node, "SELECT status = 'dead' FROM outbox.deliveries"
			  . " WHERE event_id = '$first' AND endpoint = '$what'"),
		"$what: the first is dead");
	$receiver->control(path => "/ok/$what", behave => '/ok');
	my $second = emit($node, "$what.second", '{}', "key => 'a'");
	if ($what eq 'block')
	{
		ok( wait_sql(
				$node, "SELECT status = 'blocked' FROM outbox.deliveries"
				  . " WHERE event_id = '$second' AND endpoint = '$what'"),
			'block: the second is blocked');
		nothing_arrives($receiver, 'and not sent', 0.5, id => $second);
	}
	else
	{
		$receiver->wait_delivered(1, id => $second);
		pass('skip: the second is delivered');
	}
}

# strict: one at a time, in the order of the log
endpoint($node, $receiver, 'strict', '/fail/s?rate=0.2',
	"topics => '{strict.*}', ordering => 'strict', $quick");
$node->safe_psql('postgres',
	"SELECT count(outbox.emit('strict.n', jsonb_build_object('n', n)))"
	  . " FROM generate_series(1, 60) n");
$receiver->wait_delivered(60, path => '/fail/s');
my @n = map { JSON::PP::decode_json($_->{body})->{data}{n} }
  $receiver->delivered(path => '/fail/s');
is_deeply(\@n, [ 1 .. 60 ], 'strict: the order of the log');
is(scalar(grep { $_->{open} > 1 } $receiver->requests(path => '/fail/s')),
	0, 'strict: one at a time');

# none: a failure holds up no other event
endpoint($node, $receiver, 'none', '/ok/n',
	"topics => '{none.*}', ordering => 'none', $quick");
$receiver->control(path => '/ok/n', behave => '/hang');
emit($node, 'none.first', '{}', "key => 'a'");
$receiver->wait_for(1, path => '/ok/n');
$receiver->control(path => '/ok/n', behave => '/ok');
my $next = emit($node, 'none.second', '{}', "key => 'a'");
$receiver->wait_delivered(1, id => $next);
pass('none: the second of a key does not wait');

# max_in_flight is respected
endpoint($node, $receiver, 'narrow', '/slow/w?ms=20',
	"topics => '{narrow.*}', max_in_flight => 3, $quick");
$node->safe_psql('postgres',
	"SELECT count(outbox.emit('narrow.n', '{}'::jsonb)) FROM generate_series(1, 60)");
$receiver->wait_delivered(60, path => '/slow/w');
my ($most) = sort { $b <=> $a } map { $_->{open} } $receiver->requests(path => '/slow/w');
is($most, 3, 'max_in_flight requests at a time, no more and no fewer');

$node->stop;
done_testing();
