# The receivers of doc/receiving.md in Go, Java, Ruby, PHP and Rust do each event once.
# "make clients" fetches what this needs, and runs it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Samples qw(missing try_sample);
use Test::More;

plan skip_all => 'takes what other registries have: "make clients" runs it'
  unless $ENV{OUTBOX_TEST_CLIENTS};

my $node = outbox_node('receivers');
my $tried = 0;

foreach my $language (qw(go java ruby php rust))
{
	my $missing = missing($language);

	if ($missing)
	{
		diag("NOT TESTED: the receiver in $language: $missing");
		next;
	}
	try_sample($node, $language);
	$tried++;
}
cmp_ok($tried, '>', 0, 'there is one that can be tried');

$node->stop;
done_testing();
