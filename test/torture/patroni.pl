# No event is sent that a failover made by Patroni loses, with outbox.wait_for_standbys.
# Three servers under load, in seven ways, whatever clients were told.  MODES (wait
# synchronous neither) picks some.
use strict;
use warnings;

use JSON::PP ();
use OutboxTest;
use OutboxTest::Patroni;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

OutboxTest::Patroni::place()
  or plan skip_all => 'no Patroni from PyPI, or no etcd: see "make setup"';

alarm 3600;
my $rate = 200;
my %mode = (
	wait => { parameters => "        outbox.wait_for_standbys: '2'" },
	synchronous => { parameters => '', synchronous => 1 },
	neither => { parameters => '' });

sub outcomes
{
	my ($log) = @_;
	my %outcome;
	foreach my $line (split /\n/, -e $log ? PostgreSQL::Test::Utils::slurp_file($log) : '')
	{
		my $event = eval { JSON::PP::decode_json($line) } or next;
		$outcome{ $event->{id} } = $event->{outcome};
	}
	return %outcome;
}

sub committed
{
	my %outcome = outcomes(@_);
	return grep { $outcome{$_} eq 'committed' } keys %outcome;
}

sub progress
{
	my ($receiver, $n, $what) = @_;
	my $before = () = $receiver->delivered;
	$receiver->wait_delivered($before + $n);
	return;
}

# What is done to the leader, and what puts it right again.
my @scenarios = (
	[ 'switchover', sub { my ($c, $leader) = @_; $c->switchover($leader) } ],
	[ 'postmaster killed', sub { my ($c, $leader) = @_; kill 'KILL', (OutboxTest::Patroni::server_pids($leader))[0] } ],
	[
		'everything killed',
		sub {
			my ($c, $leader) = @_;
			kill 'KILL', $leader->{pid}, OutboxTest::Patroni::server_pids($leader);
			waitpid($leader->{pid}, 0);
		},
		sub { my ($c, $old) = @_; $c->start_member($old) }
	],
	[
		'primary frozen',
		sub {
			my ($c, $leader) = @_;
			$leader->{frozen} = [ $leader->{pid}, OutboxTest::Patroni::server_pids($leader) ];
			kill 'STOP', @{ $leader->{frozen} };
		},
		sub { my ($c, $old) = @_; kill 'CONT', @{ $old->{frozen} } }
	],
	[
		'Patroni frozen',
		sub { my ($c, $leader) = @_; kill 'STOP', $leader->{pid} },
		sub { my ($c, $old) = @_; kill 'CONT', $old->{pid} }
	],
	[
		'etcd gone',
		sub {
			my ($c, $leader) = @_;
			kill 'KILL', $c->{etcd};
			waitpid($c->{etcd}, 0);
			wait_until
			{
				my ($status, $out) = $leader->{node}->psql('postgres', 'SELECT pg_is_in_recovery()', timeout => 10);
				defined $status && $status == 0 && $out eq 't';
			}
			'the leader steps down', 120;
			$c->start_etcd;
		},
		undef, 'any'
	],
	[
		'standbys lagging',
		sub {
			my ($c, $leader, $log) = @_;
			kill 'STOP', split /\n/,
			  $leader->{node}->safe_psql('postgres', 'SELECT pid FROM pg_stat_replication');
			my $before = committed($log);
			my $end = time + 20;
			usleep(50_000) while committed($log) < $before + 200 && time < $end;
			kill 'KILL', $leader->{pid}, OutboxTest::Patroni::server_pids($leader);
			waitpid($leader->{pid}, 0);
		},
		sub { my ($c, $old) = @_; $c->start_member($old) }
	]);

foreach my $name (split ' ', $ENV{MODES} || 'wait synchronous neither')
{
	my $cluster = OutboxTest::Patroni->new($name, %{ $mode{$name} });
	my $receiver = OutboxTest::Receiver->new($name);
	my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
	my $leader = $cluster->leader;

	$leader->{node}->safe_psql('postgres', 'CREATE EXTENSION outbox');
	endpoint($leader->{node}, $receiver, 'all', '/fail/a?rate=0.05',
		"backoff_base => '20 ms', backoff_max => '200 ms'");
	$cluster->wait_whole or last;
	my %judged;
	my $runs = 0;

	foreach my $scenario (@scenarios)
	{
		my ($what, $strike, $repair, $any) = @$scenario;
		$leader = $cluster->leader;
		my $producer = start_producer($leader->{node}, $log, rate => $rate, keys => 4, topic => 'load.' . ++$runs);
		progress($receiver, 200);

		$strike->($cluster, $leader, $log);
		my $new = $cluster->leader($any ? undef : $leader);
		ok($new, "$name, $what: there is a leader again") or last;

		# The old one goes on as if nothing had happened, for a while.  Where it has
		# synchronous standbys, it waits for the one that leads now.
		if ($what eq 'Patroni frozen' && $name ne 'synchronous')
		{
			my $before = committed($log);
			wait_until { committed($log) > $before + 50 } 'commits on a server that leads no more';
		}
		$repair->($cluster, $leader) if $repair;
		stop_producer($producer);
		$cluster->wait_whole or last;

		$new = $cluster->leader;
		$producer = start_producer($new->{node}, $log, rate => $rate, keys => 4, topic => 'load.' . ++$runs);
		progress($receiver, 100);
		stop_producer($producer);

		# What the failover took back, and what of it a receiver was told.
		my %here = map { $_ => 1 } event_ids($new->{node});
		my %told = map { $_->{id} => 1 } grep { $_->{topic} ne 'outbox.test' } $receiver->requests;
		my @lost = grep { !$here{$_} && !$judged{$_} } committed($log);
		my @announced = grep { !$here{$_} && !$judged{$_} } keys %told;
		$judged{$_} = 1 foreach @lost, @announced;
		note(sprintf '%s, %s: %d acknowledged commits lost, %d lost events announced',
			$name, $what, scalar @lost, scalar @announced);
		is(scalar @announced, 0, "$name, $what: no lost event was announced") if $name ne 'neither';
		is(scalar @lost, 0, "$name, $what: no commit is lost") if $name eq 'synchronous';
	}
	$leader = $cluster->leader;
	check_history(
		$leader->{node}, $receiver, $log,
		async_commit => 1,
		# Lost events that were announced are counted above.
		exists_too => $name eq 'neither' ? [ keys %judged ] : [],
		gone => $name eq 'neither' ? [ keys %judged ] : [],
		endpoints => ['/fail/a'],
		max_duplicates => 2 * @scenarios * (32 + $rate),
		name => "$name: what survived is delivered, in order");
	$cluster->stop;
}

done_testing();
