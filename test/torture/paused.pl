# One paused customer does not keep the log, and gets its events after any number of deaths.
# Another one with a limit of what is kept for it gets the newest of its own, in order.
# CUSTOMERS (5,000), EVENTS of all others (10,000,000), ROUNDS of kills while pieces go (100),
# SEED repeats the decisions.  Prints the sizes.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $customers = $ENV{CUSTOMERS} || 5000;
my $events = $ENV{EVENTS} || 10_000_000;
my $rounds = $ENV{ROUNDS} // 100;
my $seed = $ENV{SEED} || int time;
my $at_once = 20_000;
my $limit = 20;
srand $seed;
diag("SEED=$seed");
alarm 3600 + $rounds * 60;
$PostgreSQL::Test::Utils::timeout_default = 600;

my $node = outbox_node('main', conf => <<'CONF');
outbox.retention = 10s
outbox.attempts_retention = 10s
max_wal_size = 2GB
restart_after_crash = on
synchronous_commit = off
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

my $url = $receiver->url('/ok/c');
ask("SELECT count(outbox.create_endpoint('c' || n, '$url' || n, topics => '{mine.*}', tenant => 't' || n)) FROM generate_series(1, $customers) n");
ok(wait_sql($node, "SELECT sum(endpoints) = $customers FROM outbox.workers"), 'all are there');

# Events of others, for which some have an endpoint, and what the log takes at most
my $emitted = 0;
my $most = 0;

sub others
{
	my ($n) = @_;
	for (; $n > 0; $n -= $at_once)
	{
		ask("SELECT count(outbox.emit(CASE WHEN n % 1000 = 0 THEN 'mine.n' ELSE 'load.n' END,"
			  . " jsonb_build_object('customer', 4711, 'total', '99.95'), key => 'k' || n % 100,"
			  . " tenant => 't' || 4 + (n * 7) % ($customers - 4))) FROM generate_series(1, $at_once) n");
		$emitted += $at_once;
		$most = max($most, ask('SELECT log_bytes FROM outbox.status'));
	}
	return;
}

# Events of the three that read nothing, on disk: their ids by key, in order
my $mine = 0;
my %wanted;

sub own
{
	foreach my $c (1 .. 3)
	{
		my $k = 'k' . int rand 5;
		my $id = ask("SET synchronous_commit = on; SELECT outbox.emit('mine.n', '{}', key => '$k', tenant => 't$c')");
		push @{ $wanted{$c}{$k} }, $id;
		$mine++ if $c < 3;
	}
	return;
}

# Loads so fast as the log's pieces go
sub load
{
	my ($n, $own) = @_;
	my $begun = $emitted;
	while ($emitted - $begun < $n)
	{
		others($at_once);
		own() if $own;
	}
	return;
}

# For three times the retention
my $begun = time;
load($at_once, 0) while time < $begun + 30;
my $normal = $most;

# One is paused, and one is disabled
ask("SELECT outbox.pause_endpoint('c1'), outbox.pause_endpoint('c3'), outbox.set_tenant_limits('t3', max_kept => $limit)");
$receiver->control(path => '/ok/c2', behave => '/status/410');
push @{ $wanted{2}{k0} }, ask("SELECT outbox.emit('mine.n', '{}', key => 'k0', tenant => 't2')");
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'c2'"), 'one is disabled');
$most = 0;
$begun = time;
load($events, 1);
diag(sprintf '%d customers, %d events of others in %.0f s: the log takes %.0f MB at most, and %.0f MB where nobody is paused; %d rows are kept in %.1f MB',
	$customers, $emitted, time - $begun, $most / 1048576, $normal / 1048576,
	ask('SELECT count(*) FROM outbox.parked'), ask('SELECT parked_bytes FROM outbox.status') / 1048576);
cmp_ok($most, '<=', 2 * $normal, 'the log stays at twice its normal size');
ok(wait_sql($node, "SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats WHERE endpoint NOT IN ('c1', 'c2', 'c3')"), 'all others get theirs');

# Deaths while pieces go
ask("ALTER SYSTEM SET outbox.retention = '1 s'");
$node->reload;
my %struck;
foreach my $round (1 .. $rounds)
{
	my $way = qw(kill immediate worker worker)[ int rand 4 ];
	own() foreach 1 .. 1 + rand 10;
	others($at_once);
	usleep(rand 1_500_000);
	$struck{$way}++;
	if ($way eq 'worker')
	{
		my $offset = -s $node->logfile;
		kill 'KILL', worker_pid($node);
		$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
		next;
	}
	$way eq 'kill' ? kill_everything($node) : $node->stop('immediate');
	start_again($node);
}
diag(join ', ', map { "$_: $struck{$_}" } sort keys %struck) if $rounds;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'a worker runs');

# Resumed: exactly its own, in order
$receiver->control(path => '/ok/c2', behave => '');
my $kept = ask("SELECT retrying + blocked FROM outbox.stats WHERE endpoint = 'c3'");
ask("SELECT outbox.resume_endpoint('c1'), outbox.resume_endpoint('c2'), outbox.resume_endpoint('c3')");
$begun = time;
ok(wait_sql($node, "SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats WHERE endpoint IN ('c1', 'c2', 'c3')"), 'they get theirs');
ok(wait_settled($node), 'all is settled');
diag(sprintf '%.1f s for %d events', time - $begun, $mine);
my %got;
my %seen;
open(my $fh, '<', $receiver->{journal}) or die "journal: $!";
while (my $line = <$fh>)
{
	my ($c) = $line =~ m{"path": "/ok/c([123])".*"status": 200};
	next unless $c;
	my ($key) = $line =~ /"key": "([^"]*)"/;
	my ($id) = $line =~ /"id": "([^"]+)"/;
	push @{ $got{$c}{$key} }, $id if !$seen{"$c $id"}++;    # and not what is repeated after a crash
}
close $fh;
foreach my $c (1, 2)
{
	is(join(' ', sort keys %{ $got{$c} }), join(' ', sort keys %{ $wanted{$c} }), "c$c: its keys");
	is_deeply($got{$c}{$_}, $wanted{$c}{$_}, "c$c: exactly its own of $_, in order") foreach sort keys %{ $wanted{$c} };
}

# What the log had yet comes besides what was kept
my $all = 0;
my $came = 0;
foreach my $k (sort keys %{ $wanted{3} })
{
	my @wanted = @{ $wanted{3}{$k} };
	my @came = @{ $got{3}{$k} // [] };
	my %place = map { $wanted[$_] => $_ } 0 .. $#wanted;
	my @places = map { $place{$_} // -1 } @came;
	is("@places", join(' ', sort { $a <=> $b } @places), "c3: its own of $k, in order");
	$all += @wanted;
	$came += @came;
}
diag("c3: $came of $all came, $kept of them were kept");
cmp_ok($came, '<', $all, 'c3: its oldest were given up');
cmp_ok($came, '>=', $limit, 'c3: and no more than the limit says');
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.kept_events) AND NOT EXISTS (SELECT FROM outbox.parked)'), 'nothing is kept');
$node->stop;
done_testing();
