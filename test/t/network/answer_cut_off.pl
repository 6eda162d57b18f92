# An answer that ends before its head does is none, wherever it is cut off.
# libcurl 8.23 passes on a part of a line that ends in a carriage return.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $whole = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

sub answered_by
{
	my ($name, $bytes) = @_;
	endpoint($node, $receiver, $name, '/raw?then=close&hex=' . unpack('H*', $bytes), 'max_attempts => 1');
	return;
}

answered_by("cut$_", substr($whole, 0, $_)) foreach 1 .. length($whole) - 1;
answered_by('whole', $whole);
answered_by('newlines', $whole =~ tr/\r//dr);
emit($node, 'a', '{}');
ok(wait_sql($node, 'SELECT bool_and(delivered + dead = 1) FROM outbox.stats'), 'each has ended');
is(ask("SELECT string_agg(endpoint, ' ' ORDER BY endpoint) FROM outbox.stats WHERE delivered = 1"), 'newlines whole', 'only whole heads are answers');
ok(wait_settled($node), 'settled');
is(ask("SELECT count(*) FILTER (WHERE status_code IS NULL AND error ~ '^the connection was closed before the answer') = count(*) - 2 FROM outbox.attempts"),
	't', 'the others are none');
$node->stop;
done_testing();
