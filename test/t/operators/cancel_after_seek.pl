# An event that is cancelled in the transaction that moves many endpoints is not sent again.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The worker reads the settings of 500 endpoints at a time, and of the last ones not at first.
my ($others, $last) = (560, 20);
ask("SELECT count(outbox.create_endpoint(CASE WHEN n > $others THEN 'last' ELSE 'other' END || n, '" . $receiver->url('/ok/n')
	  . "', topics => CASE WHEN n > $others THEN '{last.*}' ELSE '{none}' END::text[])) FROM generate_series(1, $others + $last) n");
my $event = emit($node, 'last.one', '{}');
$receiver->wait_delivered($last, id => $event);
wait_status($node, $event, 'delivered', 'an event is delivered');

# Paused, they do not send it before the command is carried out.
ask("SELECT outbox.pause_endpoint(name) FROM outbox.endpoints WHERE name ~ '^last'");
ok(wait_sql($node, "SELECT count(*) = $last FROM outbox.endpoint_settings s, outbox.endpoint_stats(s.endpoint_id) t WHERE t.state = 'paused'"),
	'the last ones are paused');
ask("BEGIN; SELECT outbox.seek_endpoint(name, 'beginning') FROM outbox.endpoints; SELECT outbox.cancel('$event'); COMMIT");
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.commands)'), 'all are moved, and it is cancelled');
is(ask("SELECT count(*) FROM outbox.parked WHERE event_id = '$event' AND status = 'cancelled'"), $last, 'for each endpoint');
ask("SELECT outbox.resume_endpoint(name) FROM outbox.endpoints WHERE name ~ '^last'");
my $next = emit($node, 'last.two', '{}');
$receiver->wait_delivered($last, id => $next);
is(scalar(() = $receiver->requests(id => $event)), $last, 'it is not sent again');
$node->stop;
done_testing();
