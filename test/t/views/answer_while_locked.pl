# While the log is locked, outbox.status, outbox.stats and outbox.metrics() answer.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/ok/a');

$node->safe_psql('postgres', "SELECT outbox.create_endpoint('a', '$url'); SELECT outbox.emit('a.b', '{}')");
$receiver->wait_delivered(1);
ok(wait_settled($node), 'settled');

# More than the waits for all locks together, each of which is waited for a few times
sub ask { return $node->safe_psql('postgres', "SET statement_timeout = '20s'; $_[0]") }

my $present = ask('SELECT log_bytes > 0, attempts_bytes > 0, parked_bytes > 0, oldest_retained_at < now(), scheduled, retention > interval \'0\' FROM outbox.status');
is($present, 't|t|t|t|0|t', 'without a lock, every figure is there');
my %locks = (
	'LOCK TABLE outbox.events' => [ '|t|t||0|t', '' ],
	'REINDEX INDEX outbox.events_0_seq_idx' => [ '|t|t||0|t', '' ],
	'LOCK TABLE outbox.attempt_log_0' => [ 't||t|t|0|t', 't' ],
	'LOCK TABLE outbox.kept_events' => [ 't|t||t|0|t', 't' ],
	'LOCK TABLE outbox.retention_here' => [ 't|t|t|t|0|', 't' ],
	'LOCK TABLE outbox.scheduled' => [ 't|t|t|t||t', 't' ],
	'LOCK TABLE outbox.positions' => [ 't|t|t|t|0|t', undef ]);

foreach my $lock (sort keys %locks)
{
	my ($status, $stats) = @{ $locks{$lock} };
	my $session = $node->background_psql('postgres', on_error_stop => 1);
	$session->query_safe("BEGIN; $lock");
	is(ask('SELECT log_bytes > 0, attempts_bytes > 0, parked_bytes > 0, oldest_retained_at < now(), scheduled, retention > interval \'0\', state FROM outbox.status'),
		"$status|running", "$lock: the status has what needs no locked table, and the state");
	is(ask('SELECT retained_bytes >= 0 FROM outbox.stats'), $stats, "$lock: the stats") if defined $stats;
	if ($lock !~ /positions|scheduled/)
	{
		is(ask("SELECT count(*) FILTER (WHERE name = 'outbox_state' AND value = 1), count(*) FILTER (WHERE value IS NULL) FROM outbox.metrics()"),
			'1|0', "$lock: the metrics");
	}
	$session->query_safe('ROLLBACK');
	$session->quit;
}

# A worker that goes round and cannot read does not know how many wait.
my $session = $node->background_psql('postgres', on_error_stop => 1);
$session->query_safe('BEGIN; LOCK TABLE outbox.events_2');
emit($node, 'a.b', '{}');
ok(wait_sql($node, 'SELECT NOT pending_exact FROM outbox.stats'), 'a number is not exact while the log cannot be read');
is(ask('SELECT state FROM outbox.status'), 'running', 'although the worker goes round');
$session->query_safe('ROLLBACK');
$session->quit;
ok(wait_sql($node, 'SELECT pending_exact AND pending = 0 AND delivered = 2 FROM outbox.stats'), 'and when it was read, it is again');

# A template database

$node->safe_psql('postgres', 'CREATE DATABASE d');
$node->safe_psql('d', 'CREATE EXTENSION outbox');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.workers WHERE datname = 'd'"), 'a worker');
$node->safe_psql('postgres', 'ALTER DATABASE d IS_TEMPLATE true');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE datname = 'd'");
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.workers WHERE datname = 'd' AND pid IS NOT NULL"), 'which ends');
like($node->safe_psql('d', 'SELECT state, reason FROM outbox.status'), qr/^no_worker\|no worker serves a template database/,
	'a template database says why it has no worker');

done_testing();
