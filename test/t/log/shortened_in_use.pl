# The log is shortened while it is in use, and no event is lost that is still to be delivered.
# The retention is short here, with endpoints that are far behind and with parked events.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = outbox_node('main', conf => "outbox.retention = '2 s'\noutbox.attempts_retention = '2 s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $slowly = "backoff_base => '1 h', backoff_max => '1 h'";

# The log goes from piece to piece until the one that it would empty next holds
# this event.
sub goes_round_to
{
	my ($id) = @_;
	return wait_sql($node,
		"SELECT (p.piece + 1) % 3 = e.piece FROM outbox.pieces p, outbox.events e"
		  . " WHERE p.log = 'events' AND e.id = '$id'");
}

sub worker_errors
{
	return ask('SELECT sum(restarts) FROM outbox.worker_slots()');
}

endpoint($node, $receiver, 'ok', '/ok/a', "topics => '{ok.*}'");
endpoint($node, $receiver, 'paused', '/ok/paused', "topics => '{paused.*}'");
endpoint($node, $receiver, 'retry', '/ok/retry', "topics => '{retry.*}', $slowly");
endpoint($node, $receiver, 'dead', '/ok/dead', "topics => '{dead.*}', max_attempts => 1, $slowly");
endpoint($node, $receiver, 'slow', '/hang/slow', "topics => '{slow.*}', timeout => '1 h'");
$receiver->control(path => "/ok/$_", behave => '/status/500') foreach qw(retry dead);

# A request takes longer than the retention: its event stays where it is
my $slow = emit($node, 'slow.one', '{}');
$receiver->wait_for(1, path => '/hang/slow');
ok(wait_sql($node, q{SELECT backend_xmin IS NULL AND backend_xid IS NULL AND xact_start IS NULL FROM pg_stat_activity}
		  . q{ WHERE backend_type LIKE 'outbox worker%'}), 'meanwhile VACUUM is not held up');
my @parked = (
	emit($node, 'retry.head', '{"n": 1}', "key => 'k'"),
	emit($node, 'retry.behind', '{"n": 2}', "key => 'k'"),
	emit($node, 'dead.one', '{"n": 3}'));
wait_status($node, $parked[0], 'retrying', 'one waits for its retry');
wait_status($node, $parked[1], 'blocked', 'one is blocked');
wait_status($node, $parked[2], 'dead', 'one is dead');
emit($node, 'ok.one', '{}');
ok(goes_round_to($slow), 'pieces are changed');
usleep(1_500_000);
is(ask("SELECT count(*) FROM outbox.events WHERE id = '$slow'"), 1,
	'a piece with a request under way is kept');
is( ask("SELECT since > clock_timestamp() - interval '60 s' FROM outbox.pieces WHERE log = 'events'"),
	't', 'since is recent');
my $pid = worker_pid($node);
$receiver->control(path => '/hang/slow', behave => '/ok');
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
$receiver->wait_delivered(1, id => $slow);
pass('and the request is made again by the next worker');

# Parked events outlive their piece
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE topic = 'ok.one')"),
	'an event that every endpoint is done with is gone');
my $kept = "SELECT count(*) FROM outbox.kept_events WHERE id IN ('" . join("', '", @parked) . "')";
is(ask($kept), 3, 'the parked events are kept aside');
like(ask("SELECT payload FROM outbox.dead_letters WHERE event_id = '$parked[2]'"),
	qr/"n": 3/, 'the dead letter has its payload');

# Once it is discarded, neither its event nor its row is needed any more
my $discarded = emit($node, 'dead.two', '{}');
wait_status($node, $discarded, 'dead', 'another one is dead');
is(ask("SELECT outbox.discard('dead', '$discarded')"), 1, 'and is discarded');
emit($node, 'ok.two', '{}');
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.all_events WHERE topic IN ('dead.two', 'ok.two'))"),
	'it goes with its piece');
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.parked WHERE status = 'cancelled')"), 'and its row');
is(ask($kept), 3, 'the others stay');
$receiver->control(path => "/ok/$_", behave => '/ok') foreach qw(retry dead);
ask("SELECT outbox.retry('retry'), outbox.retry('dead')");
$receiver->wait_delivered(1, id => $_) foreach @parked;
is( join(' ', map { JSON::PP::decode_json($_->{body})->{data}{n} } $receiver->delivered(path => '/ok/retry')),
	'1 2', 'and delivered when they are asked for, in order');
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.kept_events)'),
	'then the kept events are tidied up');

# A paused endpoint retains the log
ask("SELECT outbox.pause_endpoint('paused')");
my @waiting = map { emit($node, 'paused.n', "{\"n\": $_}") } 1 .. 3;
ok(goes_round_to($waiting[0]), 'pieces are changed as far as they can be');
usleep(2_000_000);
is(ask("SELECT count(*) FROM outbox.events WHERE topic = 'paused.n'"), 3,
	'a paused endpoint retains what it has not read');
ask("SELECT outbox.resume_endpoint('paused')");
$receiver->wait_delivered(1, id => $_) foreach @waiting;
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE topic = 'paused.n')"),
	'delivered: forgotten');

# An endpoint that is being made at a place in the log keeps that place, although
# no other transaction sees the endpoint yet
ask("SELECT outbox.pause_endpoint('paused')");
my $early = emit($node, 'paused.early', '{}');
ok(goes_round_to($early), 'the piece of an event is the next to be emptied');
my $maker = $node->background_psql('postgres');
$maker->query_safe("BEGIN; SELECT outbox.create_endpoint('maker', '"
	  . $receiver->url('/ok/maker') . "', topics => '{paused.*}', start_at => 'beginning')");
ask("SELECT outbox.resume_endpoint('paused')");
$receiver->wait_delivered(1, id => $early, path => '/ok/paused');
ok(wait_sql($node, "SELECT since < clock_timestamp() - interval '4 s' FROM outbox.pieces WHERE log = 'events'"),
	'it is not, while an endpoint is being made');
$maker->query_safe('COMMIT');
$maker->quit;
$receiver->wait_delivered(1, id => $early, path => '/ok/maker');
pass('which gets it');
ask("SELECT outbox.drop_endpoint('maker', discard => true)");

# What lies in two pieces comes in order, also where the last is followed by the
# first.  A reader of the next piece keeps the log where it is.
my $emitted = 0;
my $reader;
ask("SELECT outbox.pause_endpoint('paused')");
foreach my $piece (2, 0)
{
	my $next = $node->background_psql('postgres');
	$next->query_safe('BEGIN; LOCK TABLE outbox.events_' . ($piece + 1) % 3 . ' IN ACCESS SHARE MODE');
	$reader->quit if $reader;
	$reader = $next;
	wait_sql($node, "SELECT piece = $piece FROM outbox.pieces WHERE log = 'events'");
	wait_until
	{
		ask("SELECT outbox.emit('paused.across', '{\"n\": $emitted}'::jsonb, key => 'across')");
		$emitted++;
		ask("SELECT EXISTS (SELECT FROM outbox.events WHERE topic = 'paused.across' AND piece = $piece)") eq 't'
	}
	"an event in piece $piece";
}
$reader->quit;
ask("SELECT outbox.resume_endpoint('paused')");
is( join(' ', map { JSON::PP::decode_json($_->{body})->{data}{n} }
		  $receiver->wait_delivered($emitted, key => 'across')),
	join(' ', 0 .. $emitted - 1), 'events of two pieces are read in order');

# since moves with each rotation
my %since;
my $begun = time;
my $end = $begun + 60;
while (time < $begun + 6 || (keys %since < 4 && time < $end))
{
	$since{ ask("SELECT since FROM outbox.pieces WHERE log = 'events'") } = 1;
	usleep(100_000);
}
cmp_ok(scalar keys %since, '>=', 4, 'about one rotation a second');
cmp_ok(scalar keys %since, '<=', time - $begun + 2, 'and no more');

# An emitter that is still open when its piece's turn comes: nothing waits for
# it, and its events are not lost.
foreach my $round (1 .. 2)
{
	my $late = $node->background_psql('postgres');
	$late->query_safe('BEGIN');
	my $id = $late->query_safe("SELECT outbox.emit('ok.late', '{}'::jsonb)");
	my $piece = ask("SELECT right(relation::regclass::text, 1) FROM pg_locks"
		  . " WHERE relation::regclass::text ~ '^outbox.events_[0-2]\$'"
		  . " AND mode = 'RowExclusiveLock' AND pid = " . $late->query_safe('SELECT pg_backend_pid()'));
	my $before = ($piece + 2) % 3;
	ok( wait_sql($node, "SELECT piece = $before FROM outbox.pieces WHERE log = 'events'"),
		'the piece with the open transaction is next');
	my $waited = 0;
	$end = time + 2.5;
	while (time < $end && !$waited)
	{
		$waited = ask("SELECT count(*) FROM pg_locks WHERE NOT granted"
			  . " AND relation = 'outbox.events_$piece'::regclass");
		usleep(20_000) unless $waited;
	}
	is($waited, 0, 'no session waits for the lock');
	$late->query_safe('COMMIT');
	$receiver->wait_delivered(1, id => $id);
	pass('its event is delivered');
	$late->quit;
}
is(worker_errors(), 0, 'no worker ended with an error');

# To find out that no endpoint needs a piece, its rows are not read once more, although an old
# transaction is in progress in all snapshots
sub rows_read
{
	return ask("SELECT sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname ~ '^events_[0-9]'");
}
my $rows = 50_000;
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN; SELECT pg_current_xact_id()');
ask("ALTER SYSTEM SET outbox.retention = '1 h'");
$node->reload;
my $read = rows_read();
ask("SELECT count(outbox.emit('nobody.n', '{}'::jsonb)) FROM generate_series(1, $rows)");
$receiver->wait_delivered(1, id => emit($node, 'ok.after', '{}'));
wait_until { rows_read() - $read >= $rows } 'the worker has read them';
ask("ALTER SYSTEM SET outbox.retention = '2 s'");
$node->reload;
my %pieces;
my $more = rows_read();
wait_until
{
	$pieces{ ask("SELECT piece FROM outbox.pieces WHERE log = 'events'") } = 1;
	keys %pieces == 3
}
'each piece is emptied';
replace_worker($node);    # what it has counted is all there then
cmp_ok(rows_read() - $more, '<', $rows / 2, 'and is not read for that');
$old->query_safe('COMMIT');
$old->quit;

# Many parked rows
ask("ALTER SYSTEM SET outbox.retention = '1 h'");
ask("ALTER SYSTEM SET outbox.wakeup_interval = '100 ms'");
$node->reload;
endpoint($node, $receiver, 'many', '/status/500/many',
	"topics => '{many.*}', max_attempts => 1, on_exhausted => 'block', $slowly");
emit($node, 'many.first', '{}', "key => 'k'");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.dead_letters"), 'a dead head');
ask("SELECT count(outbox.emit('many.n', '{}'::jsonb, key => 'k')) FROM generate_series(1, 66000)");
ok(wait_sql($node, "SELECT blocked = 66000 FROM outbox.stats WHERE endpoint = 'many'"),
	'66,000 parked rows');
ask("ALTER SYSTEM SET outbox.retention = '2 s'");
$node->reload;
watch_machine();

# The seconds in which another endpoint gets an event, without those of a machine that stood still
sub another_gets_one
{
	my $start = time;
	$receiver->wait_delivered(1, id => emit($node, 'ok.meanwhile', '{}'));
	my $took = time - $start;
	return $took < 8 ? $took : seconds_since($start);
}
my $most = 0;
$end = time + 2 * $OutboxTest::timeout;
do
{
	$most = max($most, another_gets_one());
} until (ask('SELECT count(*) FROM outbox.kept_events') >= 66001 || time > $end);
is(ask('SELECT count(*) FROM outbox.kept_events'), 66001, 'they are kept aside');
foreach (1 .. 20)
{
	$most = max($most, another_gets_one());
	usleep(50_000);
}
cmp_ok($most, '<', 8, 'meanwhile others are delivered');
$pid = worker_pid($node);
my $start = time;
ask("SELECT pg_terminate_backend($pid)");
wait_until { process_is_gone($pid) } 'it ends';
cmp_ok(seconds_since($start), '<', 5, 'and the worker ends when it is asked to');
new_worker($node, $pid);
ask("ALTER SYSTEM SET outbox.retention = '20 s'");
$node->reload;
ask("SELECT outbox.drop_endpoint('many', discard => true)");
%since = ();
ok((wait_until
	{
		$since{ ask("SELECT since FROM outbox.pieces WHERE log = 'events'") } = 1;
		ask('SELECT NOT EXISTS (SELECT FROM outbox.kept_events)') eq 't'
	}
	'nothing is kept'), 'dropped: nothing is kept any more');
cmp_ok(scalar keys %since, '<', 20, 'a slice of it goes at a time, and does not wait for a rotation');
is(worker_errors(), 0, 'no worker ended with an error');

$node->stop;
done_testing();
