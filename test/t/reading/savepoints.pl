# Events that are rolled back to a savepoint are not sent, and the rest of the transaction is.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/a');

sub delivered_numbers
{
	my ($topic) = @_;
	return map { JSON::PP::decode_json($_->{body})->{data}{n} }
	  grep { $_->{headers}{'outbox-topic'} eq $topic } $receiver->delivered;
}

# Savepoints
$node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT outbox.emit('save.point', '{"n": 1}'::jsonb, key => 'k');
SAVEPOINT a;
SELECT outbox.emit('save.point', '{"n": 2}'::jsonb, key => 'k');
ROLLBACK TO a;
SELECT outbox.emit('save.point', '{"n": 3}'::jsonb, key => 'k');
SAVEPOINT b;
SELECT outbox.emit('save.point', '{"n": 4}'::jsonb, key => 'k');
RELEASE b;
COMMIT;
SQL
wait_settled($node);
is_deeply([ delivered_numbers('save.point') ], [ 1, 3, 4 ], 'savepoints');

# Everything of a transaction rolled back but the transaction itself
$node->safe_psql('postgres', <<'SQL');
BEGIN;
SAVEPOINT a;
SELECT outbox.emit('save.none', '{"n": 1}'::jsonb);
ROLLBACK TO a;
COMMIT;
SQL

# The only event is in a subtransaction: the commit must wake the worker
my $id = $node->safe_psql('postgres', <<'SQL');
BEGIN;
SAVEPOINT a;
SELECT outbox.emit('save.only', '{"n": 1}'::jsonb);
RELEASE a;
COMMIT;
SQL
$receiver->wait_delivered(1, id => $id);
is_deeply([ delivered_numbers('save.none') ], [], 'nothing of the rolled back one');

# Exception blocks
$node->safe_psql('postgres', <<'SQL');
DO $$
BEGIN
	FOR n IN 1 .. 200 LOOP
		BEGIN
			PERFORM outbox.emit('save.block', jsonb_build_object('n', n), key => 'k');
			IF n % 3 = 0 THEN
				RAISE EXCEPTION 'no';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SQL
wait_settled($node);
is_deeply(
	[ delivered_numbers('save.block') ],
	[ grep { $_ % 3 } 1 .. 200 ],
	'exception blocks, in order');

# More subtransactions than PostgreSQL keeps in shared memory (64), half of them
# rolled back, while another snapshot is taken in the middle
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN');
$session->query_safe(<<'SQL');
DO $$
BEGIN
	FOR n IN 1 .. 10000 LOOP
		BEGIN
			PERFORM outbox.emit('save.many', jsonb_build_object('n', n), key => 'k' || n % 50);
			IF n % 2 = 0 THEN
				RAISE EXCEPTION 'no';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SQL
$receiver->wait_delivered(1, id => emit($node, 'save.between', '{}'));
is_deeply([ delivered_numbers('save.many') ], [], 'nothing before the commit');
$session->query_safe('COMMIT');
wait_settled($node);
is_deeply(
	[ sort { $a <=> $b } delivered_numbers('save.many') ],
	[ grep { $_ % 2 } 1 .. 10000 ],
	'ten thousand subtransactions');
$session->quit;

$node->stop;
done_testing();
