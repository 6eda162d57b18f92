# A synchronous standby that is far away delays requests, and a standby itself sends nothing.
# An asynchronous one is silent until it is promoted.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;

my $node = outbox_node('primary', streaming => 1);
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

endpoint($node, $receiver, 'all', '/ok/a');
endpoint($node, $receiver, 'fails', '/status/500/b',
	"topics => '{bad.*}', backoff_base => '1 h'");
$node->backup('backup');

# The standby's connection is late by 30 ms in each direction.
my $far = PostgreSQL::Test::Utils::tempdir_short();
my $pid = fork // die "fork: $!";
if ($pid == 0)
{
	exec 'python3', "$top/test/tools/delay.py", '--from', "$far/.s.PGSQL." . $node->port,
	  '--to', $node->host . '/.s.PGSQL.' . $node->port, '--ms', 30
	  or POSIX::_exit(127);
}
push @OutboxTest::Receiver::started, $pid;
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	"primary_conninfo = 'host=$far port=@{[$node->port]} application_name=standby'\n");
wait_until { -S "$far/.s.PGSQL." . $node->port } 'the connection is there';
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'"),
	0, 'a standby has no process of ours');

# With a restart, so that it holds for every process from here on
$node->safe_psql('postgres',
	"ALTER SYSTEM SET synchronous_standby_names = 'standby'");
$node->restart;
my $id = emit($node, 'calm.one', '{}');
$receiver->wait_delivered(1, id => $id);

# The emitters do not wait for the standby, the worker does.
my $producer = start_producer(
	$node, $log,
	rate => 400, keys => 6,
	set => 'SET synchronous_commit = local');
my $before = () = $receiver->delivered(path => '/ok/a');
$receiver->wait_delivered($before + 600, path => '/ok/a');
pass('transactions come faster than the standby confirms them: deliveries go on');
my %committed;
foreach my $line (split /\n/, PostgreSQL::Test::Utils::slurp_file($log))
{
	my $event = eval { JSON::PP::decode_json($line) } or next;
	$committed{ $event->{id} } = $event->{wall} if $event->{outcome} eq 'committed';
}
my @late = sort { $a <=> $b }
  map { exists $committed{ $_->{id} } ? $_->{wall} - $committed{ $_->{id} } : () }
  $receiver->delivered(path => '/ok/a');
note(sprintf 'from commit to receiver: median %.3f s, longest %.3f s',
	$late[ $#late / 2 ], $late[-1]);

# An endpoint that has given up for now, and one that is behind
my $parked = emit($node, 'bad.one', '{}', "key => 'k'");
wait_sql($node,
	"SELECT status = 'retrying' FROM outbox.deliveries WHERE event_id = '$parked' AND endpoint = 'fails'");
stop_producer($producer);
wait_sql($node,
	"SELECT count(*) = 0 FROM outbox.deliveries WHERE endpoint = 'all' AND status <> 'delivered'");
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('all')");
my @waiting = map { emit($node, 'wait.one', "{\"n\": $_}", "key => 'w'") } 1 .. 5;

# While it is in recovery, the standby has no worker and sends nothing
$node->wait_for_catchup($standby);
is( $standby->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%worker%'"),
	'0', 'a standby has no worker');
is($standby->safe_psql('postgres', 'SELECT state FROM outbox.status'),
	'standby', 'and says so');
isnt($standby->psql('postgres', "SELECT outbox.emit('a.b', '{}')"),
	0, 'nothing is emitted on a standby');
my $all = () = $receiver->requests;

# Promoted, it goes on where the primary was
$node->stop('immediate');
$receiver->control(path => '/status/500/b', behave => '/ok');
$standby->promote;
$standby->safe_psql('postgres',
	"ALTER SYSTEM SET synchronous_standby_names = '';"
	  . " SELECT outbox.resume_endpoint('all'), outbox.retry('fails')");
$standby->reload;
$receiver->wait_delivered(1, id => $_) foreach @waiting, $parked;
is_deeply(
	[
		map { JSON::PP::decode_json($_->{body})->{data}{n} }
		  $receiver->requests(path => '/ok/a', key => 'w')
	],
	[ 1 .. 5 ],
	'promoted: what waited is delivered, in order');
$receiver->wait_delivered(1, path => '/status/500/b', id => $parked);
pass('and what was to be retried');
check_history(
	$standby, $receiver, $log,
	endpoints => ['/ok/a'],
	name => 'nothing is missing after the failover, and nothing came twice');
cmp_ok(scalar(() = $receiver->requests), '<', $all + 20,
	'the promoted server does not begin anew');

$standby->stop;
done_testing();
