# Endpoints that one transaction makes or changes are read in parts.
use strict;
use warnings;

use OutboxTest;
use List::Util qw(max sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $made = 1600;
my $node = outbox_node('main', conf => "log_min_messages = debug1\n");
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'first', '/ok/first', "topics => '{a.*}'");
emit($node, 'a.b', '{}');
ok($receiver->wait_delivered(1, path => '/ok/first'), 'the first endpoint gets its event');
my $before = () = settings_read($node);
my $unmatched = ask('SELECT unmatched FROM outbox.status');
my $url = $receiver->url('/ok/new');
ask("BEGIN; SELECT outbox.emit('own', '{}'); SELECT count(outbox.create_endpoint('e' || n, '$url', topics => ARRAY['own', 'new.' || n])) FROM generate_series(1, $made) n; COMMIT");

# Each transaction comes while some of the new endpoints are read
ask("SELECT outbox.emit('new.' || n, '{}') FROM generate_series($_, $made, 10) n") foreach 1 .. 10;
ask("SELECT count(outbox.drop_endpoint('e' || n, discard => true)) FROM generate_series(1, $made, 100) n");
ok(wait_sql($node, 'SELECT endpoints = ' . ($made * 0.99 + 1) . ' FROM outbox.workers'), 'all are read');
my $kept = $made * 0.99;
ok(wait_sql($node, "SELECT count(*) = $kept FROM outbox.stats WHERE endpoint LIKE 'e%' AND delivered = 2"), 'each gets its event, and that of the transaction that made it');
is(ask('SELECT sum(pending + processing + retrying + blocked + dead) FROM outbox.stats'), 0, 'and nothing waits');
is(ask('SELECT unmatched FROM outbox.status'), $unmatched, 'no event counts as unmatched');

sub in_parts
{
	my ($what) = @_;
	my @steps;

	# A view shows settings that the worker has yet to read.
	ok((wait_until { @steps = settings_read($node); splice @steps, 0, $before; sum0(@steps) >= $kept } "$what: all are read"), "$what: the steps were counted");
	$before += @steps;
	cmp_ok(max(@steps), '<=', 500, "$what: no step reads all of them");
	return;
}

in_parts('made');

# One statement changes them, or has them loaded again.  An event that follows at once is judged by the new settings.
my $got = 2;

sub changed
{
	my ($what, $sql, $topic) = @_;
	ask("SELECT count($sql) FROM (SELECT name, substr(name, 2) AS n FROM outbox.endpoints WHERE name LIKE 'e%') e");
	ask("SELECT count(outbox.emit('$topic' || n, '{}')) FROM generate_series(1, $made) n WHERE n % 100 <> 1");
	$got++;
	ok(wait_sql($node, "SELECT count(*) = $kept FROM outbox.stats WHERE endpoint LIKE 'e%' AND delivered = $got"), "$what: each gets its event");
	in_parts($what);
	return;
}

changed('altered', "outbox.alter_endpoint(name, topics => ARRAY['own', 'changed.' || n])", 'changed.');
changed('loaded again', "outbox.alter_endpoint(name, ordering => 'strict')", 'changed.');
changed('moved', "outbox.seek_endpoint(name, 'now')", 'changed.');
ask("SELECT count(outbox.pause_endpoint(name)) FROM outbox.endpoints WHERE name LIKE 'e%'");
ok(wait_sql($node, "SELECT count(*) = $kept FROM outbox.stats WHERE state = 'paused'"), 'all are paused');
in_parts('paused');
changed('resumed', 'outbox.resume_endpoint(name)', 'changed.');
is(ask('SELECT unmatched FROM outbox.status'), $unmatched, 'still no event counts as unmatched');

# A worker that starts reads all
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
emit($node, 'changed.2', '{}');
ok(wait_sql($node, "SELECT delivered = $got + 1 FROM outbox.stats WHERE endpoint = 'e2'"), 'a new worker has them, too');
$node->stop;
done_testing();
