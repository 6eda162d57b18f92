# Every count of deliveries agrees with what receivers saw, whatever is done to them.
# This takes some seconds, or STEPS in make torture; SEED repeats the decisions.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use IPC::Run ();
use OutboxTest;
use Test::More;

my $seed = $ENV{SEED} || int time;
my $steps = $ENV{STEPS} || 600;
alarm $steps + 600;

diag("SEED=$seed");
foreach my $kills (0, 1)
{
	my $node = outbox_node("main$kills", conf => "outbox.settle_interval = '10 ms'\n");
	my $receiver = OutboxTest::Receiver->new("main$kills");
	my @arguments = ('--socket', $node->host, '--port', $node->port, '--receiver', $receiver->url(''), '--journal', $receiver->{journal});
	my @command = ('python3', "$top/test/tools/counts.py", @arguments, '--steps', $steps, '--seed', $seed, $kills ? '--kills' : ());
	my ($out, $err);
	ok(IPC::Run::run(\@command, '>', \$out, '2>', \$err), $kills ? 'while workers end' : 'and figures') or diag($err);
	$node->stop;
}
done_testing();
