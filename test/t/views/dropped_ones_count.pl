# Each request of an endpoint that is dropped counts in the totals, and is in outbox.attempts.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.workers_per_database = 2\n");
my $receiver = OutboxTest::Receiver->new('main');
my $requests = 0;    # one for each event of a batch

sub total
{
	my ($names) = @_;
	return "SELECT sum(value)::int FROM outbox.metrics() WHERE name IN ($names)";
}

sub all_count
{
	my ($case) = @_;
	ok(wait_sql($node, total("'outbox_delivered_total', 'outbox_failed_attempts_total'"), $requests), "$case: counted");
	is(ask('SELECT count(*) FROM outbox.attempts'), $requests, "$case: in outbox.attempts");
	return;
}

# An endpoint whose requests wait for their answers
sub held
{
	my ($name, $more, $emit, $n) = @_;
	endpoint($node, $receiver, $name, "/hold/$name", "topics => '{$name}'" . ($more // ''));
	ask("SELECT count(outbox.emit('$name', '{}'" . ($emit // '') . ')) FROM generate_series(1, ' . ($n // 1) . ')');
	$receiver->wait_events($n // 1, path => "/hold/$name");
	$requests += $n // 1;
	return;
}

# No answer comes
my $drop = "SELECT outbox.drop_endpoint('NAME', discard => true)";
foreach (
	[ 'one', $drop ],
	[ 'batch', $drop, ", batch_size => 3, ordering => 'none'", undef, 3 ],
	[ 'many', $drop, ", ordering => 'none'", undef, 20 ],
	[ 'forgotten', "SELECT outbox.forget('acme')", ", tenant => 'acme'", ", tenant => 'acme'" ],
	[ 'remade', "BEGIN; $drop; SELECT outbox.create_endpoint('remade', 'http://127.0.0.1:1/', topics => '{none}'); COMMIT" ])
{
	my ($name, $sql, @more) = @$_;
	held($name, @more);
	ask($sql =~ s/NAME/$name/r);
	all_count($name);
}
is(stat_of($node, 'remade', 'delivered + failed_attempts'), '0', 'and not for another endpoint of that name');

# Settings of all endpoints are read when workers begin to share them
held($_) foreach qw(x y z);
ask('ALTER SYSTEM SET outbox.workers_per_database = 1');
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name IN ('x', 'y', 'z')");
ask('SELECT pg_reload_conf()');
all_count('while endpoints move');

# An answer comes in time, if the machine is not too slow
my $delivered = 0;
foreach my $try (1 .. 20)
{
	held("answered$try");
	ask("SELECT outbox.drop_endpoint('answered$try', discard => true)");
	$receiver->control(path => "/hold/answered$try", behave => '/ok');
	all_count("try $try");
	last if $delivered = ask(total("'outbox_delivered_total'"));
}
is($delivered, 1, 'a late answer counts as delivered');

held('kept');
ask("BEGIN; SELECT outbox.drop_endpoint('kept', discard => true); ROLLBACK");
$receiver->control(path => '/hold/kept', behave => '/ok');
all_count('a drop that is rolled back');
is(stat_of($node, 'kept', 'delivered'), '1', 'is none');

done_testing();
