# Emptying a piece of the log with many parked deliveries holds up no other delivery.
# Their events are copied in slices: each event is shown once at every moment, and a
# crash in the middle loses nothing.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $n = $ENV{ROWS} || 100_000;
my $node = outbox_node('main', conf => "shared_buffers = 256MB\nmax_wal_size = 4GB\n");
my $receiver = OutboxTest::Receiver->new('main');
my $journal = PostgreSQL::Test::Utils::tempdir('history') . '/producer';

# Parks what has this topic as dead, as if the receiver had refused it.
sub park
{
	my ($topics) = @_;

	ask(park_as_dead("s.name = 'dead' AND e.topic ~ '$topics'"));
	ask('ANALYZE outbox.parked');
	return;
}

# The next worker finds that the piece in use, 0, is to be emptied next, and now.
sub make_due
{
	ask("UPDATE outbox.pieces SET piece = 2, since = since - interval '8 days' WHERE log = 'events'");
	ask('SELECT pg_terminate_backend(' . worker_pid($node) . ')');
	return;
}

my $is_emptied = "SELECT piece = 0 FROM outbox.pieces WHERE log = 'events'";
my $shown = "SELECT count(*) || ' ' || count(DISTINCT id) FROM outbox.all_events WHERE topic ~ '^dead'";

# The first event is delivered, and 100,000 after it are parked.
endpoint($node, $receiver, 'late', '/ok/late', "topics => '{late.*}', backoff_base => '1 h', backoff_max => '1 h'");
endpoint($node, $receiver, 'load', '/ok/load', "topics => '{load.*}'");
my $late = emit($node, 'late.first', '{"n": 1}');
$receiver->wait_delivered(1, path => '/ok/late');
ask("SELECT count(outbox.emit('dead.n', jsonb_build_object('n', n))) FROM generate_series(1, $n) n");
endpoint($node, $receiver, 'dead', '/ok/dead', "topics => '{dead.*}'");
park('^dead');
my $first = ask("SELECT id FROM outbox.events WHERE topic = 'dead.n' ORDER BY seq LIMIT 1");
my @some = split /\n/, ask("SELECT id FROM outbox.events WHERE topic = 'dead.n' ORDER BY hashtext(id::text) LIMIT 50");
my $some_shown = "SELECT count(*) || ' ' || count(DISTINCT id) FROM outbox.all_events WHERE id IN ('" . join("', '", @some) . "')";

my $producer = start_producer($node, $journal, topic => 'load.n', rate => 100, rollback => 0);
$receiver->wait_delivered(20, path => '/ok/load');
my %session = map { $_ => $node->background_psql('postgres') } qw(watch reader early last);
$_->set_query_timer_restart foreach values %session;
my $wal = ask('SELECT pg_current_wal_insert_lsn()');
watch_machine();
my $begun = time;
make_due();
my $copied;
ok((wait_until { $copied = $session{watch}->query_safe('SELECT count(*) FROM outbox.kept_events') } 'a copy'), 'copying has begun');

# A reader of the piece keeps it from being emptied, and not from being copied.
$session{reader}->query_safe('BEGIN; LOCK TABLE outbox.events_0 IN ACCESS SHARE MODE');
cmp_ok($copied, '<', $n, "events are copied in slices ($copied so far)");
$session{early}->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($session{early}->query_safe($shown), "$n $n", 'in the middle a snapshot shows each event once');

my %seen;
my $end = time + 2 * $OutboxTest::timeout;
do
{
	$seen{ $session{watch}->query_safe($some_shown) } = 1;
	usleep(10_000);
} until ($session{watch}->query_safe('SELECT count(*) FROM outbox.kept_events') >= $n || time > $end);
my $took = time - $begun;
$session{watch}->quit;
is(join(', ', keys %seen), '50 50', 'meanwhile each event is shown once');

# Deliveries to another endpoint in that time, and the longest in which none came although
# the machine went on
my $gap = 0;
my $last = $begun;
foreach my $at ((sort { $a <=> $b } grep { $_ > $begun && $_ < $begun + $took }
		map { $_->{wall} } $receiver->delivered(path => '/ok/load')), $begun + $took)
{
	my $waited = $at - $last > $gap ? $at - $last - stood_still($last, $at) : 0;
	$gap = $waited if $waited > $gap;
	$last = $at;
}
cmp_ok($gap, '<', max(2, ($took - stood_still($begun, $begun + $took)) / 4), 'others are delivered meanwhile');
diag(sprintf('%d events copied in %.1f s; the longest time without a delivery: %.2f s; %d bytes of WAL per event',
		$n, $took, $gap, ask("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$wal')") / $n));

# What is parked behind the slices, and what is delivered there
$receiver->control(path => '/ok/late', behave => '/status/500');
ask("SELECT outbox.replay('late', (SELECT created_at FROM outbox.all_events WHERE id = '$late'))");
wait_status($node, $late, 'retrying', 'an event behind the slices is parked');
my $after = ask("INSERT INTO outbox.events (topic, payload, piece) VALUES ('late.after', '{}', 0) RETURNING id");
wait_status($node, $after, 'retrying', 'so is one that was written into the piece since');
is(ask("SELECT outbox.retry('dead', '$first')"), 1, 'another one there is asked for');
$receiver->wait_delivered(1, id => $first);

# It fails once more while the copies are locked, so its outcome cannot be stored.
$receiver->control(path => '/ok/late', behave => '/hold');
ask("SELECT outbox.retry('late', '$late')");
ok(wait_sql($node, "SELECT processing = 1 FROM outbox.stats WHERE endpoint = 'late'"), 'it is sent again');
$session{lock} = $node->background_psql('postgres');
$session{lock}->query_safe('BEGIN; LOCK TABLE outbox.kept_events IN SHARE MODE');
$receiver->control(path => '/ok/late', behave => '/status/500');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'settle' AND reason = 'locked' AND endpoint = 'late'"), 'it is on hold');
my ($worker, $waits) = (worker_pid($node), 0);
foreach (1 .. 100)
{
	$waits += $session{lock}->query_safe("SELECT count(*) FROM pg_locks WHERE pid = $worker AND NOT granted");
	usleep(20_000);
}
is($waits, 0, 'and the worker waits for no lock');
$session{lock}->query_safe('COMMIT');
$session{lock}->quit;
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.held_steps WHERE step = 'settle')"), 'then it is stored');

ok(wait_sql($node, "SELECT count(*) = $n + 1 FROM outbox.kept_events"), 'what was parked since is copied, too');
is(ask($shown), "$n $n", 'when all are copied each is shown once');
is($session{early}->query_safe($shown), "$n $n", 'by the former snapshot as well');
$session{early}->query_safe('COMMIT');
$session{early}->quit;

# The piece is emptied.  A snapshot from before it has the copies.
$session{last}->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my @forgotten = split /\n/, ask("SELECT id FROM outbox.events_0 WHERE topic ~ '^load'");
is(ask("SELECT count(*) FROM outbox.events WHERE topic = 'dead.n'"), $n, 'the piece is there as long as it is read');
$session{reader}->query_safe('COMMIT');
$session{reader}->quit;
ok(wait_sql($node, $is_emptied), 'then it is emptied');
is($session{last}->query_safe($shown), "$n $n", 'a snapshot from before that shows each event once');
$session{last}->query_safe('COMMIT');
$session{last}->quit;
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.kept_events WHERE id = '$first')"),
	'what was delivered after it was copied is not kept');
my $left = $n - 1;
is(ask($shown), "$left $left", 'each of the others is shown once');
$receiver->control(path => '/ok/late', behave => '/ok');
is(ask("SELECT outbox.retry('late')"), 2, 'what was parked meanwhile is asked for');
$receiver->wait_delivered(2, path => '/ok/late', id => $late);
$receiver->wait_delivered(1, path => '/ok/late', id => $after);
pass('and is delivered');
stop_producer($producer);
check_history($node, $receiver, $journal, endpoints => ['/ok/load'], max_duplicates => 100, max_dead => $n,
	exists_too => \@forgotten, name => 'of what was emitted meanwhile nothing is lost');

# The server crashes in the middle
my $more = $n / 2;
ask("SELECT outbox.pause_endpoint('dead')");
ask("SELECT count(outbox.emit(CASE n % 500 WHEN 0 THEN 'dead.some' ELSE 'dead.more' END, '{}'::jsonb))"
	  . " FROM generate_series(1, $more) n");
ask("SELECT outbox.seek_endpoint('dead', 'now')");
ask("SELECT outbox.resume_endpoint('dead')");
park('^dead[.](some|more)$');
ok(wait_sql($node, 'SELECT sum(pending + processing) = 0 FROM outbox.stats'), 'everything is read');
make_due();
ok(wait_sql($node, "SELECT count(*) > $left + $more / 5 FROM outbox.kept_events"), 'copying has begun again');
kill_everything($node);
start_again($node);
my $xid = ask('SELECT pg_current_xact_id()');
$left += $more;
is(ask($shown), "$left $left", 'after a crash in the middle each event is shown once');
ok(wait_sql($node, $is_emptied), 'the piece is emptied after the crash');
cmp_ok(ask("SELECT count(*) FROM outbox.kept_events WHERE topic ~ '(some|more)\$' AND xmin::text::int8 < $xid"),
	'>', 0, 'what was copied before the crash was not written again');
# An answer that the crash forgot is asked for again, and its event kept until then.
ok(wait_sql($node, "SELECT count(*) = $left FROM outbox.kept_events"), 'all are kept, and no more');
is(ask($shown), "$left $left", 'and each is shown once');
my $retried = ask("SELECT outbox.retry('dead', topics => '{dead.some}')");
is($retried, $more / 500, 'some are asked for');
$receiver->wait_delivered($retried + 1, path => '/ok/dead');
ok(wait_sql($node, 'SELECT sum(pending + processing + retrying) = 0 FROM outbox.stats'), 'and delivered');
my %times;
$times{ $_->{id} }++ foreach $receiver->delivered(path => '/ok/dead');
is(join(' ', (scalar keys %times), grep { $_ > 1 } values %times), $retried + 1, 'each once');

# Nothing is left of what is not needed any more.
ask("SELECT outbox.drop_endpoint('dead', discard => true)");
emit($node, 'late.more', '{}');
$receiver->wait_delivered(4, path => '/ok/late');
make_due();
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.kept_events)'), 'nothing is left when all is given up');

$node->stop;
done_testing();
