# Each event reaches the endpoints that a model says, in the course of STEPS random changes.
# The default is 20,000.
use strict;
use warnings;

use OutboxTest;

$ENV{STEPS} ||= 20_000;
do "$top/test/t/tenants/as_a_model_says.pl" or die $@ || $!;
