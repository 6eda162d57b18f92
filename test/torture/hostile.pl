# Nothing that a role, receiver, broker or customer does takes from the others more than their share.
# For MINUTES (10) hostile ones are at work at once, after two minutes without them.
# Well-behaved endpoints keep 0.8 of their rate, and three times their p99 at most.
use strict;
use warnings;
no warnings 'portable';    # hex() of 48 bits

use List::Util qw(max min);
use OutboxTest;
use OutboxTest::Network;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $minutes = $ENV{MINUTES} || 10;
my $rate = $ENV{RATE} || 200;
alarm $minutes * 60 * 1.5 + 600;

my $node = outbox_node(
	'main', conf => <<CONF);
outbox.worker_memory = 256MB
outbox.retention = 60s
outbox.attempts_retention = 60s
outbox.sinks = '@{[join ', ', 'webhook', map { is_installed("outbox_$_") ? $_ : () } qw(kafka)]}'
autovacuum_naptime = 10s
max_prepared_transactions = 10
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $other = OutboxTest::Receiver->new('other', brief => 1);    # so that the first one is not what is shared
my $dir = PostgreSQL::Test::Utils::tempdir();

ask(<<'SQL');
CREATE ROLE anyone LOGIN;
GRANT TEMP ON DATABASE postgres TO anyone;
CREATE ROLE emitter LOGIN;
SELECT outbox.grant_emit('emitter');
CREATE ROLE portal LOGIN;
SELECT outbox.grant_to('portal', 'portal');
SQL

# The well-behaved: one with keys, one of a tenant, one in batches
my @good = qw(keys tenant batch);
endpoint($node, $receiver, 'keys', '/ok/keys', "topics => '{load.*}'");
endpoint($node, $receiver, 'tenant', '/ok/tenant', "topics => '{load.*}', tenant => 'good'");
endpoint($node, $receiver, 'batch', '/ok/batch', "topics => '{load.*}', batch_size => 20");

# Latency is from the emit, whose time (ms) the id begins with, to the first request.
sub figures
{
	my ($seconds) = @_;
	my $began = time;
	my (@latency, $n);

	truncate $receiver->{journal}, 0;
	my $producer = start_producer($node, "$dir/producer" . int($began), rate => $rate, keys => 100, seconds => $seconds, topic => 'load.t' . int($began));
	stop_producer($producer, 1);
	wait_sql($node, "SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats WHERE endpoint = 'keys'");
	my $took = time - $began;
	open(my $fh, '<', $receiver->{journal}) or die "journal: $!";
	while (my $line = <$fh>)
	{
		next unless $line =~ m{/ok/keys} && $line =~ /"wall": ([0-9.]+).*"status": 200, "id": "(\w{8})-(\w{4}).*"seen": 1\b/;
		$n++;
		push @latency, $1 * 1000 - hex("$2$3");
	}
	close $fh;
	@latency = sort { $a <=> $b } @latency;
	return { rate => $n / $took, p50 => $latency[ 0.5 * $#latency ], p99 => $latency[ 0.99 * $#latency ] };
}

my $alone = figures(max(20, min(120, $minutes * 15)));
my $worker = worker_pid($node);

# --- The hostile

my (@pids, @peers);

# A command that is run again and again until the test ends; it may fail.
sub again_and_again
{
	my ($user, $name, $rate, $script) = @_;
	my $file = "$dir/$name";
	PostgreSQL::Test::Utils::append_to_file($file, $script);
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>', '/dev/null');
		open(STDERR, '>', "$file.err");
		rests($$);
		while (1)
		{
			system('pgbench', '-n', '-M', 'extended', '-U', $user, '-h', $node->host, '-p', $node->port, '-R', $rate, '-f', $file, '-T', 20, '--max-tries', 1, 'postgres');
			sleep 1 if $? != 0;
		}
	}
	push @pids, $pid;
	push @OutboxTest::Receiver::started, $pid;
	return;
}

# A peer is on another machine: what it costs itself is not the worker's, so it gets what is left.
sub rests
{
	my ($pid) = @_;
	system('chrt', '--all-tasks', '--idle', '--pid', 0, $pid) == 0 or die "chrt: $?";
	return;
}

# Roles: one without any right, one that may emit
again_and_again('anyone', 'anyone', 20, <<'SQL');
create or replace procedure pg_temp.p(x int) language plpgsql as $$ declare n int; begin rollback; select count(*) into n from pg_class where oid = x; end $$;
call pg_temp.p(1);
call pg_temp.p(2);
SQL
again_and_again('emitter', 'emitter', 1, <<'SQL');
begin;
select outbox.emit('evil.t', jsonb_build_object('x', repeat('y', 20000)), key => 'k' || n, tenant => 'evil') from generate_series(1, 20) n;
select count(*) from outbox.outgoing where key > 'a';
end;
SQL

# Receivers: each sends without end, or nothing
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost,IP:127.0.0.1');
@ENV{qw(CERT KEY)} = ("$dir/good.crt", "$dir/good.key");
my $hostile = start_hostile('receivers');
rests($hostile->{pid});
foreach my $name (sort keys %{ $hostile->{port} })
{
	next if $name =~ /^(?:h2|proxy) /;
	push @peers, "r$hostile->{port}{$name}";
	ask("SELECT outbox.create_endpoint('$peers[-1]', 'http://127.0.0.1:$hostile->{port}{$name}/', '{evil.*}', backoff_base => '1 s', backoff_max => '5 s', max_attempts => 3, timeout => '10 s', tenant => 'evil')");
}
foreach my $kind (qw(hang reset slow))
{
	push @peers, $kind;
	ask("SELECT outbox.create_endpoint('$kind', '" . $other->url("/$kind/$kind") . "', '{evil.*}', backoff_max => '5 s', max_attempts => 3, timeout => '10 s', tenant => 'evil$kind')");
}

# Brokers
if (is_installed('outbox_kafka'))
{
	my $brokers = start_hostile('kafka');
	rests($brokers->{pid});
	foreach my $name (sort keys %{ $brokers->{port} })
	{
		push @peers, "k$brokers->{port}{$name}";
		ask("SELECT outbox.create_endpoint('$peers[-1]', 'kafka://127.0.0.1:$brokers->{port}{$name}/t', '{evil.*}', backoff_base => '1 s', backoff_max => '5 s', max_attempts => 3, timeout => '5 s')");
	}
}

# A customer: every function of the portal in turn
ask(q{SELECT outbox.portal_create_endpoint('customer', '} . $other->url('/ok/customer') . q{', '{"topics": ["evil.*"]}') FROM generate_series(1, 10)});
again_and_again('portal', "portal$_", 5, <<'SQL') for 1, 2;
\set d random(1, 1000)
select e ->> 'name' as endpoint from outbox.portal_endpoints('customer') e order by random() limit 1 \gset
select outbox.portal_alter_endpoint('customer', :endpoint::text, jsonb_build_object('topics', (select jsonb_agg('t' || n || '.x' || :d) from generate_series(1, 100) n) || '["evil.*"]'));
select outbox.portal_pause_endpoint('customer', :endpoint::text);
select outbox.portal_send_test('customer', :endpoint::text);
select outbox.portal_replay('customer', :endpoint::text, now() - interval '1 hour');
select outbox.portal_rotate_secret('customer', :endpoint::text);
select outbox.portal_resume_endpoint('customer', :endpoint::text);
select count(*) from outbox.portal_deliveries('customer', :endpoint::text);
select count(*) from outbox.portal_attempts('customer', :endpoint::text);
SQL

ok(wait_sql($node, "SELECT count(*) >= 5 FROM outbox.stats WHERE failed_attempts > 0"), 'the hostile are at work');
my $among = figures($minutes * 60);
my ($resident, $bound) = split /\|/, ask('SELECT resident / 1048576, resident_limit / 1048576 FROM outbox.workers');

kill 'TERM', @pids;
waitpid $_, 0 for @pids;
diag(sprintf '%s: %.0f/s, p50 %.1f ms, p99 %.1f ms', @$_) for [ 'alone', @$alone{qw(rate p50 p99)} ], [ 'among hostile ones', @$among{qw(rate p50 p99)} ];
diag(sprintf 'RssAnon %d MB, bound %d MB, %d hostile endpoints', $resident, $bound, scalar @peers);

cmp_ok($among->{rate}, '>=', 0.8 * $alone->{rate}, 'the well-behaved keep 0.8 of their rate');
cmp_ok($among->{p99}, '<=', 3 * $alone->{p99} + 5, 'and three times their p99 at most');
is(worker_pid($node), $worker, 'the same worker from the beginning to the end');
cmp_ok($resident, '<', $bound, 'its memory is bounded');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/was terminated by signal/, 'no process was ended by a signal');
is(ask("SELECT count(*) FROM outbox.dead_letters WHERE endpoint IN ('keys', 'tenant', 'batch')"), '0', 'no event of theirs is dead');
foreach my $script (glob "$dir/*.err")
{
	my $said = PostgreSQL::Test::Utils::slurp_file($script);
	unlike($said, qr/server closed the connection|terminating connection/, "$script: the server has stayed");
}
$node->stop;
done_testing();
