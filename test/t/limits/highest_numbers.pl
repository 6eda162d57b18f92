# Events near the highest number, and endpoints near the highest id, are delivered and listed.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $top = '9223372036854770000';

# Pages of two rows, by the cursor of the last row
sub pages
{
	my ($call) = @_;
	my ($cursor, @found) = ('NULL');

	for my $page (1 .. 20)
	{
		my @rows = map { [ split /\|/ ] } split /\n/, ask("SELECT seq, endpoint, cursor FROM outbox.$call, before => $cursor, page_size => 2)");
		last if !@rows;
		push @found, map { "$_->[0] $_->[1]" } grep { $_->[0] ne '' } @rows;
		$cursor = "'$rows[-1][2]'";
	}
	return join "\n", @found;
}

ask("ALTER TABLE outbox.endpoint_settings ALTER COLUMN endpoint_id RESTART WITH 2147483646");
endpoint($node, $receiver, $_, "/ok/$_", "topics => '{load.*}', tenant => 't', max_attempts => 1") foreach qw(last highest);
is(ask("SELECT max(endpoint_id) FROM outbox.endpoint_settings"), 2147483647, 'the highest id');
ask("SELECT setval('outbox.events_seq', $top)");
my @ids = map { emit($node, 'load.n', "{\"n\": $_}", "key => 'k', tenant => 't'") } 1 .. 5;
foreach my $name (qw(last highest))
{
	$receiver->wait_delivered(1, path => "/ok/$name", id => $_) foreach @ids;
}
ok(wait_sql($node, "SELECT bool_and(pending = 0 AND delivered = 5) FROM outbox.stats"), 'delivered');
my $all = ask("SELECT string_agg(seq || ' ' || endpoint, E'\\n' ORDER BY seq DESC, endpoint DESC) FROM outbox.deliveries");
is(scalar(split /\n/, $all), 10, 'ten deliveries');
foreach my $call ("deliveries_page(tenant => 't'", "attempts_page(tenant => 't'")
{
	is(pages($call), $all, "outbox.$call)");
}
foreach my $cursor ('9223372036854775808:1:0', '1:99999999999:0', '99999999999999999999:1:0', '1:1')
{
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.deliveries_page(tenant => 't', before => '$cursor')");
	like($err, qr/ERROR:  22023: invalid cursor/, "no cursor: $cursor");
}
is(ask("SELECT outbox.replay('highest', now() - interval '1 h')"), 5, 'a replay');
ok(wait_sql($node, "SELECT delivered = 10 FROM outbox.stats WHERE endpoint = 'highest'"), 'is sent');
ask("SELECT outbox.seek_endpoint('last', 'beginning')");
ok(wait_sql($node, "SELECT delivered = 10 FROM outbox.stats WHERE endpoint = 'last'"), 'so is what follows a seek');
$receiver->control(path => '/ok/last', behave => '/status/500');
my $dead = emit($node, 'load.n', '{"n": 6}', "tenant => 't'");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'last'"), 'a dead letter');
$receiver->control(path => '/ok/last', behave => '/ok');
is(ask("SELECT outbox.retry('last')"), 1, 'is retried');
$receiver->wait_delivered(1, path => '/ok/last', id => $dead);
my $test = ask("SELECT outbox.send_test('highest')");
$receiver->wait_delivered(1, path => '/ok/highest', id => $test);
pass('a test event arrives');
$node->restart;
my $after = emit($node, 'load.n', '{"n": 7}', "tenant => 't'");
$receiver->wait_delivered(1, path => "/ok/$_", id => $after) foreach qw(last highest);
pass('and events after a restart');

$node->stop;
done_testing();
