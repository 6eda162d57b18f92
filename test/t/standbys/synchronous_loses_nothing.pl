# With synchronous replication, no event is sent that a failover can lose.
# That holds whatever the synchronous_commit of the emitting session is.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('primary', streaming => 1);
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/a');
$node->backup('backup');

# With a restart: after a mere reload it is unknown when the checkpointer has told
# the other processes.
sub require_standby
{
	$node->safe_psql('postgres',
		"ALTER SYSTEM SET synchronous_standby_names = 'standby'");
	$node->restart;
	return;
}

# Commits that do not wait for the standby themselves
sub locally
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', "SET synchronous_commit = local; $sql");
}

sub emit_locally
{
	my ($topic) = @_;
	return locally("SELECT outbox.emit('$topic', '{}'::jsonb)");
}

# No standby is there
require_standby();
my $id = emit_locally('sync.one');
nothing_arrives($receiver, 'no standby: not sent', 2, id => $id);

my $pid = worker_pid($node);
$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
nothing_arrives($receiver, 'worker cancelled: not sent', 1, id => $id);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
$pid = new_worker($node, $pid);
nothing_arrives($receiver, 'worker terminated: not sent', 2, id => $id);

# A terminated emitter's commit is visible, too
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $backend = $session->query_safe('SELECT pg_backend_pid()');
$session->query_until(qr/go/, <<'SQL');
\echo go
SELECT outbox.emit('sync.cancelled', '{}'::jsonb);
SQL
wait_sql($node,
	"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $backend");
$node->safe_psql('postgres',
	"SET synchronous_commit = local; SELECT pg_cancel_backend($backend)");
ok( wait_sql(
		$node,
		"SELECT count(*) = 1 FROM outbox.events WHERE topic = 'sync.cancelled'"),
	'a cancelled wait leaves its event visible');
nothing_arrives($receiver, 'and not sent', 1);
$session->quit;

# The worker is not stuck in that wait
ok( wait_sql(
		$node,
		"SELECT last_loop_at > now() - interval '5 s' FROM outbox.workers"),
	'the loop of the worker goes on');

# The standby comes
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "outbox.enabled = on\n");
$standby->start;
$receiver->wait_delivered(1, id => $id);
pass('the standby has it: sent');
wait_settled($node);
is(scalar(() = $receiver->delivered), 2, 'each once: the standby is silent');

# An event that is looked up by its number when its transaction is old: whether the
# standby has it was not asked before
$standby->stop;
locally("SELECT outbox.pause_endpoint('all')");
$id = locally("SELECT outbox.send_test('all')");
locally(<<'SQL');
DO $$ BEGIN
	FOR n IN 1 .. 100001 LOOP
		PERFORM pg_current_xact_id();
		COMMIT;
	END LOOP;
END $$
SQL
locally("SELECT outbox.resume_endpoint('all')");
nothing_arrives($receiver, 'the standby is gone, an old test event: not sent', 2, id => $id);
$standby->start;
$receiver->wait_delivered(1, id => $id);
pass('the standby is back: sent');

# The standby goes, and is given up
$standby->stop;
$id = emit_locally('sync.two');
nothing_arrives($receiver, 'the standby is gone: not sent', 2, id => $id);
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
$receiver->wait_delivered(1, id => $id);
pass('no standby is asked for any more: sent');

# It waits no longer than necessary
require_standby();
$standby->start;
$node->wait_for_catchup($standby);
$id = emit($node, 'sync.three', '{}');
$receiver->wait_delivered(1, id => $id);
pass('a standby that is there holds nothing up');

# Promoted, it goes on
wait_settled($node);
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
$standby->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = ''");
$standby->reload;
$id = emit($standby, 'sync.four', '{}');
$receiver->wait_delivered(1, id => $id);
pass('promoted: it delivers');
is( $standby->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'),
	scalar(keys %{ { map { $_->{id} => 1 } grep { $_->{topic} ne 'outbox.test' } $receiver->delivered } }),
	'and nothing is missing');

$standby->stop;
done_testing();
