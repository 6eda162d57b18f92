# Requests keep up with the commands that ask for them.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my ($endpoints, $each) = (100, 40);
my $all = $endpoints * $each;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $url = $receiver->url('/ok/e');

ask("SELECT count(outbox.create_endpoint('e' || n, '$url' || n, topics => '{none}')) FROM generate_series(1, $endpoints) n");
ask("SELECT count(outbox.emit('a', '{}')) FROM generate_series(1, $each)");
ask(park_as_dead("e.topic = 'a'"));
replace_worker($node);
ok(wait_sql($node, "SELECT sum(dead) = $all FROM outbox.stats"), 'dead letters of many endpoints');
ask('SELECT sum(outbox.retry(name)) FROM outbox.endpoints');
ok(wait_sql($node, "SELECT sum(delivered) = $all FROM outbox.stats"), 'all are tried again');

# Commands are carried out in the order of endpoints.
my $last = "/ok/e$endpoints";
my $before = 0;
foreach my $request ($receiver->requests)
{
	last if $request->{path} eq $last;
	$before++;
}
cmp_ok($before, '>=', $all / 8, "requests of the others before those of the last endpoint: $before");
$node->stop;
done_testing();
