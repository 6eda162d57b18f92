# outbox.resend() sends a delivered event again, and outbox.send_test() an event like the user's own.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "restart_after_crash = on\n");
my $receiver = OutboxTest::Receiver->new('main');
my ($rc, $out, $err);

sub fails
{
	my ($sql, $sqlstate, $name) = @_;
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");
	like($err, qr/\b$sqlstate\b.*HINT/s, "$name: $sqlstate, with a hint");
	return;
}

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{order.*}'");
endpoint($node, $receiver, 'b', '/ok/b', "topics => '{order.*}'");
endpoint($node, $receiver, 'down', '/status/500/c', "topics => '{order.bad}', max_attempts => 1");

# --- resend

my $id = emit($node, 'order.one', '{"n": 1}', "key => 'k'");
$receiver->wait_delivered(1, path => $_, id => $id) foreach '/ok/a', '/ok/b';
ok(wait_sql($node, "SELECT bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id = '$id'"), 'delivered');
ask("SELECT outbox.resend('a', '$id')");
my @got = $receiver->wait_delivered(2, path => '/ok/a', id => $id);
is($got[1]{sha256}, $got[0]{sha256}, 'the same body');
is($got[1]{signature}, 'valid', 'signed');
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$id' AND endpoint = 'a'"),
	'delivered again');
is(scalar(() = $receiver->requests(path => '/ok/b', id => $id)), 1, 'to this endpoint alone');

# More than one call, and more than one transaction
ask("BEGIN; SELECT outbox.resend('a', '$id'); ROLLBACK");
ask("SELECT outbox.pause_endpoint('a')");
ask("SELECT outbox.resend('a', '$id')");
ok(wait_sql($node, "SELECT status = 'retrying' FROM outbox.deliveries WHERE event_id = '$id' AND endpoint = 'a'"),
	'while the endpoint is paused it waits, and is shown');
ask("SELECT outbox.resend('a', '$id')");
is(ask("SELECT count(*) FROM outbox.commands WHERE action = 'resend'"), '0', 'a second time meanwhile it is not asked for again');

# The log is emptied meanwhile: the event is kept.
ask("SELECT outbox.set_retention(events => '4 s')");
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id = '$id')"), 'its piece of the log is emptied');
ask("SELECT outbox.resume_endpoint('a')");
@got = $receiver->wait_delivered(3, path => '/ok/a', id => $id);
is($got[2]{sha256}, $got[0]{sha256}, 'and the event is sent all the same');
is(scalar(() = $receiver->requests(path => '/ok/a', id => $id)), 3, 'what was rolled back was not sent');
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.kept_events)'), 'and then forgotten');
fails("SELECT outbox.resend('a', '$id')", 42704, 'what is forgotten');

ask("SELECT outbox.set_retention(reset => '{events}')");

# Another worker has emptied it when the command is carried out, here by hand.
$id = emit($node, 'order.gone', '{}');
$receiver->wait_delivered(1, path => '/ok/a', id => $id);
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$id' AND endpoint = 'a'"), 'delivered');
ask("BEGIN; SELECT outbox.resend('a', '$id'); TRUNCATE outbox.events_0, outbox.events_1, outbox.events_2; COMMIT");
ok((wait_until { slurp_file($node->logfile) =~ /WARNING:  outbox event with seq \d+ for endpoint "a" is gone, and is not sent again/ } 'a line'),
	'the log says that the event is gone');
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.commands)'), 'and the command does not stay');
is(scalar(() = $receiver->requests(path => '/ok/a', id => $id)), 1, 'it is not sent');

# A worker that dies between the command and the request
$id = emit($node, 'order.two', '{"n": 2}');
$receiver->wait_delivered(1, path => '/ok/a', id => $id);
ok(wait_sql($node, "SELECT bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id = '$id'"), 'delivered');
$receiver->control(path => '/ok/a', behave => '/hold');
ask("SELECT outbox.resend('a', '$id')");
wait_until { scalar(() = $receiver->requests(path => '/ok/a', id => $id)) == 2 } 'the request';
my $pid = worker_pid($node);
kill 'KILL', $pid;
$receiver->control(path => '/ok/a', behave => '');
new_worker($node, $pid);
wait_until { scalar(grep { $_->{status} && $_->{status} == 200 } $receiver->requests(path => '/ok/a', id => $id)) >= 2 }
	'killed meanwhile: it is sent';

# What was not delivered
my $bad = emit($node, 'order.bad', '{}');
ok(wait_sql($node, "SELECT status = 'dead' FROM outbox.deliveries WHERE event_id = '$bad' AND endpoint = 'down'"), 'dead');
my $tried = () = $receiver->requests(path => '/status/500/c', id => $bad);
ask("SELECT outbox.resend('down', '$bad')");
wait_until { scalar(() = $receiver->requests(path => '/status/500/c', id => $bad)) > $tried } 'a dead one is tried again';
ask("SELECT outbox.pause_endpoint('b')");
my $waiting = emit($node, 'order.three', '{}');
ok(wait_sql($node, "SELECT status = 'pending' FROM outbox.deliveries WHERE event_id = '$waiting' AND endpoint = 'b'"), 'pending');
fails("SELECT outbox.resend('b', '$waiting')", 55000, 'one that waits');
fails("SELECT outbox.resend('down', '$waiting')", 42704, 'one that it never had');
fails("SELECT outbox.resend('a', NULL)", 22004, 'NULL');
fails("SELECT outbox.resend('nobody', '$waiting')", 42704, 'no such endpoint');
fails("SELECT outbox.resend('a', gen_random_uuid())", 42704, 'no such event');

# --- send_test

$id = ask(q{SELECT outbox.send_test('a', 'order.shipped', '{"order": 7}')});
($rc) = $receiver->wait_delivered(1, id => $id);
is("$rc->{path} $rc->{headers}{'outbox-topic'} $rc->{headers}{'outbox-type'}", '/ok/a order.shipped order.shipped',
	'a test event with a topic of the user');
like($rc->{body}, qr/"data":\{"order": 7\}/, 'and a payload');
ok(wait_sql($node, "SELECT string_agg(endpoint || ' ' || status, ',') FROM outbox.deliveries WHERE event_id = '$id'", 'a delivered'),
	'outbox.deliveries shows it at this endpoint alone');
ask("SELECT outbox.resume_endpoint('b')");
$receiver->wait_delivered(1, path => '/ok/b', id => $waiting);
is(scalar(() = $receiver->requests(id => $id)), 1, 'though others subscribe to its topic');
is(ask("SELECT count(*) FROM outbox.events WHERE id = '$id'"), '0', 'it is not in the log');
is( ask(qq{SELECT count(outbox.send_test('a', 'order.shipped', '{"order": 8}'::$_))}), '1', "the payload may be $_")
  foreach qw(json text jsonb varchar);
is(ask(q{SELECT count(outbox.send_test('a', 'order.shipped', NULL))}), '1', 'or NULL');
fails(q{SELECT outbox.send_test('a', 'outbox.disabled', '{}')}, 42939, 'a reserved topic');
fails(q{SELECT outbox.send_test('a', 'not a topic', '{}')}, 22023, 'an invalid topic');
fails(q{SELECT outbox.send_test('a', NULL, '{}')}, 22004, 'no topic');
fails(q{SELECT outbox.send_test('a', 'a', to_jsonb(repeat('x', 2000000)))}, 54000, 'a payload that is too large');
$node->stop;
done_testing();
