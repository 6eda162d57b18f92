# To retry or discard one delivery reads its row, and not all of its endpoint.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "fsync = off\n");
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'crm', '/ok/crm');
my ($dead, $retrying, $discarded, $gone) = map { emit($node, 'crm.changed', '{}') } 1 .. 4;
endpoint_shows($node, 'crm', 'delivered = 4', 'four are delivered');
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('crm')");
$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)
SELECT endpoint_id, 1000 + n, gen_random_uuid(), CASE WHEN n % 2 = 0 THEN 'dead' ELSE 'retrying' END, 'max_attempts', 1, now()
FROM outbox.endpoint_settings, generate_series(1, 20000) n;
INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)
SELECT endpoint_id, seq, id, CASE WHEN id = '$retrying' THEN 'retrying' ELSE 'dead' END, 'max_attempts', 1, now()
FROM outbox.endpoint_settings, outbox.events;
DELETE FROM outbox.events WHERE id = '$gone';
SQL

foreach my $with ('without', 'with')
{
	$node->safe_psql('postgres', 'ANALYZE') if $with eq 'with';
	foreach my $call ("retry('crm', '$dead')", "retry('crm', '$retrying')", "discard('crm', '$discarded')", "retry('crm', '$gone')")
	{
		# Ten times, so that a plan for all values would have been taken.
		my ($found, $read) = split /\n/, $node->safe_psql('postgres', <<"SQL");
BEGIN;
SELECT sum(outbox.$call) FROM generate_series(1, 10);
SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'outbox.parked'::regclass;
ROLLBACK;
SQL
		is($found, 10, "$call finds it, $with statistics");
		cmp_ok($read, '<', 200, "and reads $read rows of 20,004");
	}
}
done_testing();
