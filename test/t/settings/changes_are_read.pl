# Settings that change are read, and no others, whatever the order of the commits.
# Direct changes of the tables are read when all settings are.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub count_at
{
	my ($path) = @_;
	return scalar(() = $receiver->delivered(path => $path));
}

# Emits until an event comes at the path, which the endpoint has got by a change.
sub comes_at
{
	my ($path, $name) = @_;
	my $before = count_at($path);

	foreach (1 .. 100)
	{
		ask("SELECT outbox.emit('a.b', '{}')");
		last unless wait_settled($node);
		return pass($name) if count_at($path) > $before;
	}
	return fail($name);
}

sub to
{
	my ($endpoint, $path) = @_;
	return "SELECT outbox.alter_endpoint('$endpoint', url => '" . $receiver->url($path) . "')";
}

endpoint($node, $receiver, $_, "/ok/$_") foreach qw(a b c);
comes_at("/ok/$_", "$_ is served") foreach qw(a b c);

# Only what has changed is read
ask("UPDATE outbox.endpoint_settings SET url = '" . $receiver->url('/ok/b2') . "' WHERE name = 'b'");
ask(to('a', '/ok/a2'));
comes_at('/ok/a2', 'a change is read');
ok(wait_settled($node), 'settled');
is(count_at('/ok/b2'), 0, 'what was not said to have changed is not read');
ask('SELECT outbox.endpoint_changed(0)');
comes_at('/ok/b2', 'until all settings are');

# A change that began before another one and ends after it
my $late = $node->background_psql('postgres', on_error_stop => 1);
$late->query_safe('BEGIN; ' . to('a', '/ok/a3'));
ask(to('b', '/ok/b3'));
comes_at('/ok/b3', 'the one that ended first');
$late->query_safe('COMMIT');
comes_at('/ok/a3', 'the one that ended later');
$late->query_safe('BEGIN; SAVEPOINT s; ' . to('a', '/ok/never') . '; ROLLBACK TO s; ' . to('c', '/ok/c3') . '; COMMIT');
$late->quit;
comes_at('/ok/c3', 'of a transaction with a part undone');
is(count_at('/ok/never'), 0, 'and not what was undone');

# An event that follows a change at once: the worker may be about to read it
my $many = 300;
ask("SELECT count(outbox.create_endpoint('n' || n, '" . $receiver->url('/ok/many') . "', '{none}')) FROM generate_series(1, $many) n");
ask(join "\n", map { "SELECT outbox.alter_endpoint('n$_', topics => '{yes.$_}') \\g /dev/null\nSELECT outbox.emit('yes.$_', '{}') \\g /dev/null" } 1 .. $many);
ok(wait_settled($node), 'settled');
ok(wait_sql($node, "SELECT count(*) = $many FROM outbox.stats WHERE endpoint ~ '^n[0-9]' AND delivered = 1"), 'an event that follows a change is judged by it');
ask("SELECT count(outbox.drop_endpoint(name)) FROM outbox.endpoints WHERE name ~ '^n[0-9]'");

# An endpoint that is loaded again once a request has ended: what comes meanwhile is judged by the new settings
endpoint($node, $receiver, 's', '/ok/s', "topics => '{s.a}'");
$receiver->control(path => '/ok/s', behave => '/hold');
emit($node, 's.a', '{}');
ok(wait_sql($node, "SELECT processing = 1 FROM outbox.stats WHERE endpoint = 's'"), 'a request is on its way');
ask("SELECT outbox.alter_endpoint('s', ordering => 'strict', topics => '{s.a,s.b}')");
my $meanwhile = emit($node, 's.b', '{}');
$receiver->wait_delivered(1, path => '/ok/c3', id => $meanwhile);
$receiver->control(path => '/ok/s', behave => '/ok');
ok(wait_settled($node), 'it was answered');
ok(wait_sql($node, "SELECT delivered = 2 FROM outbox.stats WHERE endpoint = 's'"), 'and the event that came meanwhile is delivered');
ask("SELECT outbox.drop_endpoint('s')");

# Endpoints that come, go, rest and go back
endpoint($node, $receiver, 'd', '/ok/d');
comes_at('/ok/d', 'a new endpoint');
ask("SELECT outbox.pause_endpoint('a')");
ask("SELECT outbox.drop_endpoint('d', discard => true)");
ok(wait_sql($node, "SELECT state = 'paused' FROM outbox.stats WHERE endpoint = 'a'"), 'paused');
my $then = count_at('/ok/d');
ask("SELECT count(outbox.emit('a.b', '{}')) FROM generate_series(1, 10)");
ok(wait_sql($node, "SELECT pending >= 10 FROM outbox.stats WHERE endpoint = 'a'"), 'an endpoint that rests is counted');
is(count_at('/ok/d'), $then, 'nothing goes to an endpoint that was dropped');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.subscriptions WHERE endpoint_id NOT IN (SELECT endpoint_id FROM outbox.endpoint_settings)'),
	'and nothing of it is left');
ask("SELECT outbox.create_endpoint('brief', 'http://127.0.0.1:1/') \\g /dev/null\nSELECT outbox.drop_endpoint('brief')");
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.endpoint_secrets WHERE endpoint_id NOT IN (SELECT endpoint_id FROM outbox.endpoint_settings)"),
	'nor of one that was never loaded');
ask("BEGIN; SELECT outbox.create_endpoint('briefer', 'http://127.0.0.1:1/'); SELECT outbox.drop_endpoint('briefer'); COMMIT");
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.endpoint_secrets WHERE endpoint_id NOT IN (SELECT endpoint_id FROM outbox.endpoint_settings)"),
	'not even by the transaction that made it');
ask("SELECT outbox.resume_endpoint('a')");
comes_at('/ok/a3', 'resumed');
my $all = ask("SELECT delivered + (SELECT count(*) FROM outbox.events) FROM outbox.stats WHERE endpoint = 'b'");
ask("SELECT outbox.seek_endpoint('b', 'beginning')");
ok(wait_sql($node, "SELECT delivered >= $all FROM outbox.stats WHERE endpoint = 'b'"), 'an endpoint that goes back to the beginning');

# Rows that every worker has seen go, with a later change
ask("SELECT outbox.alter_endpoint('c', max_in_flight => $_)") foreach 1 .. 20;
ok( wait_sql($node, "SELECT (SELECT count(*) FROM outbox.endpoint_changes) < 10 FROM outbox.alter_endpoint('c', max_in_flight => 5)"),
	'changes that were read are deleted');

# A transaction that stays open, or a snapshot that is held, since before many changes
my $many_changes = 2000;
my $entries = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'endpoint_changes_pkey'";
my $open = $node->background_psql('postgres', on_error_stop => 1);

sub reads_each_a_few_times
{
	my ($name, $left) = @_;
	my $before = ask($entries);

	ask("DO 'BEGIN FOR n IN 1 .. $many_changes LOOP PERFORM outbox.alter_endpoint(''c'', max_in_flight => 1 + n % 9); COMMIT; END LOOP; END'");
	foreach my $n (1 .. 4)
	{
		my $counted = ask($entries);
		ask(to('a', "/ok/a.$name.$n"));
		comes_at("/ok/a.$name.$n", "$name: change $n is read");
		ok(wait_sql($node, 'SELECT count(*) < 10 FROM outbox.endpoint_changes'), 'and deleted') unless $left;
		ok(wait_sql($node, "SELECT ($entries) > $counted FROM outbox.emit('a.b', '{}')"), 'the counts are there');
	}
	my $read = ask($entries) - $before;
	cmp_ok($read, '<', 6 * $many_changes, "$name: each change is read a few times") or diag("$read entries");
	return;
}
$open->query_safe('BEGIN; SELECT pg_current_xact_id()');
reads_each_a_few_times('transaction', 1);
$open->query_safe('COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
reads_each_a_few_times('snapshot');
$open->query_safe('COMMIT');
$open->quit;

# More than one worker, and a worker that starts
ask('ALTER SYSTEM SET outbox.workers_per_database = 3');
ask('SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT count(*) = 3 FROM outbox.workers WHERE pid IS NOT NULL AND datname = 'postgres'"), 'three workers');

# Whichever worker serves them, two of the three are another worker's than b is.  While the
# workers still divide the endpoints, each reads all settings.
my $unread = 0;
foreach my $round (1 .. 20)
{
	ask("UPDATE outbox.endpoint_settings SET url = '" . $receiver->url("/ok/b4.$round") . "' WHERE name = 'b'");
	foreach my $name (qw(a c))
	{
		ask(to($name, "/ok/$name.$round"));
		comes_at("/ok/$name.$round", "$name changes");
	}
	last if $unread = wait_settled($node) && count_at("/ok/b4.$round") == 0;
}
ok($unread, 'a change of an endpoint of another worker does not make one read all settings');

# What other workers serve is known: whether anybody wants an event
sub unmatched
{
	return ask('SELECT unmatched FROM outbox.status');
}

# Each try emits an event that nobody wants, as soon as the worker that counts knows.
sub becomes_unmatched
{
	my ($topic, $name) = @_;
	my $before = unmatched();

	return ok(wait_until(sub { emit($node, $topic, '{}'); unmatched() > $before }, $name), $name);
}
ask("SELECT outbox.alter_endpoint('$_', topics => '{only.$_}')") foreach qw(a b c);
becomes_unmatched('nobody.wants', 'what no endpoint subscribes to any more is counted');
my $was = unmatched();
ask("SELECT count(outbox.emit('only.$_', '{}')) FROM generate_series(1, 100)") foreach qw(a b c);
ok(wait_settled($node), 'each gets its own');
emit($node, 'nobody.wants', '{}');
ok(wait_sql($node, "SELECT unmatched > $was FROM outbox.status"), 'one more that nobody wants');
cmp_ok(unmatched() - $was, '<', 100, 'and what an endpoint of another worker wants is not among them');
ask("SELECT outbox.drop_endpoint('$_', discard => true)") foreach qw(a b c);
becomes_unmatched("only.$_", "$_, which was dropped, wants nothing more") foreach qw(a b c);
endpoint($node, $receiver, $_, "/ok/$_") foreach qw(a b c);
foreach my $n (1 .. 3)
{
	ask(to($_, "/ok/$_.of3.$n")) foreach qw(a b c);
	comes_at("/ok/$_.of3.$n", "$_ changes, with three workers") foreach qw(a b c);
	ask("SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE pid IS NOT NULL AND datname = 'postgres' LIMIT 1") if $n < 3;
}
ok(wait_settled($node), 'settled');
done_testing();
