# A database keeps events and attempts as long as its own operators say, and the others as before.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my ($rc, $out, $err);

sub fails
{
	my ($sql, $name) = @_;
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");
	like($err, qr/\b22023\b.*HINT/s, "$name: 22023, with a hint");
	return;
}

ask('CREATE DATABASE other; CREATE ROLE operator LOGIN');
ask('CREATE EXTENSION outbox', 'other');
ask("SELECT outbox.grant_to('operator', 'operate')");
endpoint($node, $receiver, 'a', '/ok/a');
endpoint($node, $receiver, 'b', '/ok/b', undef, 'other');
my $here = emit($node, 'a', '{}');
my $there = emit($node, 'a', '{}', undef, 'other');
$receiver->wait_delivered(1, id => $_) foreach $here, $there;
my $pid = worker_pid($node);

is(ask('SELECT retention, attempts_retention FROM outbox.status'), '7 days|1 day', 'as the server is set');
$node->safe_psql('postgres', "SELECT outbox.set_retention(events => '2 s')", extra_params => [ '-U', 'operator' ]);
is(ask('SELECT retention, attempts_retention FROM outbox.status'), '00:00:02|1 day', 'as an operator of the database says');
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id = '$here')"), 'the event is forgotten');
is(ask("SELECT count(*) FROM outbox.attempts WHERE event_id = '$here'"), '1', 'its attempt is not');
ask("SELECT outbox.set_retention(attempts => '2 s')");
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.attempts WHERE event_id = '$here')"), 'then it is, too');
is(worker_pid($node), $pid, 'by the same worker');
is(ask("SELECT count(*) FROM outbox.events", 'other'), '1', 'the other database keeps its events');
is(ask("SELECT count(*) FROM outbox.attempts", 'other'), '1', 'and its attempts');
is(ask('SELECT retention, attempts_retention FROM outbox.status', 'other'), '7 days|1 day', 'which it says');

# After a restart, and in a database without endpoints
$node->restart;
my $again = emit($node, 'a', '{}');
$receiver->wait_delivered(1, id => $again);
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id = '$again')"), 'after a restart: forgotten again');

# Reset, which counts at once: a piece is in use for three and a half days again.
ask("SELECT outbox.set_retention(reset => '{events,attempts}')");
is(ask('SELECT retention, attempts_retention FROM outbox.status'), '7 days|1 day', 'reset');
my $kept = emit($node, 'a', '{}');
$receiver->wait_delivered(1, id => $kept);
my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
wait_until
{
	emit($node, 'a', '{}');
	ask("SELECT max(w.last_loop_at) > p.since + interval '4 s' FROM outbox.workers w, outbox.pieces p"
		  . " WHERE w.datname = 'postgres' AND p.log = 'events' GROUP BY p.since") eq 't'
}
'the worker works past the time that counted before';
is(ask("SELECT piece FROM outbox.pieces WHERE log = 'events'"), $piece, 'the piece in use stays in use');
is(ask("SELECT count(*) FROM outbox.events WHERE id = '$kept'"), '1', 'and the event is there');

fails("SELECT outbox.set_retention(events => '0 s')", 'nothing');
fails("SELECT outbox.set_retention(attempts => '-1 day')", 'less than nothing');
fails("SELECT outbox.set_retention(events => '1000 years')", 'too much');
fails("SELECT outbox.set_retention(events => '1 day', reset => '{events}')", 'both');
fails("SELECT outbox.set_retention(reset => '{log}')", 'no such thing');
$node->stop;
done_testing();
