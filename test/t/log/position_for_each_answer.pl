# A position is written for each answer, not for each event that is sent.
# What is counted is rows.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $events = 40;

sub last_number { return ask('SELECT max(number) FROM outbox.positions') }

sub rows_since
{
	my ($number, $of) = @_;
	return ask("SELECT count(*) FROM outbox.positions WHERE number > $number AND endpoint_id $of");
}

# 'busy' has one request in flight after the other, and 'often' one from time to time.  Meanwhile the outcomes
# of 'clock' are settled, and others begin to follow the shared position many times a second.
endpoint($node, $receiver, 'busy', '/slow/busy?ms=60', "topics => '{busy}', max_in_flight => 1");
endpoint($node, $receiver, 'often', '/slow/often?ms=150', "topics => '{often}'");
endpoint($node, $receiver, 'clock', '/slow/clock?ms=10', "topics => '{clock}', max_in_flight => 1");
ask("SELECT count(outbox.create_endpoint('idle' || i, '" . $receiver->url('/ok/idle')
	  . "', topics => ARRAY['idle.' || i])) FROM generate_series(1, 4 * $events) i");
my %events = (busy => $events, often => $events / 2);
my (%rows, %most);
foreach my $try (1 .. 3)
{
	my ($before, $begun) = (last_number(), ask('SELECT extract(epoch FROM clock_timestamp())'));

	ask("SELECT count(outbox.emit('busy', '{}')) FROM generate_series(1, $events);"
		  . " SELECT count(outbox.emit('clock', '{}')) FROM generate_series(1, 5 * $events)");
	ask("DO 'BEGIN FOR i IN 1..4 * $events LOOP PERFORM outbox.emit(''idle.'' || i, ''{}'');"
		  . " IF i % 8 = 0 THEN PERFORM outbox.emit(''often'', ''{}''); END IF;"
		  . " COMMIT; PERFORM pg_sleep(0.04); END LOOP; END'");
	ok(wait_sql($node, 'SELECT count(*) = ' . 10.5 * $events * $try . ' FROM outbox.attempts'), 'all are delivered');
	my $seconds = ask("SELECT ceil(extract(epoch FROM clock_timestamp()) - $begun)");

	# One for each outcome, and once a second for what has none yet
	foreach my $name (sort keys %events)
	{
		$rows{$name} = rows_since($before, "= (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = '$name')");
		$most{$name} = $events{$name} + $seconds + 4;
	}
	last unless grep { $rows{$_} > $most{$_} } keys %rows;
}
cmp_ok($rows{$_}, '<=', $most{$_}, "$_: positions of $events{$_} events: $rows{$_}") foreach sort keys %rows;

# What has no outcome is stored nevertheless, so that the log need not be kept for its place.
# One follows the shared position, the other one has a position of its own.
endpoint($node, $receiver, 'hangs', '/slow/hangs?ms=60000', "topics => '{hangs}', timeout => '20 s'");
endpoint($node, $receiver, 'later', '/ok/later', "topics => '{later}', timeout => '20 s'");
endpoint($node, $receiver, 'quick', '/ok/quick', "topics => '{quick}'");
my $newest = '(SELECT DISTINCT ON (endpoint_id) * FROM outbox.positions WHERE endpoint_id > 0'
  . ' ORDER BY endpoint_id, number DESC) p JOIN outbox.endpoint_settings s USING (endpoint_id)';

sub names_pending
{
	my ($name, $id) = @_;

	ok( wait_sql(
			$node,
			"SELECT seq = ANY (outbox.pending_seqs(pending)) FROM $newest, outbox.events WHERE name = '$name' AND id = '$id'"),
		"$name: the stored position names what is in flight");
	return;
}
my $id = emit($node, 'later', '{}');
$receiver->wait_delivered(1, id => $id);
$receiver->control(path => '/ok/later', behave => '/slow?ms=60000');
my $later = emit($node, 'later', '{}');
names_pending('hangs', emit($node, 'hangs', '{}'));
names_pending('later', $later);

# An event that nothing else is settled after: the shared position still gets there, whatever hangs.
my $passed = "SELECT bool_and(pg_visible_in_snapshot(e.xid, read)) FROM outbox.events e, (SELECT DISTINCT ON (endpoint_id) *"
  . " FROM outbox.positions ORDER BY endpoint_id, number DESC) p WHERE id = '%s' AND (%s endpoint_id < 0)";
$receiver->wait_delivered(1, id => ($id = emit($node, 'quick', '{}')));
ok(wait_sql($node, sprintf $passed, $id, ''), 'the shared position passes an event');

# One of an endpoint with a request that hangs does so when that has ended, and the log is given up.
$receiver->stop;
$receiver->start;
ok(wait_sql($node, sprintf $passed, $id, 'shared IS NULL OR'), 'all positions pass an event');

# One that has a position of its own, while outcomes of another endpoint are settled all the time
ask("SELECT count(outbox.emit('clock', '{}')) FROM generate_series(1, 1500)");
endpoint($node, $receiver, 'own', '/ok/own', "topics => '{own}'");
$id = emit($node, 'own', '{}');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.attempts WHERE event_id = '$id'"), 'an outcome is stored');
$receiver->control(path => '/ok/own', behave => '/slow?ms=60000');
names_pending('own', emit($node, 'own', '{}'));

$node->stop;
done_testing();
