# No event of a source is lost, invented or out of order while standbys of its follower are promoted.
# ROUNDS says how often (default 8 for each way), SEED repeats the decisions.  Applications emit all the time.
# Where the source keeps nothing that was taken, the promoted server counts what it lacks.
use strict;
use warnings;

use IPC::Run qw(start);
use OutboxTest;
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $rounds = $ENV{ROUNDS} || 8;
my $seed = $ENV{SEED} || int time;
srand $seed;
diag("SEED=$seed");
alarm 600 + 180 * $rounds;

my $script = OutboxTest::Followed->emits_in_order;

# Another standby of the follower of now
sub add_standby
{
	my ($servers, $name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$servers->{follower}->backup($name);
	$standby->init_from_backup($servers->{follower}, $name, has_streaming => 1);
	$standby->start;
	return $standby;
}

# The postmaster dies by SIGKILL, and its children end when they notice.
sub dies
{
	my ($node) = @_;
	return $node->stop('immediate') if rand() < 0.5;
	my $port = $node->port;
	$node->kill9;
	return wait_until { !IPC::Run::run([ 'pgrep', '-f', 'postgres: ' . $node->name . ': ' ], '>', '/dev/null') } 'its children have ended';
}

sub promoted_under_load
{
	my ($way, $keep, %arg) = @_;
	my $servers = OutboxTest::Followed->new(name => $way, streaming => 1, source => "wal_sender_timeout = '5s'\n", follower => $arg{follower} // '');
	my ($source, $receiver) = @$servers{qw(source receiver)};

	$servers->provider('CREATE TABLE ledger (k int, n int, id uuid, PRIMARY KEY (k, n))');
	endpoint($servers->{follower}, $receiver, 'all', "/ok/$way", 'max_in_flight => 8');
	$servers->follow("keep => '$keep'");
	my $load = start [ 'pgbench', '-n', '-T', 100_000, '-c', 3, '-R', 200, '-f', $script, $source->connstr('shop') ], '>', "$script.$way.log", '2>&1';
	foreach my $round (1 .. $rounds)
	{
		my $standby = add_standby($servers, "$way$round");
		$servers->ask("ALTER SYSTEM SET synchronous_standby_names = '$way$round'; SELECT pg_reload_conf()") if $arg{wait};
		usleep(300_000 + rand 2_000_000);
		# What it has taken leaves the source, if it is not kept.
		$servers->ask('SELECT outbox.keep_sources()') foreach 1 .. 3;
		# The standby lacks some of what comes now.
		$standby->stop if $arg{away} && rand() < 0.7;
		if (!$standby->{_pid} || !kill 0, $standby->{_pid})
		{
			usleep(300_000 + rand 1_000_000);
			$servers->ask('SELECT outbox.keep_sources()') foreach 1 .. 3;
		}
		dies($servers->{follower});
		$standby->start unless $standby->{_pid} && kill 0, $standby->{_pid};
		$standby->promote;
		$servers->{follower} = $standby;
		$servers->ask("ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()") if $arg{wait};
		wait_until { $servers->ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); $servers->ask("SELECT count(*) FROM outbox.sources WHERE state = 'streaming'") } "$way, round $round: it streams";
	}
	is($load->pumpable ? 'on' : 'ended', 'on', "$way: applications have emitted all the time");
	$load->kill_kill;
	my $follower = $servers->{follower};
	# Without one it waits with what it has.
	my $standby = $arg{wait} ? add_standby($servers, "${way}_last") : undef;
	my %place = map { my ($id, $k, $n) = split /\|/; ($id => [ $k, $n ]) } split /\n/, $servers->provider('SELECT id, k, n FROM ledger');
	my $last = $servers->at_source("SELECT outbox.emit('order.last', '{}')", 'shop_app');
	$receiver->wait_delivered(1, path => "/ok/$way", id => $last);
	ok(wait_settled($follower), "$way: all is delivered");
	my (%seen, %last, @wrong, $twice);
	foreach my $request ($receiver->delivered(path => "/ok/$way"))
	{
		next if $request->{id} eq $last;
		$twice += 1, next if $seen{ $request->{id} }++;
		my ($k, $n) = @{ $place{ $request->{id} } // [ 'unknown', 0 ] };
		push @wrong, "$request->{id} is not in the ledger" if $k eq 'unknown';
		push @wrong, "key $k: $n after $last{$k}" if $k ne 'unknown' && $n <= ($last{$k} // 0);
		$last{$k} = $n;
	}
	my $lost = grep { !$seen{$_} } keys %place;
	my ($least, $most, $times) = split /\|/, $servers->ask('SELECT COALESCE(sum(at_least), 0), COALESCE(sum(at_most), 0), count(*) FROM outbox.missed_events');
	my %log = map { $_ => 1 } split /\n/, $servers->ask('SELECT id FROM outbox.all_events');
	my $lacks = grep { !$log{$_} } keys %place;
	diag(sprintf '%s: %d promotions, %d events, %d delivered again, %d lost; the last follower lacks %d, and has said %d to %d in %d messages',
		$way, $rounds, scalar(keys %place), $twice // 0, $lost, $lacks, $least, $most, $times);
	is(join("\n", @wrong), '', "$way: none is invented, and each key is in order");
	is($servers->ask('SELECT count(*) - count(DISTINCT id) FROM outbox.all_events'), 0, "$way: and none is twice in the log");
	if ($arg{may_lose})
	{
		ok($lacks >= $least && $lacks <= $most, "$way: what the last follower lacks is what it has counted");
	}
	else
	{
		is($lost, 0, "$way: none is lost");
		is("$lacks $most", '0 0', "$way: and nothing is missing in the log, or said to be");
	}
	$_->stop foreach grep { defined } $standby, $follower, $source;
	return;
}

promoted_under_load('kept', '1 day', away => 1);
promoted_under_load('waits', '1 day', wait => 1, follower => "outbox.wait_for_standbys = 1\n");
promoted_under_load('removed', '0', away => 1, may_lose => 1);
done_testing();
