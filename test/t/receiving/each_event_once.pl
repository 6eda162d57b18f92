# The receivers of doc/receiving.md in Python, Node.js and shell do each event once.
# Also when its work fails at first; and they take nothing that is not signed.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Samples qw(missing sample try_sample);
use Test::More;

my $node = outbox_node('receivers');

foreach my $language (qw(bash python js))
{
	my $missing = missing($language);

	if ($missing) { diag("NOT TESTED: the receiver in $language: $missing") }
	else { try_sample($node, $language) }
}

# Express in place of Node's own server
SKIP:
{
	my $missing = missing('js');
	$missing ||= 'express is not installed' unless -d "$top/test/conformance/node_modules/express";
	if ($missing)
	{
		diag("NOT TESTED: the receiver with Express: $missing");
		skip $missing, 1;
	}
	my $express = sample('js express');
	my $code = sample('js');
	ok($code =~ s/^createServer.*//ms && $express =~ s/^(import .*)\n//, 'Express takes the place of the server');
	try_sample($node, 'js', name => 'express', code => "$1\n$code$express");
}

$node->stop;
done_testing();
