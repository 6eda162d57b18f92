# However many deliveries of one endpoint fail at once, the worker writes a few of their rows at a time.
# So the other endpoints do not wait for it, and a crash between two parts loses nothing.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => "restart_after_crash = on\n");
my $receiver = OutboxTest::Receiver->new('main');
my $events = 1000;

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Each transaction that wrote rows has a number of its own.
sub most_of_one_transaction
{
	return ask('SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.parked GROUP BY xmin::text) x');
}

# Emits events, of 'keys' keys, and returns the statement that shows whether all have failed.
sub all_fail
{
	my ($name, $key, $more) = @_;

	$receiver->control(path => "/ok/$name", behave => '/status/500');
	endpoint($node, $receiver, $name, "/ok/$name", "topics => '{$name.*}', backoff_base => '10 min', batch_size => $events, batch_wait => '10 s' $more");
	ask("SELECT count(outbox.emit('$name.n', jsonb_build_object('n', n), key => $key)) FROM generate_series(1, $events) n");
	return "SELECT retrying + blocked = $events FROM outbox.stats WHERE endpoint = '$name'";
}

ok(wait_sql($node, all_fail('batch', 'NULL', '')), 'all deliveries of a batch wait for a retry');
cmp_ok(most_of_one_transaction(), '<=', 60, 'one transaction wrote a few of their rows');
is(ask("SELECT count(*) FROM outbox.parked"), $events, 'and each was written once');
is(scalar($receiver->requests(path => '/ok/batch')), 1, 'after one request');

# The followers of a failed delivery are rows, too.  The server is killed while they are written.
my $done = all_fail('keys', q('k' || n % 10), '');
ok(wait_sql($node, "SELECT count(*) BETWEEN 1 AND 900 FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'keys'"), 'some of the rows are written');
my $worker = worker_pid($node);
kill 'KILL', $worker;
ok(wait_sql($node, "SELECT state = 'running' AND pid <> $worker FROM outbox.workers"), 'the worker was killed, and there is another one');
ok(wait_sql($node, $done), 'all have failed, also those that had no row');
is(ask("SELECT count(DISTINCT seq) || ' ' || count(*) FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'keys'"), "$events $events", 'each has a row');
$receiver->control(path => '/ok/keys', behave => '/ok');
ask("SELECT outbox.retry('keys')");
ok(wait_sql($node, "SELECT delivered = $events AND pending + retrying + blocked + dead = 0 FROM outbox.stats WHERE endpoint = 'keys'"), 'all are delivered');
my (%last, @wrong);
foreach my $n (map { $_->{n} } $receiver->events(path => '/ok/keys', delivered => 1))
{
	push @wrong, $n if $n <= ($last{ $n % 10 } // 0);
	$last{ $n % 10 } = $n;
}
is("@wrong", '', 'in the order of each key');
is(join(' ', sort { $a <=> $b } values %last), join(' ', $events - 9 .. $events), 'and none is missing at the end');
$node->stop;
done_testing();
