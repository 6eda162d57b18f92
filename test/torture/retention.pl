# emit() takes no longer while an endpoint is disabled for MINUTES and gets its backlog.
# The default is 10 minutes, at 1,000 events a second (RATE), with a retention of 20 s.
# Prints what the disk takes, and what emit() takes before, meanwhile and while the
# endpoint gets its backlog.
use strict;
use warnings;

use OutboxTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $minutes = $ENV{MINUTES} || 10;
my $rate = $ENV{RATE} || 1000;
my $before = 60;
alarm $minutes * 120 + 900;
$PostgreSQL::Test::Utils::timeout_default = 600;

my $node = outbox_node('main', conf => <<'CONF');
outbox.retention = 20s
outbox.attempts_retention = 20s
log_lock_waits = on
deadlock_timeout = 100ms
max_wal_size = 1GB
fsync = on
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $dir = PostgreSQL::Test::Utils::tempdir('retention');

sub megabytes
{
	my ($tables) = @_;
	return ask("SELECT round(sum(pg_total_relation_size(c.oid)) / 1048576.0, 1) FROM pg_class c"
		  . " WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relname ~ '^($tables)'");
}

# pgbench at a steady rate, which writes down how long each transaction took, from
# the moment when it was due.  A table has what was committed.
ask('CREATE TABLE issued (id uuid, key text)');
PostgreSQL::Test::Utils::append_to_file("$dir/emit.sql", <<'SQL');
\set k random(1, 200)
INSERT INTO issued SELECT outbox.emit('load.n', '{"customer": 4711, "total": "99.95", "currency": "EUR", "items": [1, 2, 3]}'::jsonb, key => ':k'), ':k';
SQL

sub start_load
{
	my ($name, $seconds) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		exec 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-f', "$dir/emit.sql", '-R', $rate,
		  '-c', 8, '-j', 2, '-T', $seconds, '-l', "--log-prefix=$dir/$name", 'postgres'
		  or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	return $pid;
}

# p50 and p99, ms
sub latencies
{
	my ($name) = @_;
	my @ms;

	foreach my $file (glob "$dir/$name.*")
	{
		push @ms, map { (split / /)[2] / 1000 } split /\n/, slurp_file($file);
	}
	@ms = sort { $a <=> $b } @ms;
	my @result = map { $ms[ $_ * $#ms ] } 0.5, 0.99;
	note(sprintf '%s: emit %d transactions, p50 %.2f ms, p99 %.2f ms', $name, scalar(@ms), @result);
	return @result;
}

sub sizes
{
	my ($when) = @_;
	note(sprintf '%6.0f s: log %7.1f MB, attempts %6.1f MB, positions %4.1f MB, retained for "gone" %7.1f MB, "fast" waits for %d',
		$when, megabytes('events_|ticks_'), megabytes('attempt_'), megabytes('positions_'),
		ask("SELECT retained_bytes / 1048576.0 FROM outbox.stats WHERE endpoint = 'gone'"),
		ask("SELECT pending FROM outbox.stats WHERE endpoint = 'fast'"));
	return;
}

sub watch
{
	my ($pid, $every) = @_;
	my $start = time;

	while (waitpid($pid, POSIX::WNOHANG()) == 0)
	{
		usleep($every * 1_000_000);
		sizes(time - $start);
	}
	is($? >> 8, 0, 'the load ended well');
	@OutboxTest::Receiver::started = grep { $_ != $pid } @OutboxTest::Receiver::started;
	return;
}

sub max { return $_[0] > $_[1] ? $_[0] : $_[1] }

endpoint($node, $receiver, 'fast', '/ok/fast', "topics => '{load.*}'");
endpoint($node, $receiver, 'gone', '/ok/gone', "topics => '{load.*}'");
watch(start_load('before', $before), $before / 4);
my ($p50, $p99) = latencies('before');

$receiver->control(path => '/ok/gone', behave => '/status/410');
my $load = start_load('meanwhile', $minutes * 60);
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'gone'"), 'an endpoint is disabled');
watch($load, max($minutes * 6, 10));
my ($p50_meanwhile, $p99_meanwhile) = latencies('meanwhile');
cmp_ok($p99_meanwhile, '<=', max($p99 * 1.5, $p99 + 1), 'p99 of emit() is what it was');
my ($kept, $bytes) = split /\|/, ask('SELECT (SELECT count(*) FROM outbox.events), log_bytes FROM outbox.status');
note(sprintf 'disabled for %.0f s: %d events, %.1f MB, %.0f B each', $minutes * 60, $kept, $bytes / 1048576, $bytes / $kept);
cmp_ok($kept, '>=', $rate * $minutes * 60 * 0.9, 'the log has kept them');
cmp_ok(megabytes('attempt_'), '<', 60, 'but no more requests than the retention says');

# Resumed under load
$receiver->control(path => '/ok/gone', behave => '');
$load = start_load('afterwards', $before);
ask("SELECT outbox.resume_endpoint('gone')");
my $start = time;
watch($load, $before / 4);
latencies('afterwards');
ok(wait_sql($node, "SELECT bool_and(pending + processing + retrying + blocked = 0) FROM outbox.stats"), 'it gets everything');

# Every committed event, once at each path
my %issued = map { $_ => 1 } split /\n/, ask('SELECT id FROM issued');
foreach my $path (qw(/ok/fast /ok/gone))
{
	my %got;

	open(my $fh, '<', $receiver->{journal}) or die "journal: $!";
	while (my $line = <$fh>)
	{
		next unless $line =~ /"path": "\Q$path\E".*"status": 200, "id": "([^"]+)"/;
		$got{$1}++;
	}
	close $fh;
	is(scalar(grep { !$got{$_} } keys %issued), 0, "$path: nothing lost of " . keys %issued);
	is(scalar(grep { !$issued{$_} } keys %got), 0, 'and nothing else');
	is(scalar(grep { $_ > 1 } values %got), 0, 'nothing twice');
}
ok(wait_sql($node, "SELECT log_bytes < $bytes / 10 AND retained_by IS NULL FROM outbox.status"), 'the space is given back');
sizes(time - $start);
unlike(slurp_file($node->logfile), qr/still waiting for .* on relation/, 'no session has waited for a table');
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');

$node->stop;
done_testing();
