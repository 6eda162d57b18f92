# Several workers divide tenants' endpoints evenly, and no endpoints move without need.
# Their numbers have holes, so shares differ. What moves is seen by the shared position that it follows.
use strict;
use warnings;

use List::Util qw(max min sum);
use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => 'max_worker_processes = 16');

# An endpoint's number says its share, of 255. Each share has from 1 to 51 endpoints here.
my @weights = map { 1 + int(50 * ($_ / 254)**6) } 0 .. 254;
my $n = sum(@weights);
my $ids = join ',', map { my $share = $_; map { $share + 255 * $_ } 1 .. $weights[$share] } 0 .. 254;

sub set_workers
{
	my ($workers) = @_;

	ask("ALTER SYSTEM SET outbox.workers_per_database = $workers");
	$node->reload;
	return;
}

# Which endpoint follows which shared position, when all do. Each worker has one.
sub division
{
	my ($workers) = @_;
	my $newest = 'SELECT DISTINCT ON (endpoint_id) endpoint_id, shared FROM outbox.positions WHERE endpoint_id > 0'
	  . ' ORDER BY endpoint_id, number DESC';
	my $followers = "SELECT shared, count(*) AS n FROM ($newest) p GROUP BY shared";
	my %of;

	ok( wait_sql(
			$node, "SELECT count(*) = $workers AND count(shared) = $workers AND sum(n) = $n"
			  . ' AND array_agg(n ORDER BY n) = (SELECT array_agg(w.endpoints::int8 ORDER BY w.endpoints) FROM outbox.workers w'
			  . " WHERE w.state = 'running') FROM ($followers) f"),
		"$workers workers have $n endpoints");
	%of = map { split /\|/ } split /\n/, ask($newest);
	return \%of;
}

sub parts
{
	my ($of) = @_;
	my %part;

	$part{$_}++ foreach values %$of;
	return \%part;
}

# Two workers differ by less than two shares.
sub is_even
{
	my ($of) = @_;
	my @parts = values %{ parts($of) };

	cmp_ok(max(@parts) - min(@parts), '<', 2 * max(@weights), 'evenly: ' . join(', ', sort @parts));
	return;
}

sub moved
{
	my ($before, $after) = @_;
	return scalar grep { $before->{$_} != $after->{$_} } keys %$after;
}

ask(<<"SQL");
DO \$\$
DECLARE id int;
BEGIN
	FOREACH id IN ARRAY '{$ids}'::int[] LOOP
		PERFORM setval('outbox.endpoint_settings_endpoint_id_seq', id - 1);
		PERFORM outbox.create_endpoint('e' || id, 'http://127.0.0.1:9/', topics => '{order.*}', tenant => 't' || id % 500);
	END LOOP;
END \$\$
SQL
my $one = division(1);

set_workers(2);
my $two = division(2);
is_even($two);

set_workers(3);
my $three = division(3);
my $parts = parts($three);
my ($new) = grep { !parts($two)->{$_} } keys %$parts;
is_even($three);
is(moved($two, $three), $parts->{$new}, 'the third worker got what moved, and nothing else did');

set_workers(2);
my $again = division(2);
is_even($again);
is(moved($three, $again), $parts->{$new}, 'when it retires, what it had moves, and nothing else does');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
