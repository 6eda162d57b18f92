# With two workers, the work of the database is done once, and commands reach every endpoint.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = outbox_node(
	'main', conf => <<'CONF');
max_worker_processes = 16
outbox.workers_per_database = 2
CONF
my $receiver = OutboxTest::Receiver->new('main');

# One endpoint each
endpoint($node, $receiver, 'dies', '/ok/dies', "topics => '{dies.*, both.*}', max_attempts => 1");
endpoint($node, $receiver, 'told', '/ok/told', "topics => '{outbox.dead, told.*, both.*}'");
my $divided = 'SELECT count(*) = 2 AND bool_and(endpoints = 1) FROM outbox.workers WHERE pid IS NOT NULL';
ok(wait_sql($node, $divided), 'two workers have an endpoint each');
is(ask('SELECT state FROM outbox.status'), 'running', 'outbox.status has one row');
is(ask('SELECT string_agg(worker::text, $$,$$ ORDER BY worker) FROM outbox.workers'), '1,2', 'outbox.workers has two');

# One of two workers is stopped, in one of two databases: the numbers of its own endpoint are not exact
ask('CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION outbox');
$node->safe_psql('other', "SELECT outbox.create_endpoint('there$_', '" . $receiver->url("/ok/there$_") . "')") foreach 1 .. 2;
ok(wait_sql($node, "$divided AND datname = 'other'"), 'another database has two as well');
my $figures = 0;
foreach my $worker (1 .. 2)
{
	my $pid = ask("SELECT pid FROM outbox.workers WHERE datname = 'postgres' AND worker = $worker");
	kill 'STOP', $pid;
	my $id = emit($node, 'both.stopped', '{}');
	$figures++;
	ok(wait_sql($node, "SELECT state = 'stuck' FROM outbox.status"), "worker $worker is stopped: stuck");
	ok(wait_sql($node, "SELECT count(*) FILTER (WHERE pending_exact AND pending = 0 AND delivered = $figures) = 1 AND count(*) FILTER (WHERE NOT pending_exact) = 1 FROM outbox.stats"),
		'the other one has delivered, and its numbers are exact');
	is($node->safe_psql('other', "SELECT state FROM outbox.status UNION ALL SELECT 'exact' FROM outbox.stats WHERE pending_exact"), "running\nexact\nexact",
		'and those of the other database');
	kill 'CONT', $pid;
	ok(wait_sql($node, "SELECT bool_and(pending_exact AND delivered = $figures) FROM outbox.stats"), 'it goes on');
	ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running again');
}
$node->safe_psql('postgres', 'DROP DATABASE other');

# Notices go to each endpoint that subscribes, whichever worker serves it
$receiver->control(path => '/ok/dies', behave => '/status/500');
my $dead = emit($node, 'dies.one', '{}');
wait_status($node, $dead, 'dead', 'it dies at one worker');
$receiver->wait_delivered(1, path => '/ok/told', topic => 'outbox.dead');
pass('the other one tells of it');
$receiver->control(path => '/ok/dies');

# Commands find the worker of their endpoint
is(ask("SELECT outbox.retry('dies')"), '1', 'retry');
$receiver->wait_delivered(1, path => '/ok/dies', id => $dead);
pass('and it is delivered');

# An event that no endpoint wants is counted once, and one that an endpoint wants is not
my $unmatched = ask('SELECT unmatched FROM outbox.status');
my @wanted = map { emit($node, $_, '{}') } qw(dies.two told.two both.two);
emit($node, 'nobody.wants', '{}') foreach 1 .. 5;
wait_status($node, $_, 'delivered', 'delivered') foreach @wanted;
ok(wait_sql($node, "SELECT unmatched = $unmatched + 5 FROM outbox.status"), 'unmatched events are counted');
usleep(300_000);
is(ask('SELECT unmatched FROM outbox.status'), $unmatched + 5, 'once');

# Replays, of either
my $since = ask('SELECT created_at FROM outbox.events ORDER BY seq DESC LIMIT 1 OFFSET 7');
foreach my $path (qw(dies told))
{
	my $before = () = $receiver->delivered(path => "/ok/$path");
	my $n = ask("SELECT outbox.replay('$path', '$since') IS NOT NULL");
	ok(wait_sql($node, "SELECT bool_and(finished_at IS NOT NULL) FROM outbox.replays"), "replay of $path");
	$receiver->wait_delivered($before + 2, path => "/ok/$path");
	pass('and it is delivered again');
}

# The worker that has the database's own work loses it: scheduled events go on, once
my @scheduled;
ask(q[SELECT outbox.alter_endpoint(name, config => '{"outbox_headers": "all,sequence"}') FROM outbox.endpoints]);
foreach my $round (1 .. 4)
{
	push @scheduled, map { emit($node, 'both.later', '{}', "deliver_at => now() + interval '$_ ms'") } 100, 600, 1200;
	my $pid = ask('SELECT pid FROM outbox.workers WHERE pid IS NOT NULL ORDER BY started_at LIMIT 1');
	ask("SELECT pg_terminate_backend($pid)");
	ok(wait_sql($node, $divided), "terminated, round $round: two workers again");
}
foreach my $id (@scheduled)
{
	$receiver->wait_delivered(1, path => "/ok/$_", id => $id) foreach qw(dies told);
}
my %entered = map { $_->{headers}{'outbox-sequence'} // '' => 1 } $receiver->requests(topic => 'both.later');
ok(!exists $entered{''}, 'requests have numbers');
is(scalar keys %entered, scalar @scheduled, 'each scheduled event entered the log once');

# An endpoint that changes hands while it is idle is not passed by the position
# that it had shared: its new worker finds an index locked before it has asked where
# the endpoint stands, and an event comes meanwhile.  If that takes longer than the
# worker waits for a lock, all begin again, and it is delivered as well.
ask('ALTER SYSTEM SET outbox.workers_per_database = 1');
$node->reload;
ok( wait_sql(
		$node, 'SELECT count(*) = 1 FROM outbox.workers WHERE pid IS NOT NULL')
	  && wait_sql(
		$node, 'SELECT bool_and(p.shared IS NOT NULL) FROM outbox.endpoint_settings s CROSS JOIN LATERAL'
		  . ' (SELECT shared FROM outbox.positions q WHERE q.endpoint_id = s.endpoint_id ORDER BY number DESC LIMIT 1) p'),
	'one worker, and both endpoints are idle');
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; ALTER INDEX outbox.subscriptions_pkey SET TABLESPACE pg_default');
ask('ALTER SYSTEM SET outbox.workers_per_database = 2');
$node->reload;
ok(wait_sql($node, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox.subscriptions_pkey'::regclass)"),
	'another worker takes one');
my $passed = emit($node, 'both.passed', '{}');
ok( wait_sql(
		$node, "SELECT EXISTS (SELECT FROM outbox.positions p JOIN outbox.events e ON e.id = '$passed'"
		  . ' WHERE p.endpoint_id < 0 AND pg_visible_in_snapshot(e.xid, p.read))'),
	'the shared position is beyond an event');
$locker->query_safe('COMMIT');
$locker->quit;
$receiver->wait_delivered(1, path => "/ok/$_", id => $passed) foreach qw(dies told);
pass('it is delivered all the same, to both');
ok(wait_sql($node, $divided), 'two workers have an endpoint each');

# The log is forgotten although one endpoint has nothing to do
ask("ALTER SYSTEM SET outbox.retention = '4 s'");
ask("ALTER SYSTEM SET outbox.attempts_retention = '4 s'");
$node->reload;
my %since;
my $end = time + 60;
while (keys %since < 4 && time < $end)
{
	emit($node, 'told.often', '{}');
	$since{ ask("SELECT since FROM outbox.pieces WHERE log = 'events'") } = 1;
	usleep(50_000);
}
cmp_ok(scalar keys %since, '>=', 4, 'pieces of the log are changed');
ok(wait_sql($node, 'SELECT retained_by IS NULL FROM outbox.status'), 'no endpoint retains it, the idle one neither');

# Positions fill a table and are moved to the other one
ask(<<'SQL');
SELECT outbox.create_endpoint('many' || n, (SELECT url || n FROM outbox.endpoints WHERE name = 'told'), topics => '{many.*}', max_in_flight => 2)
FROM generate_series(1, 200) n
SQL
ok(wait_sql($node, 'SELECT sum(endpoints) = 202 AND min(endpoints) > 90 FROM outbox.workers'), '202 endpoints are divided');
my $piece = ask('SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1');
my @many;
$end = time + 120;
while (ask('SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1') == $piece && time < $end)
{
	push @many, emit($node, 'many.events', '{}') foreach 1 .. 5;
	usleep(100_000);
}
isnt(ask('SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1'), $piece, 'positions are moved');
cmp_ok(ask("SELECT count(*) FROM outbox.positions WHERE piece <> $piece"), '<', 20000, 'into an empty table');
wait_settled($node);
ask('SELECT pg_terminate_backend(pid) FROM outbox.workers');
ok(wait_sql($node, 'SELECT sum(endpoints) = 202 AND count(*) = 2 FROM outbox.workers WHERE pid IS NOT NULL'), 'workers come again');
my $last = emit($node, 'many.last', '{}');
wait_until
{
	200 == (() = $receiver->delivered(id => $last));
}
'and know where they stood';
my %sent;
$sent{"$_->{path} $_->{id}"}++ foreach grep { $_->{topic} =~ /^many/ } $receiver->delivered;
is(scalar keys %sent, 200 * (@many + 1), 'everything was delivered');
is((grep { $_ > 1 } values %sent) + 0, 0, 'once');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/ERROR:(?!.*lock timeout)|FATAL:(?!.*administrator command)/,
	'no worker ended with an error');

done_testing();
