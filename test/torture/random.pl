# The random test for MINUTES (default 3).
use strict;
use warnings;

use OutboxTest;

$ENV{MINUTES} ||= 3;
do "$top/test/t/004_random.pl" or die $@ || $!;
