# An answer from the former URL of an endpoint says nothing about the receiver at the present one.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub url_of
{
	my ($path) = @_;
	return $receiver->url($path);
}

# The request is under way while the URL changes.
foreach my $batch (1, 10)
{
	my $name = "moved$batch";

	endpoint($node, $receiver, $name, "/hold/$name", "topics => '{$name}', batch_size => $batch, max_attempts => 1");
	emit($node, $name, '{}');
	$receiver->wait_for(1, path => "/hold/$name");
	ask("SELECT outbox.alter_endpoint('$name', url => '" . url_of("/ok/$name") . "')");
	emit($node, $name, '{}');
	$receiver->wait_for(1, path => "/ok/$name");
	$receiver->control(path => "/hold/$name", behave => '/status/410');
	$receiver->wait_for(2, path => "/ok/$name");
	ok(wait_sql($node, "SELECT delivered = 2 AND state = 'active' FROM outbox.stats WHERE endpoint = '$name'"),
		"410 from the former URL does not disable, batch_size $batch");
}

# So is an answer whose effect is not stored yet.
endpoint($node, $receiver, 'locked', '/status/410/locked', "topics => '{locked}'");
my $session = $node->background_psql('postgres', on_error_stop => 1);
$session->query_safe("BEGIN; SELECT FROM outbox.endpoint_settings WHERE name = 'locked' FOR UPDATE");
emit($node, 'locked', '{}');
ok(wait_sql($node, "SELECT failed_attempts = 1 FROM outbox.stats WHERE endpoint = 'locked'"), 'the receiver at the first URL wants no more');
$session->query_safe("SELECT outbox.alter_endpoint('locked', url => '" . url_of('/ok/locked') . "'); COMMIT");
$session->quit;
$receiver->wait_for(1, path => '/ok/locked');
ok(wait_sql($node, "SELECT delivered = 1 AND state = 'active' FROM outbox.stats WHERE endpoint = 'locked'"), 'the one at the second URL gets its event');

# Failures of the former URL do not open the breaker.
endpoint($node, $receiver, 'many', '/hold/many', "topics => '{many}', ordering => 'none', max_in_flight => 8");
emit($node, 'many', '{}') foreach 1 .. 8;
$receiver->wait_for(8, path => '/hold/many');
ask("SELECT outbox.alter_endpoint('many', url => '" . url_of('/ok/many') . "')");
$receiver->control(path => '/hold/many', behave => '/status/500');
emit($node, 'many', '{}');
$receiver->wait_for(9, path => '/ok/many');
is($node->safe_psql('postgres', "SELECT state FROM outbox.stats WHERE endpoint = 'many'"), 'active', 'failures at the former URL open no breaker');
unlike(slurp_file($node->logfile), qr/"many" is backing off/, 'and none is in the log');
$node->stop;
done_testing();
