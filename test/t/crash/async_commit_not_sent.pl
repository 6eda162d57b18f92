# No event is sent that a crash of the server can still take back.
# A row that was committed asynchronously is visible before it is durable.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node(
	'main', conf => <<'CONF');
bgwriter_lru_maxpages = 0
wal_writer_delay = 10s
checkpoint_timeout = 1h
CONF
my $receiver = OutboxTest::Receiver->new('main', fsync => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();

sub freeze_walwriter
{
	my $pid = $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill 'STOP', $pid or die "SIGSTOP: $!";
	return;
}

endpoint($node, $receiver, 'all', '/ok/a',
	"backoff_base => '50 ms', backoff_max => '200 ms'");

# Nothing but the worker itself makes these durable
freeze_walwriter();
my $id = $node->safe_psql('postgres',
	"SET synchronous_commit = off; SELECT outbox.emit('async.one', '{}'::jsonb)");
$receiver->wait_delivered(1, id => $id);
kill_everything($node);
start_again($node);
is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM outbox.events WHERE id = '$id'"),
	'1', 'sent: so it is still there');

# Under load, at random points
my $log = "$dir/producer";
foreach my $round (1 .. 5)
{
	freeze_walwriter();
	my $producer = start_producer(
		$node, $log,
		rate => 600, keys => 6, seed => $round,
		topic => "async.r$round", set => 'SET synchronous_commit = off');
	$receiver->wait_new(150 + int(rand 100));
	kill_everything($node);
	stop_producer($producer);
	start_again($node);
}
# Per crash: in flight, and what was settled since the worker itself last
# flushed, which it does before it sends.
check_history(
	$node, $receiver, $log,
	endpoints => ['/ok/a'], async_commit => 1, max_duplicates => 5 * (32 + 20),
	name => 'nothing was sent that a crash took back');

$node->stop;
done_testing();
