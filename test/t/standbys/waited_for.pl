# With outbox.wait_for_standbys no event is sent that a failover can lose.
# Without synchronous replication a failover loses commits that were reported to
# clients.  Receivers must not have been told of them.
use strict;
use warnings;

use JSON::PP ();
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('primary', streaming => 1, conf => "outbox.wait_for_standbys = '1'\n");
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/a');
$node->backup('backup');

sub state_is
{
	my ($state, $words, $name) = @_;
	ok(wait_sql($node, "SELECT state = '$state' AND COALESCE(reason, '') ~ '$words' FROM outbox.status"), "$name, and the reason")
	  or diag($node->safe_psql('postgres', 'SELECT state, reason FROM outbox.status'));
	return;
}

sub wait_for_standbys
{
	my ($value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET outbox.wait_for_standbys = '$value'");
	$node->reload;
	return;
}

sub walreceiver
{
	my ($standby) = @_;
	my $pid = '';
	wait_until {
		$pid = $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver');
		$pid ne '';
	}
	'a walreceiver';
	return $pid;
}

# What cannot be meant is refused.
foreach my $bad ('-1', '65', '2 (a)', '1 a', '1 (a', 'a,,b')
{
	my ($status, undef, $stderr) =
	  $node->psql('postgres', "ALTER SYSTEM SET outbox.wait_for_standbys = '$bad'");
	like($stderr, qr/HINT:  Write 2, or the application names/, "'$bad' is refused");
}

# No standby at all.
state_is('held', 'asks for 1 of its standbys, and 0 are streaming: nothing is sent',
	'no standby: the worker is held');
my $id = emit($node, 'standby.none', '{}');
nothing_arrives($receiver, 'no standby: not sent', 2, id => $id);

# Something that stores the WAL and could not take over does not count.
my $archive = PostgreSQL::Test::Utils::tempdir();
my $pg_receivewal = IPC::Run::start(
	[
		'pg_receivewal', '-D', $archive, '--synchronous',
		'-d', $node->connstr . ' application_name=pg_receivewal'
	]);
ok( wait_sql(
		$node,
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE flush_lsn >= '" . $node->lsn('insert') . "'"),
	'pg_receivewal has all of the WAL');
nothing_arrives($receiver, 'pg_receivewal is no standby: not sent', 2, id => $id);

# The standby comes.
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$receiver->wait_delivered(1, id => $id);
pass('a standby has it: sent');
state_is('running', '^$', 'the worker runs');

# The number counts standbys, and a name is counted once.
wait_for_standbys('2');
state_is('held', 'asks for 2 of its standbys, and 1 are streaming', 'two are asked for, and one is there');
$id = emit($node, 'standby.two', '{}');
wait_for_standbys('other');
state_is('held', 'asks for 1 of its standbys, and 0 are streaming', 'another one is asked for');
nothing_arrives($receiver, 'not sent meanwhile', 2, id => $id);
wait_for_standbys('1 (other, STANDBY)');
$receiver->wait_delivered(1, id => $id);
pass('one of two names is there: sent');
state_is('running', '^$', 'the worker runs');

wait_for_standbys('pg_receivewal');
$id = emit($node, 'standby.archive', '{}');
$receiver->wait_delivered(1, id => $id);
pass('an archive that is named counts');
$pg_receivewal->signal('INT');
$pg_receivewal->finish;

# A second standby with the name of the first one is no second one.
my $twin = PostgreSQL::Test::Cluster->new('twin');
$twin->init_from_backup($node, 'backup', has_streaming => 1);
$twin->append_conf('postgresql.conf',
	"primary_conninfo = '" . $node->connstr . " application_name=standby'\n");
$twin->start;
ok( wait_sql(
		$node,
		"SELECT count(*) = 2 FROM pg_stat_replication WHERE application_name = 'standby' AND flush_lsn >= '"
		  . $node->lsn('insert') . "'"),
	'two standbys with one name');
wait_for_standbys('standby, other');
state_is('held', 'asks for 2 of its standbys, and 1 are streaming', 'they count as one');
wait_for_standbys('2');
state_is('running', '^$', 'where names do not matter they are two');
$twin->stop;
state_is('held', 'asks for 2 of its standbys, and 1 are streaming', 'one is gone');
wait_for_standbys('1');
state_is('running', '^$', 'the other one is enough');

# Connected, but it stores nothing: the client is answered, the receiver is told
# nothing.
my $walreceiver = walreceiver($standby);
kill 'STOP', $walreceiver;
$id = emit($node, 'standby.stopped', '{}');
nothing_arrives($receiver, 'the standby stores nothing: not sent', 2, id => $id);
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM outbox.workers');
nothing_arrives($receiver, 'nor by another worker', 2, id => $id);
kill 'CONT', $walreceiver;
$receiver->wait_delivered(1, id => $id);
pass('it goes on: sent');

# A failover under load, of a standby that lags.
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my $producer = start_producer($node, $log, rate => 200, keys => 4);
wait_until { scalar(() = $receiver->delivered) > 100 } 'load';
# The sender and not the receiver: a promotion ends the receiver.
kill 'STOP', $node->safe_psql('postgres', 'SELECT pid FROM pg_stat_replication');

sub committed
{
	return -s $log ? scalar(() = PostgreSQL::Test::Utils::slurp_file($log) =~ /"committed"/g) : 0;
}
my $before = committed();
wait_until { committed() > $before + 200 } 'commits that the standby does not have';
kill_everything($node);
$standby->promote;
stop_producer($producer);
my %here = map { $_ => 1 } event_ids($standby);
my %told = map { $_->{id} => 1 } grep { $_->{topic} ne 'outbox.test' } $receiver->requests;
my @acknowledged = map { $_->{id} }
  grep { $_->{outcome} eq 'committed' }
  map { JSON::PP::decode_json($_) } split /\n/, PostgreSQL::Test::Utils::slurp_file($log);
my $lost = grep { !$here{$_} } @acknowledged;
cmp_ok($lost, '>', 100, "the failover lost acknowledged commits ($lost)");
is(scalar(grep { !$here{$_} } keys %told), 0, 'the receiver was told of none of them');

$standby->stop('immediate');
done_testing();
