# A column added by hand to a table of outbox is named, loses nothing, and may be dropped again.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'ok', '/ok/a', "topics => '{ok.*}'");
endpoint($node, $receiver, 'retry', '/ok/b', "topics => '{retry.*}', backoff_base => '20 ms', backoff_max => '20 ms', max_attempts => 1000000");
my $ok = emit($node, 'ok.first', '{}');
wait_status($node, $ok, 'delivered', 'it works');

# A row of events or scheduled events is written by the session that emits.
foreach my $table ('events', 'scheduled')
{
	my $more = $table eq 'scheduled' ? ", deliver_at => now() + interval '1 s'" : '';
	my ($out, $err);

	ask("ALTER TABLE outbox.$table ADD COLUMN zz text");
	$node->psql('postgres', "SELECT outbox.emit('ok.refused', '{}'$more)", stdout => \$out, stderr => \$err);
	like($err, qr/table "outbox\.$table" has a column "zz" that the library/, "$table: the additional column is named");
	like($err, qr/ALTER TABLE outbox\.$table DROP COLUMN zz/, 'with the command that helps');
	ask("ALTER TABLE outbox.$table DROP COLUMN zz");
	my $id = ask("SELECT outbox.emit('ok.later', '{\"a\": 1}', key => 'k'$more)");
	wait_status($node, $id, 'delivered', "$table: without it all goes on");
	is(ask("SELECT key || payload FROM outbox.events WHERE id = '$id'"), 'k{"a": 1}', 'and the event is whole');
}

# One in a table that a subscription writes to means nothing, and does no harm.
foreach my $change ('ADD COLUMN zz int', 'DROP COLUMN zz')
{
	ask("ALTER TABLE outbox.emitted $change");
	my $id = ask('SELECT gen_random_uuid()');
	ask("INSERT INTO outbox.emitted (source, id, xid, topic, payload) VALUES ('shop', '$id', '1', 'ok.taken', '{}')");
	wait_status($node, $id, 'delivered', "emitted: a row is taken after $change");
	ask("INSERT INTO outbox.emitted (source, id, xid, topic, payload) VALUES ('shop', '$id', '1', 'ok.taken', '{}')");
	is(ask("SELECT count(*) FROM outbox.refused_events WHERE event ->> 'id' = '$id'"), '1', 'and one that is refused is set aside');
}

# Rows of the others are written by the worker.
foreach my $table ('parked', 'positions', 'attempt_log', 'attempt_runs', 'ticks', 'figures')
{
	ask("ALTER TABLE outbox.$table ADD COLUMN zz text");
	$receiver->control(path => '/ok/b', behave => '/status/500');
	my @ids = map { emit($node, 'retry.n', '{}', "key => 'k$_'") } 1 .. 5;
	$receiver->wait_events(1, id => $ids[0]);
	ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.held_steps WHERE last_error LIKE '%\"outbox.$table\" has a column \"zz\"%'"),
		"$table: the step that writes it is on hold, and says why")
	  if $table =~ /^(?:parked|positions|attempt_log)$/;
	ask("ALTER TABLE outbox.$table DROP COLUMN zz");
	$receiver->control(path => '/ok/b', behave => '/ok');
	replace_worker($node);
	wait_status($node, $_, 'delivered', "$table: it is not lost") foreach @ids;
	$receiver->wait_delivered(1, id => $_) foreach @ids;
}
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'no step is on hold');

$node->stop;
done_testing();
