# adopt() reads the log a few times, however many places 5,406 endpoints have stopped at.
# 400,000 events: the endpoints stand between two transactions each, then within one large one. Emits go on.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Receiver;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

alarm 3600;
my $events = $ENV{EVENTS} // 400_000;
my $endpoints = $ENV{ENDPOINTS} // 5406;
my $node = outbox_node('main');
watch_machine();
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/ok/one');

# Every other endpoint has a tenant, and 1 of 50 a filter.
ask(<<SQL);
SELECT count(outbox.create_endpoint('e' || n, '$url', topics => '{load.*}',
    tenant => CASE WHEN n % 2 = 0 THEN 't' || n % 1000 END,
    filter => CASE WHEN n % 50 = 0 THEN '\$.n > 5'::jsonpath END))
FROM generate_series(1, $endpoints) n;
SELECT count(outbox.pause_endpoint('e' || n)) FROM generate_series(1, $endpoints) n;
SQL
hold();

# Ten events a transaction, and one that is open for the first half of them.
my $long = $node->background_psql('postgres');
$long->query_safe("BEGIN; SELECT outbox.emit('load.long', '{}')");
load(1, $events / 20);
$long->query_safe("SELECT outbox.emit('load.long', '{}'); COMMIT");
$long->quit;
load($events / 20 + 1, $events / 10);
ask('UPDATE outbox.events SET epoch = (SELECT epoch FROM outbox.origins)');

# Each endpoint has read up to a place of its own.
ask(<<SQL);
INSERT INTO outbox.positions (piece, number, endpoint_id, generation, read_tick, read, read_seq_low, last_seq,
    delivered, failed_attempts, settled_at)
SELECT 0, 1000000 + s.endpoint_id, s.endpoint_id, s.generation, 1000000 + s.endpoint_id,
       (CASE WHEN t.xmin < t.xid THEN t.xmin ELSE t.xid END || ':' || t.xid || ':'
        || CASE WHEN t.xmin < t.xid AND t.seq < t.late THEN t.xmin::text ELSE '' END)::pg_snapshot, t.seq - 1, 0, 0, 0, now()
FROM outbox.endpoint_settings s
JOIN (SELECT x.xid::text::int8, x.seq, row_number() OVER (ORDER BY x.xid) AS n,
             (SELECT min(e.xid)::text::int8 FROM outbox.events e WHERE e.topic = 'load.long') AS xmin,
             (SELECT max(e.seq) FROM outbox.events e WHERE e.topic = 'load.long') AS late
      FROM (SELECT xid, min(seq) AS seq FROM outbox.events WHERE topic = 'load.one' GROUP BY xid) x) t
    ON t.n = s.endpoint_id * (SELECT count(*) FROM outbox.events WHERE topic = 'load.one') / 10 / ($endpoints + 1)
SQL
is(ask('SELECT count(DISTINCT p.read::text) FROM outbox.endpoint_positions p'), $endpoints, 'as many places as endpoints');
adopt('between transactions');
hold();
adopt('within one large transaction');
$node->stop;
done_testing();

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql, timeout => 3000);
}

sub load
{
	my ($from, $to) = @_;
	return ask(<<SQL);
DO \$\$ BEGIN
    FOR i IN $from .. $to LOOP
        PERFORM outbox.emit('load.one', jsonb_build_object('n', n), tenant => CASE WHEN n > 3 THEN 't' || (i * 10 + n) % 1000 END)
        FROM generate_series(1, 10) n;
        COMMIT;
    END LOOP;
END \$\$;
SQL
}

# Makes the log one that came from elsewhere.
sub hold
{
	ask('UPDATE outbox.origins SET system_identifier = 1 WHERE adopted_by IS NULL');
	ask('SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE pid IS NOT NULL');
	ok(wait_sql($node, "SELECT state = 'held' FROM outbox.status"), 'held');
	return;
}

sub rows_read
{
	return ask("SELECT pg_stat_force_next_flush(), sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_all_tables WHERE relname ~ '^events_[0-2]\$'") =~ s/^\|//r;
}

sub adopt
{
	my ($shape) = @_;
	my $log = ask('SELECT count(*) FROM outbox.events');
	my $before = rows_read();
	my $started = time;
	my $session = $node->background_psql('postgres', timeout => 3000);
	my @longest = (0, 0);
	my $emits = 0;

	$session->query_until(qr/asked/, "\\echo asked\nSELECT 'due ' || outbox.adopt();\n\\echo done\n");
	until ($session->{stdout} =~ /^done/m)
	{
		my $at = time;

		emit($node, 'load.one', '{}');
		$emits++;
		@longest = ($at, time) if time - $at > $longest[1] - $longest[0];
		$session->{run}->pump_nb;
	}
	my ($due) = $session->{stdout} =~ /^due (\d+)/m;
	my $seconds = time - $started;
	$session->quit;
	my $rows = rows_read() - $before;
	my $longest = $longest[1] - $longest[0] - stood_still(@longest);
	note(sprintf '%s: %.1f s, %d due, %.1f rows read for each of %d, longest of %d emits %.2f s', $shape, $seconds, $due, $rows / $log, $log, $emits, $longest);
	cmp_ok($rows, '<', 12 * $log, "$shape: the log is read a few times");
	cmp_ok($longest, '<', 5, "$shape: no emit waits for long");
	return;
}
