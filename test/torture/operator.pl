# An absent-minded operator costs no event, and no other endpoint its service.
# For MINUTES (15) it leaves transactions open, types VACUUM FULL, pauses customers and forgets them, retries dead letters in
# bulk, and makes databases by TEMPLATE.  SEED repeats the decisions.  Prints what was done, how long an event of an
# endpoint took that nothing of it concerns, and what ran beside the slowest of these.
use strict;
use warnings;
no warnings 'portable';    # hex() of 48 bits

use List::Util qw(max);
use OutboxTest;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(time usleep);

my $minutes = $ENV{MINUTES} || 15;
my $seed = $ENV{SEED} || int time;
my $customers = 20;
my $bulk = $ENV{BULK} || 20_000;
srand $seed;
diag("SEED=$seed");
alarm $minutes * 60 + 1200;
$PostgreSQL::Test::Utils::timeout_default = 600;

my $node = outbox_node('main', conf => <<'CONF');
outbox.retention = 20s
outbox.attempts_retention = 20s
max_worker_processes = 8
synchronous_commit = off
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

endpoint($node, $receiver, 'well', '/ok/well', "topics => '{well.*}'");
endpoint($node, $receiver, 'bulk', '/ok/bulk', "topics => '{bulk.*}', max_attempts => 1, tenant => 'bulk'");
endpoint($node, $receiver, 'late', '/ok/late', "topics => '{late.*}'");
endpoint($node, $receiver, "c$_", "/ok/c$_", "topics => '{mine.*}', tenant => 't$_'") foreach 1 .. $customers;

my $begun = time;
my %wanted;    # by path: ids, by key in the order of emission
my %did;
my (@open, @children, @paused, @copies);
my $copies = 0;

sub note_ids
{
	my ($path, $key, @ids) = @_;
	push @{ $wanted{$path}{$key} }, @ids;
	return;
}

sub emit_to
{
	my ($topic, $path, $n, $more) = @_;
	my $key = 'k' . int rand 5;

	note_ids($path, $key, split /\n/,
		ask("SELECT outbox.emit('$topic', jsonb_build_object('n', n), key => '$key'$more) FROM generate_series(1, $n) n"));
	return;
}

# Something that may last.  It gives up if it does not get its lock: whatever waits for an open transaction with a strong lock
# lets all others wait behind it, which is PostgreSQL's own.
sub in_background
{
	my ($dbname, $sql) = @_;
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		$ENV{PGOPTIONS} = '-c lock_timeout=1s';
		open STDERR, '>', '/dev/null';
		open STDOUT, '>', '/dev/null';
		exec 'psql', '-Xq', '-d', $node->connstr($dbname), '-c', $sql or POSIX::_exit(127);
	}
	push @children, $pid;
	return;
}

sub end_open
{
	my ($at_least) = @_;
	while (@open > $at_least)
	{
		my ($session, @ids) = @{ splice @open, int rand @open, 1 };
		if (rand() < 0.7)
		{
			$session->query_safe('COMMIT');
			note_ids('/ok/late', 'late', @ids);
		}
		else
		{
			$session->query_safe('ROLLBACK');
		}
		$session->quit;
	}
	return;
}

my @tables = split /\n/, ask("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'");
my %actions = (
	'a transaction is left open' => sub
	{
		end_open(5);
		my $session = $node->background_psql('postgres', on_error_stop => 1);
		my @ids = split /\n/, $session->query_safe("BEGIN; SELECT outbox.emit('late.n', '{}', key => 'late') FROM generate_series(1, 3)");
		push @open, [ $session, @ids ];
	},
	'a sign-up is not committed' => sub
	{
		end_open(5);
		my $session = $node->background_psql('postgres', on_error_stop => 1);
		$session->query_safe("BEGIN; SELECT outbox.create_endpoint('new.' || pg_backend_pid(), 'http://127.0.0.1:9/', topics => '{none}')");
		push @open, [ $session ];
	},
	'VACUUM FULL' => sub { in_background('postgres', 'VACUUM FULL outbox.' . $tables[ rand @tables ]) },
	'a lock for five seconds' => sub
	{
		# what every emit or every delivery needs is locked only for as long as VACUUM FULL takes
		my @some = grep { !/^(events|origins|own_epochs|positions|endpoint_settings)/ } @tables;
		in_background('postgres', 'BEGIN; LOCK TABLE outbox.' . $some[ rand @some ] . ' IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT');
	},
	'a customer is paused' => sub
	{
		my $c = 'c' . (1 + int rand $customers);
		ask("SELECT outbox.pause_endpoint('$c')");
		push @paused, $c;
		ask("SELECT outbox.resume_endpoint('" . (splice @paused, int rand @paused, 1) . "')") if @paused > 8;
	},
	'dead letters in bulk' => sub
	{
		$receiver->control(path => '/ok/bulk', behave => '/status/500');
		note_ids('/ok/bulk', 'bulk', split /\n/,
			ask("SELECT outbox.emit('bulk.n', '{}', key => 'b' || n % 1000, tenant => 'bulk') FROM generate_series(1, $bulk / 10) n"));
		usleep(2_000_000);
		$receiver->control(path => '/ok/bulk', behave => '');
		in_background('postgres', "SELECT outbox.retry('bulk')");
	},
	'a copy by TEMPLATE' => sub
	{
		end_open(0);
		my $name = 'copy' . ++$copies;
		push @copies, $name if $node->psql('postgres', "CREATE DATABASE $name TEMPLATE postgres") == 0
		  || $node->psql('template1', "CREATE DATABASE $name TEMPLATE postgres") == 0;
		$node->psql('postgres', 'DROP DATABASE ' . shift @copies) if @copies > 5;
	},
);

# How long an event took from its emit, which its id tells, to the receiver, by the receiver's clock, and how long psql took for
# the emit.  What the server did is asked while a slow one is awaited.
my (@latencies, @emits, @slow, @recent);

sub quantiles
{
	my @sorted = sort { $a <=> $b } @_;
	return sprintf 'p50 %.0f ms, p99 %.0f ms, %.0f ms at most', map { 1000 * $sorted[ $_ * $#sorted ] } 0.5, 0.99, 1;
}

sub probe
{
	my $from = time;
	my $id = ask("SELECT outbox.emit('well.n', '{}', key => 'probe')");
	my $emitted = time;
	my $meanwhile = '';
	my $request;

	note_ids('/ok/well', 'probe', $id);
	until (($request) = $receiver->delivered(id => $id))
	{
		$meanwhile ||= ask(<<'SQL') if time - $emitted > 0.3;
SELECT concat_ws('; ', (SELECT reason FROM outbox.status),
	(SELECT string_agg(concat_ws(' ', a.backend_type, a.state, a.wait_event, left(a.query, 70)), ' | ')
	 FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND a.datname = 'postgres'
	 AND (a.state = 'active' OR a.backend_type ~ 'outbox')))
SQL
		usleep(5_000);
	}
	push @latencies, $request->{wall} - hex(join '', (split /-/, $id)[ 0, 1 ]) / 1000;
	push @emits, $emitted - $from;
	push @slow, [ $latencies[-1], $emits[-1], $emitted - $begun,
		join(', ', map { sprintf '%s %.1f s before', $_->[1], $from - $_->[0] } grep { $from - $_->[0] < 8 } @recent), $meanwhile ];
	@slow = (sort { $b->[0] <=> $a->[0] } @slow)[ 0 .. ($#slow < 9 ? $#slow : 9) ];
	return;
}

my $most = 0;
my $emitted = 0;
while (time - $begun < $minutes * 60)
{
	my $what = (sort keys %actions)[ rand keys %actions ];
	push @recent, [ time, $what ];
	shift @recent if @recent > 20;
	$actions{$what}->();
	$did{$what}++;
	foreach (1 .. 5)
	{
		emit_to('well.n', '/ok/well', 20, '');
		my $c = 1 + int rand $customers;
		emit_to('mine.n', "/ok/c$c", 20, ", tenant => 't$c'");
		$emitted += 40;
		probe();
		usleep(rand 200_000);
	}
	$most = max($most, ask('SELECT log_bytes FROM outbox.status'));
	@children = grep { waitpid($_, POSIX::WNOHANG()) == 0 } @children;
}
end_open(0);
waitpid $_, 0 foreach @children;
ask("SELECT outbox.resume_endpoint(endpoint) FROM outbox.stats WHERE state = 'paused'");
ask("SELECT outbox.retry('bulk')");
diag(join ', ', map { "$_: $did{$_}" } sort keys %did);
diag(sprintf '%.0f s, %d events; an event of an endpoint that nothing concerns: %s; psql: %s; the log takes %.1f MB at most',
	time - $begun, $emitted, quantiles(@latencies), quantiles(@emits), $most / 1048576);
diag(sprintf '%.0f ms, psql took %.0f ms, at %.0f s: %s; %s', 1000 * $_->[0], 1000 * $_->[1], @{$_}[ 2 .. 4 ]) foreach @slow;
ok(wait_sql($node, "SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats WHERE endpoint !~ '^new'"), 'all is delivered in the end')
  or diag ask('SELECT endpoint, state, reason, pending, retrying, blocked, dead FROM outbox.stats WHERE pending + retrying + blocked > 0');
is(ask("SELECT sum(dead) FROM outbox.stats WHERE endpoint !~ '^bulk'"), '0', 'no other endpoint has dead letters');

my (%got, %seen);
open(my $fh, '<', $receiver->{journal}) or die "journal: $!";
while (my $line = <$fh>)
{
	my ($path) = $line =~ m{"path": "(/ok/\w+)".*"status": 200} or next;
	my ($key) = $line =~ /"key": "([^"]*)"/;
	my ($id) = $line =~ /"id": "([^"]+)"/;
	push @{ $got{$path}{$key} }, $id if !$seen{"$path $id"}++;
}
close $fh;
my $dead = ask("SELECT count(*) FROM outbox.dead_letters WHERE endpoint = 'bulk'");
foreach my $path (sort keys %wanted)
{
	foreach my $key (sort keys %{ $wanted{$path} })
	{
		my @wanted = @{ $wanted{$path}{$key} };
		if ($key eq 'late' || $key eq 'bulk')
		{
			my %there = map { $_ => 1 } map { @$_ } values %{ $got{$path} };
			my $lacks = grep { !$there{$_} } @wanted;
			is($lacks, $key eq 'bulk' ? $dead : 0, "$path: all " . @wanted . ' came, or are dead and visible');
			is(scalar keys %there, scalar(@wanted) - $lacks, "$path: and no others");
		}
		else
		{
			is_deeply($got{$path}{$key}, \@wanted, "$path $key: exactly its own, in order");
		}
	}
}
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');
ok((wait_until { ask("SELECT outbox.emit('well.n', '{}')"); ask('SELECT log_bytes < 20000000 FROM outbox.status') eq 't' } 'the log'), 'the log is small again');
$node->stop;
done_testing();
