# Whatever an operator does to an endpoint that waits, it is probed at once.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $long = "backoff_base => '1 h', backoff_max => '2 h', max_age => '30 days'";

# An endpoint whose breaker is open, and next probe at least six minutes away
sub backing_off
{
	my ($name) = @_;
	endpoint($node, $receiver, $name, "/status/500/$name", "topics => '{$name.*}', $long");
	ask("SELECT count(outbox.emit('$name.a', to_jsonb(n))) FROM generate_series(1, 30) n");
	ok( wait_sql($node, "SELECT state = 'backing_off' AND next_attempt_at > now() + interval '1 min'"
			  . " AND retrying = failed_attempts FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: backs off for long, and all failures are stored");
	$receiver->control(path => "/status/500/$name", behave => '/ok');
	return;
}

sub answers_again
{
	my ($name, $how, $path) = @_;
	$receiver->wait_delivered(1, path => $path // "/status/500/$name");
	ok(wait_sql($node, "SELECT state = 'active' FROM outbox.stats WHERE endpoint = '$name'"), "$how: active again");
	return;
}

# The breaker is open
backing_off('resumed');
nothing_arrives($receiver, 'a probe is far away', 0.5, path => '/status/500/resumed', status => 200);
ask("SELECT outbox.resume_endpoint('resumed')");
answers_again('resumed', 'resume_endpoint()');
backing_off('retried');
is(ask("SELECT outbox.retry('retried') > 0"), 't', 'retry() has something to do');
answers_again('retried', 'retry()');
ok(wait_sql($node, "SELECT pending + retrying + processing = 0 FROM outbox.stats WHERE endpoint = 'retried'"),
	'and it sends all that waited');
backing_off('moved');
ask("SELECT outbox.alter_endpoint('moved', url => '" . $receiver->url('/ok/moved') . "')");
$receiver->control(path => '/ok/moved', secret => ask("SELECT outbox.endpoint_secret('moved')"));
answers_again('moved', 'another URL', '/ok/moved');
backing_off('changed');
ask(q(SELECT outbox.alter_endpoint('changed', config => '{"method": "PUT"}')));
answers_again('changed', 'another config');
backing_off('tested');
my $test = ask("SELECT outbox.send_test('tested')");
answers_again('tested', 'send_test()');
ok(wait_sql($node, "SELECT outbox.wait_for('$test', '10 s')"), 'and the test event arrives');

# A probe that fails makes it wait again.
backing_off('still');
$receiver->control(path => '/status/500/still', behave => '');
my $before = () = $receiver->requests(path => '/status/500/still');
ask("SELECT outbox.resume_endpoint('still')");
wait_until { scalar(() = $receiver->requests(path => '/status/500/still')) > $before } 'a probe';
ok( wait_sql($node, "SELECT state = 'backing_off' AND next_attempt_at > now() + interval '1 min'"
		  . " FROM outbox.stats WHERE endpoint = 'still'"), 'a receiver that is still down: it waits again');
is(scalar(() = $receiver->requests(path => '/status/500/still')), $before + 1, 'after one request');

# The first probe is due before the failures are stored.  It is one of those that
# failed, and no event that was not sent yet.
ask("ALTER SYSTEM SET outbox.settle_interval = '1 s'");
$node->reload;
ok(wait_sql($node, "SELECT current_setting('outbox.settle_interval') = '1s'"), 'outcomes are stored once a second');
endpoint($node, $receiver, 'late', '/status/500/late',
	"topics => '{late.*}', max_in_flight => 32, backoff_base => '50 ms', backoff_max => '50 ms'");
ask("SELECT count(outbox.emit('late.a', to_jsonb(n), key => n::text)) FROM generate_series(1, 1000) n");
my $rows = 'SELECT count(*) FROM outbox.parked JOIN outbox.endpoint_settings USING (endpoint_id)'
  . " WHERE name = 'late'";
ok(wait_sql($node, "SELECT failed_attempts > 35 AND ($rows) > 0 FROM outbox.stats WHERE endpoint = 'late'"),
	'failures are stored, and probes go out');
my @late = $receiver->requests(path => '/status/500/late');
my $new = 0;
$new++ while $new < @late && $late[$new]{seen} == 1;
cmp_ok($new, '<=', 32, 'the first probe is one of those that failed');
ask("SELECT outbox.drop_endpoint('late', discard => true)");
ask('ALTER SYSTEM RESET outbox.settle_interval');
$node->reload;

# Retry-After, and one delivery that waits for its retry
endpoint($node, $receiver, 'busy', '/status/503/busy?retry_after=3600', "topics => '{busy.*}', $long");
my $id = emit($node, 'busy.a', '{}');
ok( wait_sql($node, "SELECT retrying = 1 FROM outbox.stats WHERE endpoint = 'busy'"), 'a receiver asks for an hour');
$receiver->control(path => '/status/503/busy', behave => '/ok');
ask("SELECT outbox.resume_endpoint('busy')");
$receiver->wait_delivered(1, id => $id);
pass('Retry-After, and a retry an hour away: sent at once');

# A paused endpoint stays paused.
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'no command is left behind');
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('busy')");
$id = emit($node, 'busy.b', '{}');
ask("SELECT outbox.retry('busy')");
nothing_arrives($receiver, 'a paused endpoint is not probed', 0.5, id => $id);
ask("SELECT outbox.resume_endpoint('busy')");
$receiver->wait_delivered(1, id => $id);
$node->stop;
done_testing();
