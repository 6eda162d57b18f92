# No event is lost, invented or out of order while everything happens at random.
# This takes some seconds, or MINUTES in make torture: see
# test/lib/OutboxTest/Storm.pm.  SEED repeats the decisions.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Storm;
use Test::More;

my $seconds = $ENV{MINUTES} ? $ENV{MINUTES} * 60 : 10;
alarm $seconds * 2 + 300;

my $storm = OutboxTest::Storm->new(seed => $ENV{SEED} || int time);
$storm->rage($seconds, mixed => '', rate => 250, sessions => 4, keys => 5);
diag(join ', ', map { "$storm->{done}{$_} x $_" } sort keys %{ $storm->{done} });
diag(join ', ', map { "$storm->{faults}{$_} x $_" } sort keys %{ $storm->{faults} });
$storm->node->stop;
done_testing();
1;
