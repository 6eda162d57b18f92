# A time that was written while the clock was ahead holds nothing up.
# It counts as now.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => <<'CONF');
outbox.retention = '2 s'
outbox.attempts_retention = '2 s'
outbox.dedup_window = '4 s'
CONF
my $receiver = OutboxTest::Receiver->new('main');

sub claim
{
	return ask("SELECT outbox.emit('a.b', '{}'::jsonb, dedup_key => 'k')");
}

endpoint($node, $receiver, 'all', '/ok/a');
my $first = claim();
$receiver->wait_delivered(1, id => $first);

# As a worker and an emit would have written them a year from now; without a
# worker, which would write them anew.
$node->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->start;
ask("UPDATE outbox.pieces SET since = since + interval '1 year'");
ask("INSERT INTO outbox.dedup VALUES ('a.b', 'k', '', '$first', now() + interval '1 year')"
	  . ' ON CONFLICT (topic, dedup_key, tenant) DO UPDATE SET created_at = EXCLUDED.created_at');
my $pieces = ask('SELECT log, piece FROM outbox.pieces ORDER BY log');
$node->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
$node->start;
is(claim(), $first, 'a key that was claimed in the future counts');
ok(wait_sql($node, "SELECT bool_and(since <= clock_timestamp()) FROM outbox.pieces"),
	'pieces that are in use since the future are so since now');
ok(wait_sql($node, "SELECT bool_and(p.piece <> b.piece) FROM outbox.pieces p JOIN (VALUES "
	  . join(', ', map { my ($log, $piece) = split /\|/; "('$log', $piece)" } split /\n/, $pieces)
	  . ') b (log, piece) USING (log)'),
	'and are emptied in turn');
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.dedup WHERE created_at > clock_timestamp()"),
	'the key counts from now on');
ok(wait_until(sub { claim() ne $first }, "the key is free when its window is over"), "the key is free when its window is over");
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
