# Requests that were started do not wait while a large payload of another endpoint is prepared.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => "outbox.max_payload_size = '64MB'\noutbox.worker_memory = '1GB'\n");
my $receiver = OutboxTest::Receiver->new('main');
my @names = qw(a large b);
my ($delivered, $first, $early) = (0, 0, 0);

sub emit_all
{
	my ($payload) = @_;
	$node->safe_psql('postgres', join ' ', 'BEGIN;',
		(map { "SELECT outbox.emit('$_', " . ($_ eq 'large' ? $payload : "'{}'") . ');' } @names), 'COMMIT');
	$delivered += @names;
	return wait_sql($node, "SELECT sum(delivered) = $delivered FROM outbox.stats");
}

sub started
{
	my ($name) = @_;
	return $node->safe_psql('postgres', "SELECT extract(epoch FROM max(started_at)) FROM outbox.attempts WHERE endpoint = '$name'");
}

endpoint($node, $receiver, $_, "/ok/$_", "topics => '{$_}'") foreach @names;
ok(emit_all("'{}'"), 'all have a connection');

# Sometimes the large one is prepared first.  One that connects is begun alone, so the first rounds do not count.
foreach my $round (1 .. 12)
{
	ok(emit_all("jsonb_build_object('x', repeat('x', 40000000))"), "round $round");
	my $began = started('large');
	foreach my $name ($round > 2 ? qw(a b) : ())
	{
		next if started($name) >= $began;
		$first++;
		$early++ if ($receiver->requests(path => "/ok/$name"))[-1]{wall} < $began;
	}
	last if $early;
}
cmp_ok($first, '>', 0, 'a small one was started before the large one was prepared');
cmp_ok($early, '>', 0, 'and arrived before that one began');
done_testing();
