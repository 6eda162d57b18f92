# No event is lost, invented or out of order while everything happens at random for MINUTES.
# The default is 3.
use strict;
use warnings;

use OutboxTest;

$ENV{MINUTES} ||= 3;
do "$top/test/t/crash/at_random.pl" or die $@ || $!;
