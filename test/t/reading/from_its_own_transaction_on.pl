# An endpoint gets the events that its own transaction emitted, and none that were committed before.
# Its position is a snapshot that must not contain its own transaction.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/ok');
my @got;

sub in_one_transaction
{
	my ($name, @statements) = @_;
	$node->safe_psql('postgres', join(";\n", 'BEGIN', @statements));
	return;
}

# In an order that only the position can explain, with and without other
# transactions running
foreach my $round (1 .. 3)
{
	my $other = $node->background_psql('postgres');
	$other->query_safe('BEGIN');
	$other->query_safe('SELECT pg_current_xact_id()') if $round > 1;
	in_one_transaction(
		"round $round",
		"SELECT outbox.create_endpoint('e$round', '$url/$round')",
		"SELECT outbox.emit('a.b', '{\"n\": $round}'::jsonb)",
		'COMMIT');
	@got = $receiver->wait_for(1, path => "/ok/$round");
	is(JSON::PP::decode_json($got[0]{body})->{data}{n},
		$round, "round $round: the event of the same transaction arrives");
	$other->query_safe('COMMIT');
	$other->quit;
}

# The transaction had emitted and drawn its xid long before
in_one_transaction(
	'late',
	'SELECT pg_current_xact_id()',
	'SAVEPOINT a',
	"SELECT outbox.create_endpoint('late', '$url/late')",
	'RELEASE a',
	'SAVEPOINT b',
	"SELECT outbox.emit('a.late', '{}'::jsonb)",
	'RELEASE b',
	'COMMIT');
$receiver->wait_delivered(1, path => '/ok/late');
pass('in subtransactions as well');

# Rolled back together
in_one_transaction(
	'never',
	"SELECT outbox.create_endpoint('never', '$url/never')",
	"SELECT outbox.emit('a.never', '{}'::jsonb)",
	'ROLLBACK');
my $id = emit($node, 'a.after', '{}');
$receiver->wait_delivered(1, path => '/ok/1', id => $id);
is(scalar(() = $receiver->requests(path => '/ok/never')),
	0, 'rolled back: no endpoint');
is( scalar(grep { $_->{headers}{'outbox-topic'} eq 'a.never' } $receiver->requests),
	0, 'and no event');

# What was committed before is not for the new endpoint, unless it begins at 'beginning'
emit($node, 'a.before', '{}');
$receiver->wait_delivered(1, path => '/ok/1');
endpoint($node, $receiver, 'now', '/ok/now');
endpoint($node, $receiver, 'all', '/ok/all', "start_at => 'beginning'");
$id = emit($node, 'a.last', '{}');
$receiver->wait_delivered(1, path => '/ok/now', id => $id);
$receiver->wait_delivered(1, path => '/ok/all', id => $id);
is(scalar(() = $receiver->requests(path => '/ok/now')), 1, "'now' gets what comes");
wait_settled($node);
is( scalar(() = $receiver->delivered(path => '/ok/all')),
	$node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'),
	"'beginning' gets all");

# Many events are being read, for filters that let nothing through, and only a wake-up
# at commit wakes the worker.  An event that comes meanwhile is delivered, and not to
# an endpoint that is created after it.
$node->append_conf('postgresql.conf', "outbox.wakeup_interval = '60 s'");
$node->reload;
ok(wait_sql($node, "SELECT current_setting('outbox.wakeup_interval') = '1min'"), 'only a wake-up at commit wakes the worker');
$node->safe_psql('postgres', 'SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints');
my $filter = $receiver->url('/ok/filter');
$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('filter' || n, '$filter', topics => '{much.*}', filter => '\$.n == -1') FROM generate_series(1, 20) n
SQL
endpoint($node, $receiver, 'first', '/ok/first', "topics => '{much.first,later.*}'");
foreach my $round (1 .. 2)
{
	in_one_transaction(
		'much',
		"SELECT outbox.emit('much.first', '{}'::jsonb)",
		"INSERT INTO outbox.events (topic, payload) SELECT 'much.n', jsonb_build_object('n', n) FROM generate_series(1, 30000) n",
		'COMMIT');
	$receiver->wait_delivered($round, path => '/ok/first', topic => 'much.first');
	$id = emit($node, 'later.one', '{}');
	if ($round == 1)
	{
		my ($at) = $receiver->wait_delivered(1, path => '/ok/first', id => $id);
		cmp_ok($at->{wall} - $node->safe_psql('postgres', "SELECT extract(epoch FROM created_at) FROM outbox.events WHERE id = '$id'"),
			'<', 30, 'an event that is emitted while many are read has woken the worker');
		next;
	}
	endpoint($node, $receiver, 'later', '/ok/later', "topics => '{later.*}'");
	$receiver->wait_delivered(1, path => '/ok/later', id => emit($node, 'later.two', '{}'));
	is(scalar(() = $receiver->requests(path => '/ok/later', id => $id)), 0, 'an endpoint gets nothing from before it was created');
	$receiver->wait_delivered(1, path => '/ok/first', id => $id);
}

$node->stop;
done_testing();
