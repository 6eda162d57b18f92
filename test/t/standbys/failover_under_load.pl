# A failover under load loses no event that the new primary has, and repeats few.
# With asynchronous and with synchronous replication.  The old primary comes back,
# rewound or made anew.  While a synchronous standby is missing, no event is sent.
use strict;
use warnings;

use File::Copy;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $rate = 200;

sub workers
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%worker%'");
}

# A standby of a running server.  The directory may be that of a former one.
sub make_standby
{
	my ($name, $node) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$node->backup($name);
	$standby->init_from_backup($node, $name, has_streaming => 1);
	$standby->start;
	return $standby;
}

sub is_silent
{
	my ($standby) = @_;
	is(workers($standby), 0, $standby->name . ': a standby has no worker');
	is($standby->safe_psql('postgres', 'SELECT state FROM outbox.status'), 'standby', 'and says so');
	return;
}

# Ids that a producer's log says are committed
sub committed
{
	my ($log) = @_;
	my %outcome;

	foreach my $line (split /\n/, PostgreSQL::Test::Utils::slurp_file($log))
	{
		my $event = JSON::PP::decode_json($line);
		$outcome{ $event->{id} } = $event->{outcome};
	}
	return grep { $outcome{$_} eq 'committed' } keys %outcome;
}

sub progress
{
	my ($receiver, $n) = @_;
	my $before = () = $receiver->delivered;
	$receiver->wait_delivered($before + $n);
	return;
}

sub require_standby
{
	my ($node, $name) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = '$name'");
	$node->restart;
	return;
}

# The synchronous standby is gone for a while, under load.
sub missing_standby
{
	my ($node, $standby, $receiver) = @_;
	my $log = PostgreSQL::Test::Utils::tempdir() . '/local';

	$standby->stop('immediate');

	# What is committed from here on no standby has.  The emitters do not wait.
	my $producer = start_producer(
		$node, $log,
		rate => $rate,
		topic => 'load.alone',
		set => 'SET synchronous_commit = local');
	wait_until { -s $log && committed($log) > 200 } 'commits without a standby';
	my $pid = worker_pid($node);
	kill 'INT', $pid;
	usleep(300_000);
	kill 'TERM', $pid;
	new_worker($node, $pid);
	usleep(1_500_000);
	stop_producer($producer);
	is(scalar(grep { $_->{topic} eq 'load.alone' } $receiver->requests),
		0, 'no standby: not one event was sent, whatever became of the worker');
	$standby->start;
	check_history(
		$node, $receiver, $log,
		exists_too => [ map { $_->{id} } $receiver->requests ],
		# what was in flight, and what a busy machine had not settled yet
		max_duplicates => 32 + 0.5 * $rate,
		name => 'the standby is back: all are sent, in order');
	return;
}

foreach my $synchronous (0, 1)
{
	my $how = $synchronous ? 'synchronous' : 'asynchronous';
	my $node = outbox_node("primary_$how", streaming => 1, conf => "wal_log_hints = on\nwal_keep_size = 256MB\n");
	my $receiver = OutboxTest::Receiver->new($how);
	my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

	endpoint($node, $receiver, 'all', '/fail/a?rate=0.05', "backoff_base => '20 ms', backoff_max => '200 ms'");
	my $standby = make_standby("standby_$how", $node);
	require_standby($node, $standby->name) if $synchronous;
	my $producer = start_producer($node, $log, rate => $rate, keys => 4);
	progress($receiver, 300);
	is_silent($standby);

	# The primary dies, and the standby is promoted.
	kill_everything($node);
	$standby->promote;
	$standby->safe_psql('postgres',
		"ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf()");
	stop_producer($producer);

	# With asynchronous replication a failover loses commits: that is its nature.
	# Some of them were sent.
	my %here = map { $_ => 1 } event_ids($standby);
	my @lost = grep { !$here{$_} } committed($log);
	is(scalar @lost, 0, 'synchronous: no commit is lost') if $synchronous;
	note(@lost . ' commits were not on the standby yet');
	$producer = start_producer($standby, $log, rate => $rate, keys => 4, topic => 'load.promoted');
	progress($receiver, 300);
	pass("$how: the promoted standby delivers");

	# The old primary comes back as a standby of the new one.
	my $old = $node;
	if ($synchronous)
	{
		$old = make_standby('again', $standby);
	}
	else
	{
		my $conf = $node->data_dir . '/postgresql.conf';
		my $kept = PostgreSQL::Test::Utils::tempdir() . '/postgresql.conf';

		copy($conf, $kept) or die "copy: $!";
		command_ok(
			[ 'pg_rewind', '-D', $node->data_dir, '--source-server', $standby->connstr('postgres') ],
			'the old primary is rewound');
		copy($kept, $conf) or die "copy: $!";
		$node->enable_streaming($standby);
		$node->append_conf('postgresql.auto.conf', "synchronous_standby_names = ''\n");
		$node->start;
	}
	is_silent($old);
	progress($receiver, 200);

	# The old primary takes over again, after a clean shutdown of the new one.
	stop_producer($producer);
	$standby->wait_for_catchup($old, 'replay', $standby->lsn('insert'));
	$standby->stop('fast');
	$old->promote;
	$producer = start_producer($old, $log, rate => $rate, keys => 4, topic => 'load.back');
	progress($receiver, 200);
	stop_producer($producer);
	my %committed = map { $_ => 1 } committed($log);
	check_history(
		$old, $receiver, $log,
		async_commit => !$synchronous,
		exists_too => [ grep { $committed{$_} } map { $_->{id} } $receiver->delivered ],
		# what was in flight, and what the standby had not heard of
		max_duplicates => 2 * 32 + ($synchronous ? 0.5 : 2) * $rate,
		name => "$how: nothing that survived is lost, nothing comes out of order");
	if ($synchronous)
	{
		my $second = make_standby('second', $old);
		require_standby($old, 'second');
		missing_standby($old, $second, $receiver);
		$second->stop;
	}
	$old->stop;
}

done_testing();
