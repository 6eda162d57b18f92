# Dead letters of a backlog are not collected in memory while outcomes cannot be stored.
# Also: events that were committed late become dead letters as fast as others.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.max_backlog_size = '1MB'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $n = 0;

sub emission
{
	my ($events) = @_;
	$n += $events;
	return "SELECT count(outbox.emit('load.n', jsonb_build_object('n', n, 'filler', repeat('x', 1000)))) FROM generate_series(1, $events) n";
}

# Returns when the worker knows them.
sub emit_some
{
	ask(emission(@_));
	return wait_sql($node, "SELECT pending + dead + delivered = $n FROM outbox.stats WHERE endpoint = 'stopped'");
}

endpoint($node, $receiver, 'stopped', '/ok/stopped', "topics => '{load.*}'");
pause($node, 'stopped');
ok(emit_some(1), 'the first event is read');
my $pid = worker_pid($node);

# As CREATE INDEX does: the worker may read, and write nothing.
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE outbox.parked IN SHARE MODE');
emit_some(5000);
ok(wait_sql($node, "SELECT dead > 0 FROM outbox.stats WHERE endpoint = 'stopped'"), 'what is retained too long is given up');
my $before = private_memory($pid);
my $most = 0;
foreach (1 .. 6)
{
	ok(emit_some(5000), 'the log is read');
	my $now = private_memory($pid);
	$most = $now if $now > $most;
}
note(sprintf '%.0f MB before, at most %.0f MB', $before, $most);
cmp_ok($most - $before, '<', 16, 'memory stays what it was while nothing can be stored');
cmp_ok(ask("SELECT dead FROM outbox.stats WHERE endpoint = 'stopped'"), '<', 4000, 'no more is given up');
is(ask('SELECT count(*) FROM outbox.parked'), '0', 'nothing was stored');
$lock->query_safe('COMMIT');
$lock->quit;
ok(wait_sql($node, "SELECT dead > $n * 0.9 FROM outbox.stats WHERE endpoint = 'stopped'"), 'then they become dead letters');
ok(wait_sql($node, "SELECT dead = (SELECT count(*) FROM outbox.dead_letters) FROM outbox.stats WHERE endpoint = 'stopped'"),
	'all of them are stored');

# A transaction that was open when later ones were read
my $was = $n;
my $late = $node->background_psql('postgres');
$late->query_safe('BEGIN; ' . emission(8000));
ask(emission(3000));
ok(wait_sql($node, "SELECT dead > $was FROM outbox.stats WHERE endpoint = 'stopped'"), 'later ones are given up');
$late->query_safe('COMMIT');
$late->quit;
my $begun = time;
ask(emission(3000));
ok(wait_until { ask("SELECT dead > $was + 11500 FROM outbox.stats WHERE endpoint = 'stopped'") eq 't' }
	'what was committed late is given up as fast as the rest', 20);
note(sprintf '%d s', time - $begun);
is(worker_pid($node), $pid, 'by the same worker');
$node->stop;
done_testing();
