# Filters of one customer, as costly as they may be, take nothing from another customer.
# One to a thousand endpoints, with and without a tenant, live, behind and in replays.
# A well-behaved endpoint of another tenant keeps three times its p99 at most.
use strict;
use warnings;
no warnings 'portable';    # hex() of 48 bits

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seconds = $ENV{SECONDS} || 10;    # of each measurement
my $rate = $ENV{RATE} || 200;
my $only = $ENV{ONLY} // '.';
my $node = outbox_node('main', conf => "outbox.worker_memory = 256MB\n");
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $other = OutboxTest::Receiver->new('other', brief => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();
my $nlogs = 0;

endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}', tenant => 'good'");
endpoint($node, $receiver, 'plain', '/ok/plain', "topics => '{load.*}'");

# Latency is from the emit, whose time (ms) the id begins with, to the first request.
sub figures
{
	my ($name) = @_;
	my @latency;

	truncate $receiver->{journal}, 0;
	my $ticks = cpu_ticks(worker_pid($node));
	my $producer = start_producer($node, "$dir/producer" . ++$nlogs, rate => $rate, keys => 100, seconds => $seconds, topic => 'load.t');
	stop_producer($producer, 1);
	$ticks = cpu_ticks(worker_pid($node)) - $ticks;
	wait_sql($node, "SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats WHERE endpoint = 'plain'");
	open(my $fh, '<', $receiver->{journal}) or die "journal: $!";
	while (my $line = <$fh>)
	{
		next unless $line =~ m{/ok/plain} && $line =~ /"wall": ([0-9.]+).*"status": 200, "id": "(\w{8})-(\w{4}).*"seen": 1\b/;
		push @latency, $1 * 1000 - hex("$2$3");
	}
	close $fh;
	@latency = sort { $a <=> $b } @latency;
	my %figures = (n => scalar @latency, p50 => $latency[ 0.5 * $#latency ], p99 => $latency[ 0.99 * $#latency ], max => $latency[-1]);
	diag(sprintf '%-40s %5d events, p50 %6.1f ms, p99 %7.1f ms, max %7.1f ms, %d %% of a core', $name, @figures{qw(n p50 p99 max)}, $ticks / $seconds);
	return \%figures;
}

# The most costly ones: the smallest items, each compared as often as the length allows.
my %costly = (
	costly => ['exists($.a[*] ? (' . join(' || ', map { "@ == $_" } 1 .. 28) . '))', q{(SELECT jsonb_build_object('a', jsonb_agg('null'::jsonb)) FROM generate_series(1, 1200))}],
	medium => ['exists($.a[*] ? (' . join(' || ', map { "@ == $_" } 1 .. 20) . '))', q{(SELECT jsonb_build_object('a', jsonb_agg('null'::jsonb)) FROM generate_series(1, 150))}],
	cheap => ['$.total > 100', q{'{"total": 1}'::jsonb}]);

my $alone = figures('alone');
my $n = 0;

sub beside
{
	my ($kind, $tenants, $count, $mode) = @_;
	my $name = "$kind: $count endpoints, $tenants, $mode";
	return unless $name =~ /$only/;
	my ($filter, $payload) = @{ $costly{$kind} };
	my $topic = 'evil' . ++$n;
	my %tenant = ('without a tenant' => 'NULL', 'one tenant' => q{'evil'}, 'a tenant each' => q{'evil' || n});
	my %of = ('without a tenant' => 'NULL', 'one tenant' => q{'evil'}, 'a tenant each' => qq{'evil' || (1 + n % $count)});
	my $each = $kind eq 'costly' ? 250 : $kind eq 'medium' ? 2500 : 100000;    # evaluations in a second
	my $events = int($each * $seconds / $count) || 1;
	$events = $each if $tenants eq 'a tenant each' && $each < $events * $count;
	my $emit = "outbox.emit('$topic.t', x.p, tenant => $of{$tenants})";
	my $paused = $mode eq 'behind';

	ask("SELECT outbox.create_endpoint('$topic.' || n, '" . $other->url("/ok/$topic") . "', '{$topic.*}', filter => \$f\$$filter\$f\$, tenant => $tenant{$tenants}) FROM generate_series(1, $count) n");
	ask("SELECT outbox.pause_endpoint('$topic.' || n) FROM generate_series(1, $count) n") if $mode ne 'live';
	my $pid;
	if ($mode eq 'live')
	{
		my $script = "$dir/$topic.sql";
		PostgreSQL::Test::Utils::append_to_file($script, "\\set n random(1, 1000000)\nWITH n AS (SELECT :n AS n), x AS MATERIALIZED (SELECT $payload AS p) SELECT $emit FROM n, x;\n");
		my $per_second = $events / $seconds > 500 ? 500 : $events / $seconds;
		$pid = fork // die "fork: $!";
		if ($pid == 0)
		{
			open(STDOUT, '>', '/dev/null');
			open(STDERR, '>', '/dev/null');
			exec 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-R', $per_second, '-f', $script, '-T', $seconds, 'postgres';
		}
		push @OutboxTest::Receiver::started, $pid;
	}
	else
	{
		my $most = $mode eq 'behind' ? 20000 : $each;
		$events = $most if $events > $most;
		ask("WITH x AS MATERIALIZED (SELECT $payload AS p) SELECT count($emit) FROM x, generate_series(1, $events) n");
		if ($mode eq 'behind') { ask("SELECT outbox.resume_endpoint('$topic.' || n) FROM generate_series(1, $count) n") }
		else
		{
			ask("SELECT outbox.seek_endpoint('$topic.' || n, 'now'), outbox.resume_endpoint('$topic.' || n) FROM generate_series(1, $count) n");
			ask("SELECT outbox.replay('$topic.' || n, now() - interval '1 hour', now()) FROM generate_series(1, $count) n");
		}
	}
	my $f = figures($name);
	diag(ask("SELECT 'delivered ' || sum(delivered) || ', pending ' || sum(pending) || ', ' || coalesce(max(reason), '') FROM outbox.stats WHERE endpoint LIKE '$topic.%'"));
	cmp_ok($f->{p50}, '<=', 2 * $alone->{p50} + 1, "$name: p50");
	cmp_ok($f->{p99}, '<=', 3 * $alone->{p99} + 5, "$name: p99");
	waitpid $pid, 0 if $pid;
	ask("SELECT outbox.drop_endpoint('$topic.' || n, discard => true) FROM generate_series(1, $count) n");
	return;
}

foreach my $kind (qw(costly medium cheap))
{
	foreach my $count (1, 10, 100, 1000)
	{
		foreach my $tenants ('without a tenant', 'one tenant', 'a tenant each')
		{
			next if $count == 1 && $tenants eq 'a tenant each';
			beside($kind, $tenants, $count, $_) foreach qw(live behind replay);
		}
	}
}
beside('cheap', 'one tenant', 5000, $_) foreach qw(live behind);
$node->stop;
done_testing();
