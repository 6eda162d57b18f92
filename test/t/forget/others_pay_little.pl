# Calls of forget() that are complete, and commands of others, are not read again and again.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $many = 5000;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub read_of { return ask("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = '$_[0]'") }

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{order.*}'");
endpoint($node, $receiver, 'z', '/ok/z', "topics => '{none}'");
$receiver->wait_delivered(1, id => emit($node, 'order.a', '{}', "tenant => 'acme'"));

# With each change of settings, the worker reads which calls are not complete.
ask('INSERT INTO outbox.forgotten (tenant, snapshot, upto, requested_at, endpoints, complete_at)'
	  . " SELECT 't' || n, pg_current_snapshot(), 0, now(), 0, now() FROM generate_series(1, $many) n");
my $scans = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname = 'forgotten'";
my $before = read_of('forgotten');
foreach my $n (1 .. 5)
{
	my $counted = ask($scans);
	ask("SELECT outbox.alter_endpoint('z', max_in_flight => $n)");
	ok(wait_sql($node, "SELECT ($scans) > $counted FROM outbox.emit('order.a', '{}')"), "change $n is read");
}
cmp_ok(read_of('forgotten') - $before, '<', $many, 'complete calls are not read with each change');

# A call waits for a command, while many other commands wait
foreach my $waits ([ 'a', 'retry', $many ], [ 'z', 'forget', 1 ])
{
	my ($name, $action, $n) = @$waits;
	ask("INSERT INTO outbox.commands (endpoint_id, action, seq, retry_at) SELECT endpoint_id, '$action', n, now() + interval '1 day'"
		  . " FROM outbox.endpoint_settings, generate_series(1, $n) n WHERE name = '$name'");
}
ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, "SELECT events = 1 FROM outbox.forget_progress WHERE tenant = 'acme'"), 'an event is forgotten');
$before = read_of('commands');
my $from = time;
while (time < $from + 4)
{
	$receiver->wait_delivered(1, id => emit($node, 'order.a', '{}'));
}
is(ask("SELECT complete_at FROM outbox.forget_progress WHERE tenant = 'acme'"), '', 'it waits for the command');
cmp_ok(read_of('commands') - $before, '<', 5 * $many, 'the others are not read each time');
ask("DELETE FROM outbox.commands WHERE action = 'forget'");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'acme'"), 'then it is complete');
$node->stop;
done_testing();
