# A delivery that fails is tried again with the same id and body, until it is delivered or dead.
# Slowing down, disabling, Retry-After and coming back are tried here, too.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '50 ms', backoff_max => '200 ms'";
my ($id, @got);

sub delivery
{
	my ($endpoint, $columns) = @_;
	return $node->safe_psql('postgres',
		"SELECT $columns FROM outbox.deliveries"
		  . " WHERE endpoint = '$endpoint' ORDER BY seq DESC LIMIT 1");
}

# A retry is the same request, signed anew
endpoint($node, $receiver, 'flaky', '/flaky/a?first=2',
	"topics => '{flaky.*}', $quick");
$id = emit($node, 'flaky.one', '{"n": 1}', "key => 'k'");
@got = $receiver->wait_for(3, path => '/flaky/a');
is_deeply([ map { $_->{status} } @got ], [ 500, 500, 200 ],
	'two failures, then delivered');
is_deeply(
	[ map { $_->{headers}{'outbox-attempt'} } @got ],
	[ 1, 2, 3 ],
	'attempts are counted');
is(scalar(keys %{ { map { $_->{sha256} => 1 } @got } }), 1, 'the body is the same');
is_deeply([ map { $_->{id} } @got ], [ ($id) x 3 ], 'so is the id');
is_deeply([ map { $_->{signature} } @got ], [ ('valid') x 3 ],
	'each is validly signed');
wait_settled($node);
is(delivery('flaky', 'status, attempts, last_status_code'),
	'delivered|3|200', 'outbox.deliveries shows the attempts and the end');
is( $node->safe_psql(
		'postgres', "SELECT string_agg(attempt || ':' || status_code, ',' ORDER BY attempt)"
		  . " FROM outbox.attempts WHERE event_id = '$id'"),
	'1:500,2:500,3:200', 'outbox.attempts, too');

# The status is that of the last attempt, which may have had no answer.
endpoint($node, $receiver, 'silent', '/status/503/silent', "topics => '{silent.*}', backoff_base => '1 h', backoff_max => '1 h'");
$id = emit($node, 'silent.one', '{}');
ok(wait_sql($node, "SELECT last_status_code = 503 AND status = 'retrying' FROM outbox.deliveries WHERE event_id = '$id'"), 'an answer');
$receiver->control(path => '/status/503/silent', behave => '/close');
$node->safe_psql('postgres', "SELECT outbox.retry('silent')");
ok( wait_sql($node, "SELECT last_error !~ '503' AND last_status_code IS NULL FROM outbox.deliveries WHERE event_id = '$id' AND status = 'retrying'"),
	'then none, and no status');

# Where only failures are logged, a delivery that was made shows none.
endpoint($node, $receiver, 'quiet', '/flaky/quiet?first=1', "topics => '{quiet.*}', log_attempts => 'failures', $quick");
$id = emit($node, 'quiet.one', '{}');
$receiver->wait_delivered(1, path => '/flaky/quiet', id => $id);
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$id'"), 'delivered');
is(delivery('quiet', 'last_status_code, last_error'), '|', 'without a failure that is over');

# Out of attempts: dead, with payload and reason, until retry() brings it back
endpoint($node, $receiver, 'broken', '/status/500/b?body=out%20of%20order',
	"topics => '{broken.*}', max_attempts => 3, $quick");
$id = emit($node, 'broken.one', '{"n": 1}');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.dead_letters"), 'dead');
is(scalar(() = $receiver->requests(path => '/status/500/b')),
	3, 'after as many attempts as allowed');
like(
	$node->safe_psql('postgres',
		'SELECT payload FROM outbox.dead_letters'),
	qr/"n": 1/,
	'the dead letter has the payload');
like(delivery('broken', 'status, attempts, last_status_code'),
	qr/^dead\|3\|500$/, 'outbox.deliveries says dead');
isnt(delivery('broken', 'reason'), '', 'and why');
is( $node->safe_psql(
		'postgres', "SELECT DISTINCT response_body FROM outbox.attempts"
		  . " WHERE event_id = '$id'"),
	'out of order', 'the answer of a failure is kept');

# 410: the endpoint is disabled, its events wait
endpoint($node, $receiver, 'gone', '/status/410/c', "topics => '{gone.*}', $quick");
emit($node, 'gone.one', '{}');
ok( wait_sql(
		$node, "SELECT state = 'disabled' AND reason IS NOT NULL"
		  . " FROM outbox.stats WHERE endpoint = 'gone'"),
	'410 disables');
emit($node, 'gone.two', '{}');
nothing_arrives($receiver, 'nothing more is sent', 0.5, path => '/status/410/c');
$receiver->control(path => '/status/410/c', behave => '/ok');
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('gone')");
$receiver->wait_delivered(2, path => '/status/410/c');
pass('resumed: both events arrive');

# Headers of the answer
endpoint($node, $receiver, 'abort', '/abort/d', "topics => '{abort.*}', $quick");
emit($node, 'abort.one', '{}');
ok( wait_sql(
		$node, "SELECT status = 'dead' AND attempts = 1 FROM outbox.deliveries"
		  . " WHERE endpoint = 'abort'"),
	'abort-message: dead at once');
endpoint($node, $receiver, 'disable', '/disable/e', "topics => '{disable.*}', $quick");
emit($node, 'disable.one', '{}');
ok( wait_sql(
		$node,
		"SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'disable'"),
	'webhook-delivery: disable');

# Retry-After is a floor, for the endpoint as a whole
endpoint($node, $receiver, 'later', '/status/429/f?retry_after=2',
	"topics => '{later.*}', $quick, backoff_max => '10 s'" =~ s/backoff_max => '200 ms', //r);
emit($node, 'later.one', '{}');
$receiver->wait_for(1, path => '/status/429/f');
$receiver->control(path => '/status/429/f', behave => '/ok');
emit($node, 'later.two', '{}');
@got = $receiver->wait_for(3, path => '/status/429/f');
cmp_ok($got[1]{wall} - $got[0]{wall}, '>=', 1.9, 'nothing before Retry-After');
cmp_ok($got[2]{wall} - $got[0]{wall}, '>=', 1.9, 'nor any other event');

# The views say so.
endpoint($node, $receiver, 'asked', '/status/503/a?retry_after=3000', "topics => '{asked.*}', max_attempts => 1");
wait_status($node, emit($node, 'asked.one', '{}'), 'dead', 'a receiver asks to wait');
my $asked = emit($node, 'asked.two', '{}');
ok( wait_sql(
		$node,
		"SELECT (state, reason) = ('active', 'the receiver asked to wait') AND next_attempt_at > now() + interval '40 min' FROM outbox.stats WHERE endpoint = 'asked'"),
	'which outbox.stats says, and until when');
$receiver->control(path => '/status/503/a', behave => '/ok');
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('asked')");
wait_status($node, $asked, 'delivered', 'an operator ends it');
ok( wait_sql(
		$node,
		"SELECT reason IS NULL AND next_attempt_at IS NULL FROM outbox.stats WHERE endpoint = 'asked'"),
	'and it is said no more');

# No answer, no connection
endpoint($node, $receiver, 'hang', '/hang/g',
	"topics => '{hang.*}', timeout => '300 ms', $quick");
emit($node, 'hang.one', '{}');
$receiver->wait_for(2, path => '/hang/g');
ok( wait_sql(
		$node,
		"SELECT status = 'retrying' AND last_error IS NOT NULL"
		  . " FROM outbox.deliveries WHERE endpoint = 'hang'"),
	'a timeout is retried, and shown');
foreach my $kind (qw(close rst garbage http09))
{
	endpoint($node, $receiver, $kind, "/$kind/h", "topics => '{$kind.*}', $quick");
	emit($node, "$kind.one", '{}');
	$receiver->wait_for(2, path => "/$kind/h");
	$receiver->control(path => "/$kind/h", behave => '/ok');
	$receiver->wait_delivered(1, path => "/$kind/h");
	pass("$kind is retried until it works");
}
foreach my $kind (qw(answer-rst stall-body big-body))
{
	(my $topic = $kind) =~ s/-/_/;
	endpoint($node, $receiver, $kind, "/$kind/i", "topics => '{$topic.*}', $quick");
	$id = emit($node, "$topic.one", '{}');
	wait_status($node, $id, 'delivered',
		"$kind: 2xx is delivered, whatever comes after the headers");
}

# A redirect is a failure, and not followed
endpoint($node, $receiver, 'redirect',
	'/redirect/j?to=' . $receiver->url('/ok/trap'),
	"topics => '{redirect.*}', max_attempts => 2, $quick");
emit($node, 'redirect.one', '{}');
ok( wait_sql(
		$node, "SELECT status = 'dead' AND last_status_code = 302"
		  . " FROM outbox.deliveries WHERE endpoint = 'redirect'"),
	'a redirect is not followed');
is(scalar(() = $receiver->requests(path => '/ok/trap')), 0, 'its target gets no request');

# The receiver goes away and comes back
endpoint($node, $receiver, 'away', '/ok/k', "topics => '{away.*}', $quick");
$receiver->stop('KILL');
$node->safe_psql('postgres',
	"SELECT count(outbox.emit('away.' || n, '{}'::jsonb, key => 'k' || n % 5))"
	  . " FROM generate_series(1, 100) n");
ok( wait_sql(
		$node,
		"SELECT state = 'backing_off' AND last_error IS NOT NULL"
		  . " FROM outbox.stats WHERE endpoint = 'away'"),
	'backing off while no receiver is there');
$receiver->start;
$receiver->wait_delivered(100, path => '/ok/k');
pass('all of it arrives when one is');

# expires_at
$receiver->control(path => '/ok/k', behave => '/status/500');
$id = emit($node, 'away.expires', '{}',
	"expires_at => clock_timestamp() + interval '300 ms'");
ok( wait_sql(
		$node, "SELECT status = 'dead' FROM outbox.deliveries"
		  . " WHERE endpoint = 'away' AND event_id = '$id'"),
	'expired: dead');

is(scalar(grep { $_->{signature} ne 'valid' } $receiver->requests),
	0, 'every signature was valid');
$node->stop;
done_testing();
