# While the parked rows of many endpoints are loaded in turns, other endpoints are served.
# auto_explain shows in which transaction a worker that starts reads them.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use OutboxTest::Explained;
use PostgreSQL::Test::Utils;
use Test::More;

# More than a quick machine loads in the time of a turn, and fewer than all keys that are read at once
my $many = 900;
my $node = outbox_node('main', conf => explained_conf() . "log_line_prefix = '%m [%p] %b %v: '\n");
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

# How many statements with these words each transaction had
sub statements
{
	my ($log, $words) = @_;
	my ($transaction, %n);

	foreach my $line (split /\n/, $log)
	{
		$transaction = $1 if $line =~ m{^\S+ \S+ \S+ \[\d+\] outbox worker.* (\d+/\d+): };
		$n{ $transaction // '' }++ if $line =~ /"Query Text": .*\Q$words\E/;
	}
	return values %n;
}

# A retry of each of many endpoints, and many keys of one whose heads have ended
ask("SELECT count(outbox.create_endpoint('e' || n, '" . $receiver->url('/ok/e') . "' || n, topics => '{none}')) FROM generate_series(1, $many) n");
endpoint($node, $receiver, 'keys', '/ok/keys', "topics => '{none}'");
ok(wait_sql($node, "SELECT sum(endpoints) = $many + 1 FROM outbox.workers"), 'all are there');
ask("SELECT count(outbox.emit('some.n', '{}', key => 'k' || n)) FROM generate_series(1, $many) n");
ask(<<'SQL');
INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, attempts, next_attempt_at, parked_at)
SELECT s.endpoint_id, e.seq, e.id, e.key, CASE s.name WHEN 'keys' THEN 'blocked' ELSE 'retrying' END, 0,
	CASE WHEN s.name <> 'keys' THEN now() END, now()
FROM outbox.endpoint_settings s JOIN outbox.events e ON s.name IN ('keys', 'e' || substr(e.key, 2))
SQL
log_plans($node, 1);
my $pid = worker_pid($node);
my $offset = -s $node->logfile;
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.parked)'), 'all are delivered');
log_plans($node, 0);
my $log = slurp_file($node->logfile, $offset);
my @retries = statements($log, 'w(seq)');
my @followers = statements($log, "AND status = 'blocked' ORDER BY seq LIMIT");
cmp_ok(max(0, @retries), '>', 0, 'retries were loaded');
cmp_ok(max(0, @followers), '>', 0, 'so were followers');
cmp_ok(max(0, @retries), '<', $many, 'of many endpoints in several transactions');
cmp_ok(max(0, @followers), '<', $many, 'and of many keys');
note(scalar(@retries) . ' and ' . scalar(@followers) . ' transactions, with at most ' . max(0, @retries) . ' and ' . max(0, @followers) . ' statements');
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');
$node->stop;
done_testing();
