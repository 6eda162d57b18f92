# Each request that a receiver saw is in outbox.attempts, also if it was broken off and sent again.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.workers_per_database = 2\n");
my $receiver = OutboxTest::Receiver->new('main');

# An endpoint whose requests wait for their answers
sub held
{
	my ($name, $n, $more, $emit) = @_;
	endpoint($node, $receiver, $name, "/hold/$name", "topics => '{$name}', timeout => '5 min'" . ($more // ''));
	ask("SELECT count(outbox.emit('$name', '{}'" . ($emit // '') . ")) FROM generate_series(1, $n)");
	return $receiver->wait_events($n, path => "/hold/$name");
}

# The requests come once more, are answered, and each has a row.
sub all_have_rows
{
	my ($name, $n, $again, $why) = @_;

	my ($event) = $receiver->wait_events($n + $again, path => "/hold/$name");
	is(ask("SELECT outbox.delivery_request('$name', '$event->{id}') ->> 'as'"), 'next', "$name: one waits for its next request") if $name eq 'seek';
	$receiver->control(path => "/hold/$name", behave => '/ok');
	ok(wait_sql($node, "SELECT delivered = $again FROM outbox.stats WHERE endpoint = '$name'"), "$name: delivered");
	my $seen = $receiver->events(path => "/hold/$name");
	ok(wait_sql($node, "SELECT count(*) FROM outbox.attempts WHERE endpoint = '$name'", $seen), "$name: each is in outbox.attempts");
	is(ask("SELECT DISTINCT error, attempt FROM outbox.attempts WHERE endpoint = '$name' AND error <> 'forgotten'"), "$why before an answer came|1", "$name: with the reason");
	is(stat_of($node, $name, 'failed_attempts'), 0, "$name: its receiver has not failed");
	return;
}

my $changed = 'the endpoint was changed or moved';
my $ordering = "SELECT outbox.alter_endpoint('NAME', ordering => 'key')";
foreach (
	[ 'seek', 1, "SELECT outbox.seek_endpoint('NAME', 'beginning')" ],
	[ 'altered', 5, $ordering, ", ordering => 'none'" ],
	[ 'batch', 3, $ordering, ", ordering => 'none', batch_size => 3" ])
{
	my ($name, $n, $sql, $more) = @$_;
	held($name, $n, $more);
	ask($sql =~ s/NAME/$name/r);
	all_have_rows($name, $n, $n, $changed);
}

# An endpoint without a tenant has events of one that is forgotten.
held('archive', 2);
ask("SELECT outbox.emit('archive', '{}', tenant => 'acme')");
$receiver->wait_events(3, path => '/hold/archive');
ask("SELECT outbox.forget('acme')");
all_have_rows('archive', 3, 2, $changed);

# Some endpoints go to another worker, and all to another process.
my @names = map { "moved$_" } 1 .. 8;
held($_, 1) foreach @names;
ask('ALTER SYSTEM SET outbox.workers_per_database = 1');
$node->reload;
wait_until { grep { $receiver->events(path => "/hold/$_") > 1 } @names } 'some have moved';
ok(wait_sql($node, "SELECT count(*) FROM outbox.workers WHERE pid IS NOT NULL", 1), 'one worker is left');
foreach my $name (@names)
{
	next if $receiver->events(path => "/hold/$name") == 1;
	all_have_rows($name, 1, 1, $changed);
}
held('ended', 5, ", ordering => 'none'");
held('batch.ended', 3, ', batch_size => 3');
$node->restart;
all_have_rows('ended', 5, 5, 'the worker ended');
all_have_rows('batch.ended', 3, 3, 'the worker ended');

$node->stop;
done_testing();
