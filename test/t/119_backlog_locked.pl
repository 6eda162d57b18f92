# Dead letters of a backlog are not collected in memory while outcomes cannot be stored.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub memory
{
	my ($pid) = @_;
	my ($kb) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+)/m;
	return $kb / 1024;
}

endpoint($node, $receiver, 'stopped', '/ok/stopped', "topics => '{load.*}'");
ask("SELECT outbox.pause_endpoint('stopped')");
ask(<<'SQL');
SELECT count(outbox.emit('load.n', jsonb_build_object('n', n, 'filler', repeat('x', 400)))) FROM generate_series(1, 100000) n
SQL
my $pid = worker_pid($node);
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE outbox.pieces IN ACCESS EXCLUSIVE MODE');
my $before = memory($pid);
my $most = 0;
ask("ALTER SYSTEM SET outbox.max_backlog_size = '1MB'");
$node->reload;
foreach (1 .. 40)
{
	usleep(100_000);
	my $now = memory($pid);
	$most = $now if $now > $most;
}
note(sprintf '%.0f MB before, at most %.0f MB', $before, $most);
cmp_ok($most - $before, '<', 24, 'memory stays what it was while nothing can be stored');
$lock->query_safe('COMMIT');
$lock->quit;
ok(wait_sql($node, "SELECT dead > 90000 FROM outbox.stats WHERE endpoint = 'stopped'"), 'then they become dead letters');
ok(wait_sql($node, "SELECT dead = (SELECT count(*) FROM outbox.dead_letters) FROM outbox.stats WHERE endpoint = 'stopped'"),
	'all of them are stored');
is(worker_pid($node), $pid, 'by the same worker');
$node->stop;
done_testing();
