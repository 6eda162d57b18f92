# outbox.forget() also empties answers to events whose deliveries have ended.
# Such an event outlives its piece of the log as long as an attempt has an answer, and no longer.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The piece of the log that events are written to is changed, and the former one is emptied.
sub rotate
{
	my ($log) = @_;

	ask("UPDATE outbox.pieces SET piece = (piece + 2) % 3, since = since - interval '30 days' WHERE log = '$log'");
	my $worker = worker_pid($node);
	ask("SELECT pg_terminate_backend($worker)");
	return ok(wait_sql($node, "SELECT since > now() - interval '1 day' FROM outbox.pieces WHERE log = '$log'"), "$log: another piece");
}

$receiver->control(path => '/status/500', behave => '/status/500?body=unknown%20customer%20Jane');
foreach my $of ([ 'acme', 'acme' ], [ 'globex', 'globex' ], [ 'none', '' ])
{
	my ($name, $tenant) = @$of;
	endpoint($node, $receiver, $name, '/status/500', "topics => '{$name.*}', max_attempts => 1" . ($tenant && ", tenant => '$tenant'"));
	ask("SELECT outbox.emit('$name.a', '{}'" . ($tenant && ", tenant => '$tenant'") . ')');
}
ok(wait_sql($node, 'SELECT count(*) = 3 FROM outbox.dead_letters'), 'dead letters');
my $answers = "SELECT count(*) FROM outbox.attempt_log a WHERE a.response_body IS NOT NULL OR a.error <> 'forgotten'";
ok(wait_sql($node, "SELECT ($answers) = 3"), 'and their answers');
rotate('events');
my $kept = "SELECT string_agg(COALESCE(tenant, 'none'), ' ' ORDER BY tenant) FROM outbox.kept_events k WHERE NOT EXISTS (SELECT FROM outbox.events e WHERE e.seq = k.seq)";
ok(wait_sql($node, $kept, 'acme globex none'), 'their events outlive the piece of the log') or diag ask($kept);

ask("SELECT outbox.drop_endpoint('$_', discard => true)") foreach qw(acme globex none);
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.parked'), 'the deliveries have ended');
rotate('events');
ok(wait_sql($node, $kept, 'acme globex'), 'an event of a tenant stays with its answers') or diag ask($kept);

ask("SELECT outbox.emit('acme.new', '{}', tenant => 'acme')");
ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'acme'"), 'forgotten');
is(ask("SELECT attempts FROM outbox.forget_progress WHERE tenant = 'acme'"), '1', 'with one attempt');
is(ask($answers), '2', 'the answer is empty, and the others are not');
rotate('events');
ok(wait_sql($node, $kept, 'globex'), 'then its event goes') or diag ask($kept);
rotate('attempts');
ok(wait_sql($node, "SELECT ($answers) = 0"), 'the attempts have come to their end');
rotate('events');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.kept_events'), 'and so have all events');
$node->stop;
done_testing();
