# The worker reads only by indexes that are valid and whose order no library can change.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

is(ask(<<'SQL'), '', 'text in an index is ordered by its bytes');
SELECT string_agg(i.indexrelid::regclass || ' ' || c.collname, E'\n' ORDER BY i.indexrelid::regclass::text)
FROM pg_index i JOIN pg_class t ON t.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indcollation) u(oid) JOIN pg_collation c ON c.oid = u.oid
WHERE t.relnamespace = 'outbox'::regnamespace AND c.collname <> 'C'
SQL

# An index that is not valid lacks events, and a reader that uses it would take them
# for read.  Which piece it belongs to does not matter.
endpoint($node, $receiver, 'all', '/ok/all');
$receiver->wait_delivered(1, id => emit($node, 'a.b', '{}'));
foreach my $index (qw(events_0_seq_idx events_2_xid_seq_idx))
{
	# The second is looked at when a transaction was open at the tick before.
	my $late = $node->background_psql('postgres');
	my $from = -s $node->logfile;

	$late->query_safe("BEGIN; SELECT outbox.emit('a.late', '{}')");
	$receiver->wait_delivered(1, id => emit($node, 'a.b', '{}'));
	ask("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.$index'::regclass");
	$late->query_safe('COMMIT');
	$late->quit;
	my $id = emit($node, 'a.b', '{}');
	ok($node->wait_for_log(qr/WARNING:.*index "outbox.$index" is not valid/, $from), "$index: a warning says so");
	is(scalar($receiver->delivered(id => $id)), 0, "$index: nothing is read past it");
	ask("UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'outbox.$index'::regclass");
	$node->reload;
	$receiver->wait_delivered(1, id => $id);
	pass("$index: valid again, delivery goes on");
}
$node->stop;
done_testing();
