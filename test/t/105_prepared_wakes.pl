# COMMIT PREPARED wakes what the prepared transaction would have woken, and nothing else.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing but the wake at commit makes the worker look, for as long as this takes.
my $node = outbox_node('main', conf => "max_prepared_transactions = 10\noutbox.wakeup_interval = 60000\n");
my $receiver = OutboxTest::Receiver->new('main');

sub ask { return $node->safe_psql('postgres', $_[0]) }

sub ticks { return ask('SELECT count(*) FROM outbox.ticks') }

endpoint($node, $receiver, 'all', '/ok/a');
$receiver->wait_delivered(1, id => emit($node, 'plain.one', '{}'));
ask('CREATE TABLE unrelated (n int)');

# The rows that an endpoint that is read anew leaves behind
my $before = ticks();
ask(join "\n", map { "SELECT outbox.alter_endpoint('all', max_in_flight => " . (10 + $_) . ');' } 1 .. 5);
ok(wait_until(sub { ticks() > $before }, 'it is read anew'), 'a change of settings writes ticks');

# 300 transactions that concern nothing of outbox
$before = ticks();
ask(join "\n",
	map { "BEGIN; INSERT INTO unrelated VALUES ($_); PREPARE TRANSACTION 'u$_'; COMMIT PREPARED 'u$_';" } 1 .. 300);
is(ask('SELECT count(*) FROM unrelated'), 300, '300 unrelated transactions are committed');
$receiver->wait_delivered(1, id => emit($node, 'plain.two', '{}'));
cmp_ok(ticks() - $before, '<', 10, 'and write no ticks');

# What it says about an event, an endpoint and a time
my $id = ask("BEGIN; SELECT outbox.emit('prepared.one', '{}'); PREPARE TRANSACTION 'event'");
$before = ticks();
ask("COMMIT PREPARED 'event'");
$receiver->wait_delivered(1, id => $id);
pass('an event: delivered at once');
cmp_ok(ticks() - $before, '<', 3, 'and nothing is read anew');

$id = ask("BEGIN; SELECT outbox.emit('prepared.two', '{}', deliver_at => clock_timestamp() + interval '1 s'); PREPARE TRANSACTION 'later'");
ask("COMMIT PREPARED 'later'");
$receiver->wait_delivered(1, id => $id);
pass('a scheduled event: delivered when it is due');

my $url = $receiver->url('/ok/b');
$id = ask("BEGIN; SELECT outbox.create_endpoint('b', '$url') \\g /dev/null\nSELECT outbox.emit('prepared.three', '{}'); PREPARE TRANSACTION 'endpoint'");
ask("COMMIT PREPARED 'endpoint'");
$receiver->wait_delivered(1, id => $id, path => '/ok/b');
pass('an endpoint: takes effect at once');

# A name that is used again
ask("BEGIN; SELECT outbox.emit('prepared.no', '{}'); PREPARE TRANSACTION 'again'; ROLLBACK PREPARED 'again'");
$before = ticks();
ask(join "\n", map { "BEGIN; INSERT INTO unrelated VALUES (0); PREPARE TRANSACTION 'again'; COMMIT PREPARED 'again';" } 1 .. 20);
cmp_ok(ticks() - $before, '<', 10, 'a name that was used before and rolled back');

# A name that is taken: the second one fails, and the first one is as it was
$id = ask("BEGIN; SELECT outbox.emit('prepared.four', '{}'); PREPARE TRANSACTION 'taken'");
my ($rc) = $node->psql('postgres', "BEGIN; INSERT INTO unrelated VALUES (0); PREPARE TRANSACTION 'taken'");
isnt($rc, 0, 'a name that is taken is refused');
ask("COMMIT PREPARED 'taken'");
$receiver->wait_delivered(1, id => $id);
pass('and the first one is delivered at once');

# A transaction that cannot be prepared leaves no note: more of them than there is room for
foreach my $n (1 .. 30)
{
	$node->psql('postgres', "BEGIN; CREATE TEMP TABLE t$n (n int); INSERT INTO t$n VALUES (1); PREPARE TRANSACTION 'bad$n'");
}
$before = ticks();
ask(join "\n", map { "BEGIN; INSERT INTO unrelated VALUES (0); PREPARE TRANSACTION 'good$_'; COMMIT PREPARED 'good$_';" } 1 .. 20);
cmp_ok(ticks() - $before, '<', 10, 'transactions that could not be prepared are forgotten');

# What was prepared before a restart may concern anything
$id = ask("BEGIN; SELECT outbox.emit('prepared.five', '{}'); PREPARE TRANSACTION 'old'");
$node->restart;
$receiver->wait_delivered(1, id => emit($node, 'plain.three', '{}'));
ask("COMMIT PREPARED 'old'");
$receiver->wait_delivered(1, id => $id);
pass('prepared before a restart: delivered at once');

$node->stop;
done_testing();
