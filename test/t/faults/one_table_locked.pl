# A lock on one table of outbox holds up only deliveries that need the table.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'well', '/ok/well', "topics => '{well.*}'");
endpoint($node, $receiver, 'ill', '/ok/ill', "topics => '{ill.*}', backoff_base => '50 ms', backoff_max => '50 ms'");
$receiver->wait_delivered(1, id => emit($node, 'well.first', '{}'));
$receiver->control(path => '/ok/ill', behave => '/status/500');
my $ill = emit($node, 'ill.first', '{}', "key => 'k'");
ok(wait_sql($node, "SELECT failed_attempts > 1 FROM outbox.stats WHERE endpoint = 'ill'"), 'one delivery fails');


# Retries that are due while their table is locked cost nothing.
endpoint($node, $receiver, "later$_", '/status/500/later', "topics => '{later.*}', backoff_base => '4 s', backoff_max => '4 s'") foreach 1 .. 5;
emit($node, 'later.n', '{}');
ok(wait_sql($node, "SELECT count(*) = 5 FROM outbox.parked p JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name ~ 'later'"), 'retries wait');
my $holder = $node->background_psql('postgres', on_error_stop => 1);
$holder->query_safe('BEGIN; LOCK TABLE outbox.parked IN ACCESS EXCLUSIVE MODE');
sleeps_meanwhile(worker_pid($node), 25, 'they cost nothing while their table is locked', sub { sleep 4 });
$holder->query_safe('ROLLBACK');
ask("SELECT outbox.drop_endpoint('later' || n, discard => true) FROM generate_series(1, 5) n");

# More events than a worker sends without storing what was delivered
my $many = 3000;
my $emitted = 1;

sub emit_some
{
	my ($n) = @_;
	$emitted += $n;
	return ask("SELECT count(outbox.emit('well.n', '{}', key => 'k' || n % 7)) FROM generate_series(1, $n) n");
}

# Each table that not every delivery needs, all at once.
my %needed = map { $_ => 1 } qw(origins own_epochs emit_topics events events_0 events_1 events_2 endpoint_settings positions positions_0 positions_1);
my @others = grep { !$needed{$_} } split /\n/, ask("SELECT relname FROM pg_class"
	  . " WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')");
my $pid = $holder->query_safe('SELECT pg_backend_pid()');
$holder->query_safe('BEGIN; LOCK TABLE ' . join(', ', map { "outbox.$_" } @others) . ' IN ACCESS EXCLUSIVE MODE');
emit_some($many);
$receiver->wait_delivered($emitted, path => '/ok/well');
pass('deliveries that need none of these tables go on: ' . join(' ', @others));
ok(wait_sql($node, "SELECT reason ~ 'on hold: .*parked .locked.*; process $pid has locked outbox.parked' FROM outbox.status"),
	'the status says what waits, and for which process');
$receiver->control(path => '/ok/ill', behave => '/ok');
is($receiver->delivered(id => $ill), 0, 'what has a row in outbox.parked waits');
$holder->query_safe('ROLLBACK');
$receiver->wait_delivered(1, id => $ill);
ok(wait_settled($node), 'and goes on');
is(ask('SELECT count(*) FROM outbox.parked'), '0', 'its row is removed');

# What each delivery needs: after a bounded number nothing is sent, and it is said.
foreach my $table (qw(positions endpoint_settings))
{
	$holder->query_safe("BEGIN; LOCK TABLE outbox.$table IN ACCESS EXCLUSIVE MODE");
	emit_some($many);
	emit_some($many);
	ok(wait_sql($node, "SELECT reason ~ 'on hold: .*settle .locked.*; process $pid has locked outbox.$table' FROM outbox.status"),
		"$table is locked: the status says so");
	cmp_ok($receiver->delivered(path => '/ok/well'), '<', $emitted, 'no more is sent than could be sent twice');
	$holder->query_safe('ROLLBACK');
	$receiver->wait_delivered($emitted, path => '/ok/well');
	ok(wait_settled($node), 'then all is delivered');
}
# Each table by itself, as VACUUM FULL has it, while events flow.  A lock on the log, on its origin or on the rights to topics holds up emitters, which is
# PostgreSQL's own, and the read.
my %read = map { $_ => 1 } qw(events events_0 events_1 events_2);
foreach my $table (sort(@others), sort keys %needed)
{
	$holder->query_safe("BEGIN; LOCK TABLE outbox.$table IN ACCESS EXCLUSIVE MODE");
	if ($read{$table})
	{
		ok(wait_sql($node, "SELECT reason ~ 'on hold: .*read .locked.*; process $pid has locked outbox.$table' FROM outbox.status"),
			"$table is locked: the status says so");
	}
	elsif ($table =~ /^(?:origins|own_epochs|emit_topics)$/)
	{
		ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.stats"), "$table is locked: views answer");
	}
	else
	{
		emit_some(100);
		$receiver->wait_delivered($emitted, path => '/ok/well');
		pass("$table is locked: deliveries go on");
	}
	$holder->query_safe('ROLLBACK');
}

# A worker starts, and new endpoints are loaded, while the table of attempts is locked.
$holder->query_safe('BEGIN; LOCK TABLE outbox.attempt_log, outbox.attempt_runs IN ACCESS EXCLUSIVE MODE');
my $worker = worker_pid($node);
ask("SELECT pg_terminate_backend($worker)");
endpoint($node, $receiver, 'newcomer', '/ok/newcomer', "topics => '{newcomer}'");
$receiver->wait_delivered(1, path => '/ok/newcomer', id => emit($node, 'newcomer', '{}'));
pass('a worker starts, and sends to a new endpoint');
$holder->query_safe('ROLLBACK');
ask("SELECT outbox.drop_endpoint('newcomer', discard => true)");

# Settings change, and the list of forget() cannot be read: nothing is read, and what was sent is stored.
endpoint($node, $receiver, 'slow', '/slow/one?ms=4000', "topics => '{slow.*}'");
ask("ALTER SYSTEM SET outbox.wakeup_interval = '10ms'; SELECT pg_reload_conf()");
my $slow = emit($node, 'slow.one', '{}');
ok(wait_sql($node, "SELECT processing = 1 FROM outbox.stats WHERE endpoint = 'slow'"), 'a request is in flight');
$holder->query_safe('BEGIN; LOCK TABLE outbox.forgotten IN ACCESS EXCLUSIVE MODE');
ask("SELECT outbox.alter_endpoint('ill', label => 'changed')");
ok(wait_sql($node, "SELECT reason ~ 'on hold: .*reload .locked.*; process $pid has locked outbox.forgotten' FROM outbox.status"),
	'the status says that settings cannot be read');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.attempts WHERE event_id = '$slow'"), 'what was sent is stored');
sleeps_meanwhile(worker_pid($node), 20, 'the worker sleeps meanwhile', sub { sleep 3 });
$holder->query_safe('ROLLBACK');

# A lock that is only waited for holds up the same
$holder->query_safe('BEGIN; LOCK TABLE outbox.endpoint_settings IN ACCESS SHARE MODE');
my $waiter = $node->background_psql('postgres', on_error_stop => 0);
my $waits = $waiter->query_safe('SELECT pg_backend_pid()');
$waiter->query_until(qr/begun/, "\\echo begun\nVACUUM FULL outbox.endpoint_settings;\n");
emit_some($many);
emit_some($many);
ok(wait_sql($node, "SELECT reason ~ 'on hold: .*settle .locked.*; process $waits waits for a lock of outbox.endpoint_settings, which process $pid has' FROM outbox.status"),
	'the status says which process waits for a lock, and for which other')
  or diag ask('SELECT reason FROM outbox.status');
$holder->query_safe('ROLLBACK');
$receiver->wait_delivered($emitted, path => '/ok/well');
$waiter->quit;

# What an operator types
$receiver->control(path => '/ok/ill', behave => '/status/500');
$ill = emit($node, 'ill.first', '{}', "key => 'k'");
foreach my $table (@others, sort keys %needed)
{
	emit_some(10);
	ask("VACUUM FULL outbox.$table");
}
$receiver->control(path => '/ok/ill', behave => '/ok');
$receiver->wait_delivered(1, id => $ill);
emit_some(100);
$receiver->wait_delivered($emitted, path => '/ok/well');
is(scalar(my @all = $receiver->delivered(path => '/ok/well')), $emitted, 'each event once');
$holder->quit;
$node->stop;
done_testing();
