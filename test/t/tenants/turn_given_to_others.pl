# An endpoint that is about to leave for another worker gives its tenant's turn to others.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.workers_per_database = 2\n");
my $receiver = OutboxTest::Receiver->new('main');

# Two workers have five endpoints each: four of the tenant, and one that gets the same events
# without waiting for anything.
my @all = map { "e$_" } 1 .. 8;
ask(<<'SQL');
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'an obstacle'; END $$;
SQL
endpoint($node, $receiver, $_, "/ok/$_", "topics => '{$_.*}', tenant => 't', timeout => '5 min'") foreach @all;
ok(wait_sql($node, 'SELECT count(*) = 2 AND bool_and(endpoints = 4) FROM outbox.workers'), 'each worker has four endpoints');
endpoint($node, $receiver, $_, "/ok/$_") foreach qw(clock1 clock2);
ok(wait_sql($node, 'SELECT count(*) = 2 AND bool_and(endpoints = 5) FROM outbox.workers'), 'and one more');

my $key = 1;

# All workers have read the event when this returns.
sub is_read
{
	my ($name) = @_;
	my $id = emit($node, "$name.n", '{}', "key => 'k$key', tenant => 't'");

	$receiver->wait_delivered(1, path => "/ok/$_", id => $id) foreach qw(clock1 clock2);
	return $id;
}

# Which worker has which
my %delivered = (1 => 0, 2 => 0);
my %of;
my $n = 0;
foreach my $name (@all)
{
	is_read($name);
	$n += 3;
	ok(wait_sql($node, "SELECT sum(delivered) = $n FROM outbox.workers"), "$name: delivered");
	foreach my $row (split /\n/, ask('SELECT worker, delivered FROM outbox.workers'))
	{
		my ($worker, $now) = split /\|/, $row;
		push @{ $of{$worker} }, $name if $now - $delivered{$worker} == 2;
		$delivered{$worker} = $now;
	}
}
is(scalar @{ $of{$_} }, 4, "worker $_: @{ $of{$_} }") foreach 1, 2;

# In one worker, the tenant's two slots are taken, and an event of a third endpoint waits for one.
my ($first, $third, $second, $slot) = @{ $of{1} };
ask("SELECT outbox.set_tenant_limits('t', max_in_flight => 4)");
$receiver->control(path => "/ok/$_", behave => '/hold') foreach $first, $third, $slot;
my @key = map { is_read($first) } 1 .. 2;
$receiver->wait_for(2, path => "/ok/$first");
is_read($slot);
$receiver->wait_for(2, path => "/ok/$slot");
is_read($third);

# When the first of a key is delivered, the third endpoint gets its slot.  The next one of the key
# waits, and behind it an event of another endpoint.
$receiver->control(path => "/ok/$first", behave => '/ok');
$receiver->wait_for(2, path => "/ok/$third");
wait_status($node, $key[0], 'delivered', 'first: delivered');
my $waits = is_read($second);
ok(wait_sql($node, 'SELECT count(*) = 1 FROM outbox.events e, outbox.endpoint_positions p JOIN outbox.endpoint_settings s USING (endpoint_id)'
		  . " WHERE e.id = '$key[1]' AND s.name = '$first' AND e.seq = ANY (outbox.pending_seqs(p.pending))"),
	'first: what waits is stored');

# The other one loses its endpoints, so it gets the two with the lowest numbers.  The position
# of the first cannot be stored.
my $id = ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = '$first'");
ask("BEGIN; CREATE TRIGGER obstacle BEFORE INSERT ON outbox.positions FOR EACH ROW WHEN (NEW.endpoint_id = $id) EXECUTE FUNCTION public.obstacle();"
	  . join('', map { "SELECT outbox.drop_endpoint('$_', discard => true);" } @{ $of{2} }) . ' COMMIT');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'settle' AND endpoint = '$first'"), 'first: it cannot be stored');
is(scalar(() = $receiver->requests(path => "/ok/$second")), 1, 'second: it waits');
$receiver->control(path => "/ok/$slot", behave => '/ok');
$receiver->wait_delivered(1, path => "/ok/$second", id => $waits);
wait_status($node, $waits, 'delivered', 'second: it is its turn');
is(scalar(() = $receiver->requests(path => "/ok/$first")), 2, 'first: it sends nothing meanwhile');

ask('DROP TRIGGER obstacle ON outbox.positions');
$node->reload;
wait_status($node, $key[1], 'delivered', 'first: it is served again');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'no worker has ended with an error');

$node->stop;
done_testing();
