# The next worker goes on where the last one ended: positions, blocked keys, parked retries.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = outbox_node('main', conf => <<'CONF');
outbox.worker_max_in_flight = 16
outbox.wakeup_interval = '200 ms'
wal_level = replica
max_wal_senders = 5
CONF
my $receiver = OutboxTest::Receiver->new('main');
my $slowly = "backoff_base => '1 h', backoff_max => '1 h'";

sub restart_worker
{
	my $pid = worker_pid($node);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	return new_worker($node, $pid);
}

sub ask_topic
{
	my ($id) = @_;
	return $node->safe_psql('postgres', "SELECT topic FROM outbox.events WHERE id = '$id'");
}

sub blocked
{
	my ($endpoint) = @_;
	return "(SELECT blocked FROM outbox.stats WHERE endpoint = '$endpoint')";
}

sub numbers
{
	my (%match) = @_;
	return join ' ',
	  map { JSON::PP::decode_json($_->{body})->{data}{n} } $receiver->delivered(%match);
}

# 'clock' keeps the head of the log moving, and the shared position with it.
endpoint($node, $receiver, 'clock', '/ok/clock', "topics => '{clock.*}'");

sub let_the_head_move_on
{
	foreach (1 .. 12)
	{
		$node->safe_psql('postgres',
			"SET synchronous_commit = local; SELECT outbox.emit('clock.tick', '{}'::jsonb)");
		usleep(200_000);
	}
	return;
}

# Endpoints that follow the shared position get an event that they cannot send
# yet.  The position must not pass it.
endpoint($node, $receiver, 'limited', '/ok/limited', "topics => '{limited.*}', $slowly");
endpoint($node, $receiver, 'rated', '/ok/rated', "topics => '{rated.*}', rate_limit => 0.001");
endpoint($node, $receiver, 'held', '/ok/held', "topics => '{held.*}'");
endpoint($node, $receiver, 'crowded', '/ok/crowded', "topics => '{crowded.*}'");
endpoint($node, $receiver, 'crowd', '/hang/crowd', "topics => '{crowd.*}'");
$receiver->control(path => '/ok/limited', behave => '/status/429?retry_after=3000');
emit($node, 'limited.first', '{}');
emit($node, 'rated.first', '{}');
$receiver->wait_for(1, path => '/ok/limited');
$receiver->wait_delivered(1, path => '/ok/rated');
ok( wait_sql(
		$node, "SELECT bool_and(shared IS NOT NULL) FROM (SELECT DISTINCT ON (endpoint_id) * FROM outbox.positions"
		  . " WHERE endpoint_id > 0 ORDER BY endpoint_id, number DESC) p"
		  . " JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name IN ('limited', 'rated', 'held')"),
	'endpoints that were idle for a second share a position');

my @ids = (
	emit($node, 'limited.second', '{}'), emit($node, 'rated.second', '{}'));
$node->safe_psql('postgres',
	"SELECT count(outbox.emit('crowd.n', '{}'::jsonb)) FROM generate_series(1, 60)");
$receiver->wait_for(15, path => '/hang/crowd');
$receiver->control(path => '/ok/crowded', behave => '/hang');
push @ids, split /\n/, $node->safe_psql('postgres',
	"SELECT outbox.emit('crowded.n', '{}'::jsonb) FROM generate_series(1, 5)");
let_the_head_move_on();

# A standby that does not exist holds everything
$node->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$node->reload;
wait_sql($node, "SELECT current_setting('synchronous_standby_names') = 'nobody'");
usleep(300_000);
push @ids, $node->safe_psql('postgres',
	"SET synchronous_commit = local; SELECT outbox.emit('held.one', '{}'::jsonb)");
let_the_head_move_on();
is( join(' ', map { my $id = $_; map { $_->{path} } $receiver->delivered(id => $id) } @ids),
	'', 'nothing of it is delivered yet');
$receiver->control(path => $_, behave => '/ok') foreach qw(/ok/limited /ok/crowded /hang/crowd);
ok(restart_worker(), 'a new worker');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('rated', reset => '{rate_limit}')");
$receiver->wait_delivered(1, id => $_) foreach @ids;
is( join(' ', map { ask_topic($_) } grep { my $id = $_; !grep { 1 } $receiver->delivered(id => $id) } @ids),
	'', 'after a restart nothing is lost of what was held back');
$node->safe_psql('postgres',
	"SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");

# Blocked keys of several endpoints, all served after a restart
foreach my $e (1 .. 3)
{
	endpoint($node, $receiver, "keys$e", "/ok/keys$e", "topics => '{keys.*}', $slowly");
	$receiver->control(path => "/ok/keys$e", behave => '/status/500');
}
$node->safe_psql('postgres',
	"SELECT count(outbox.emit('keys.n', jsonb_build_object('n', n), key => 'k' || n % 5))"
	  . ' FROM generate_series(1, 20) n');
ok(wait_sql($node, 'SELECT ' . join(' AND ', map { blocked("keys$_") . ' = 15' } 1 .. 3)),
	'three endpoints with five blocked keys');
ok(restart_worker(), 'a new worker');
ok(wait_sql($node, 'SELECT ' . join(' AND ', map { blocked("keys$_") . ' = 15' } 1 .. 3)),
	'it knows of them');
foreach my $e (1 .. 3)
{
	$receiver->control(path => "/ok/keys$e", behave => '/ok');
	is($node->safe_psql('postgres', "SELECT outbox.retry('keys$e')"), 5, 'five heads are due');
}
foreach my $e (1 .. 3)
{
	$receiver->wait_delivered(20, path => "/ok/keys$e");
	my %wrong;
	my %last;
	foreach my $r ($receiver->delivered(path => "/ok/keys$e"))
	{
		my $n = JSON::PP::decode_json($r->{body})->{data}{n};
		$wrong{ $r->{key} } = 1 if $n <= ($last{ $r->{key} } // 0);
		$last{ $r->{key} } = $n;
	}
	is(join(' ', sort keys %wrong), '', "endpoint $e: all, each key in order");
}
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.parked)'), 'nothing is parked any more');
$node->safe_psql('postgres',
	"SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");

# Another ordering while a key is blocked
foreach my $ordering (qw(none strict))
{
	endpoint($node, $receiver, $ordering, "/ok/$ordering", "topics => '{$ordering.*}', $slowly");
	$receiver->control(path => "/ok/$ordering", behave => '/status/500');
	$node->safe_psql('postgres',
		"SELECT count(outbox.emit('$ordering.n', jsonb_build_object('n', n), key => 'k'))"
		  . ' FROM generate_series(1, 4) n');
	wait_sql($node, 'SELECT ' . blocked($ordering) . ' = 3');
	$receiver->control(path => "/ok/$ordering", behave => '/ok');
	$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('$ordering', ordering => '$ordering')");
}
$receiver->wait_delivered(3, path => '/ok/none');
is(join(' ', sort split / /, numbers(path => '/ok/none')), '2 3 4',
	'without order the followers do not wait');
$node->safe_psql('postgres', "SELECT outbox.retry('strict'), outbox.retry('none')");
$receiver->wait_delivered(4, path => '/ok/strict');
is(numbers(path => '/ok/strict'), '1 2 3 4', 'strict: all, in the order of the log');
$receiver->wait_delivered(4, path => '/ok/none');
ok(wait_settled($node), 'nothing is left over');

# Back in the log while a retry is parked: it is made once
endpoint($node, $receiver, 'back', '/ok/back', "topics => '{back.*}', $slowly");
my $good = emit($node, 'back.good', '{"n": 1}');
$receiver->wait_delivered(1, id => $good);
$receiver->control(path => '/ok/back', behave => '/status/500');
my $bad = emit($node, 'back.bad', '{"n": 2}', "key => 'k'");
my $behind = emit($node, 'back.behind', '{"n": 3}', "key => 'k'");
wait_sql($node, 'SELECT ' . blocked('back') . ' = 1');
$receiver->control(path => '/ok/back', behave => '/ok');
$node->safe_psql('postgres', "SELECT outbox.seek_endpoint('back', 'beginning')");
$receiver->wait_delivered(2, id => $good);
$receiver->wait_delivered(1, id => $behind);
ok(wait_settled($node), 'back to the beginning: all is settled');
is(scalar(() = $receiver->delivered(id => $bad)), 1, 'what was parked is delivered once');
is(scalar(() = $receiver->delivered(id => $behind)), 1, 'and what was blocked behind it');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.parked'), 0, 'no row is left');

is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'), 0,
	'no worker ended with an error');
$node->stop;
done_testing();
