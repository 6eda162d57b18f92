# An operator's pause stays when the receiver answers 410 meanwhile, so the customer cannot end it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

my $worker_says = "SELECT e.state = 'paused' FROM outbox.endpoint_settings s, outbox.endpoint_stats(s.endpoint_id) e WHERE s.name = '%s'";
ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");

# The worker knows of the pause before the answer, or after it.
foreach my $known (1, 0)
{
	my $name = "acme.$known";

	endpoint($node, $receiver, $name, "/hold/$known", "topics => '{t$known}', tenant => 'acme'");
	emit($node, "t$known", '{}', "tenant => 'acme'");
	$receiver->wait_for(1, path => "/hold/$known");
	my $session = $node->background_psql('postgres', on_error_stop => 1);
	$session->query_safe("BEGIN; SELECT outbox.pause_endpoint('$name')");
	if ($known)
	{
		$session->query_safe('COMMIT');
		ok(wait_sql($node, sprintf $worker_says, $name), 'the worker knows that it is paused');
	}
	$receiver->control(path => "/hold/$known", behave => '/status/410');
	ok(wait_sql($node, "SELECT failed_attempts = 1 FROM outbox.stats WHERE endpoint = '$name'"), 'the receiver wants no more');
	$session->query_safe('COMMIT') unless $known;
	$session->quit;
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.parked JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = '$name'"), 'that is stored');
	ok(wait_sql($node, sprintf $worker_says, $name), 'for the worker the endpoint is paused');
	is(ask("SELECT state, reason ~ '^paused by' FROM outbox.endpoints WHERE name = '$name'"), 'paused|t', 'and as it is stored');
	my (undef, undef, $error) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT outbox.portal_resume_endpoint('acme', '$name')", extra_params => [ '-U', 'portal' ]);
	like($error, qr/55000/, 'and its customer cannot resume it');
}

# What a customer pauses is paused by it, whatever its receiver did before.
endpoint($node, $receiver, 'acme.down', '/status/500/down', "topics => '{down}', tenant => 'acme', backoff_base => '1 h', backoff_max => '2 h'");
ask(q(SELECT count(outbox.emit('down', '{}', tenant => 'acme')) FROM generate_series(1, 30)));
ok(wait_sql($node, "SELECT state = 'backing_off' AND next_attempt_at IS NOT NULL FROM outbox.stats WHERE endpoint = 'acme.down'"), 'an endpoint backs off');
is(ask("SELECT p ->> 'state', p ->> 'reason', p ->> 'next_attempt_at' FROM outbox.portal_pause_endpoint('acme', 'acme.down') p"),
	'paused|paused by its tenant|', 'its customer pauses it, and is told so at once');
$node->stop;
done_testing();
