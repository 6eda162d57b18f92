# Each database gets a worker in turn when there are more databases than processes.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $databases = 50;

# One is the launcher's, one PostgreSQL's own for logical replication.
my $node = outbox_node('main', extension => 0, conf => "max_worker_processes = 8\n");
my $served = 6;
my $receiver = OutboxTest::Receiver->new('main');

sub with_a_worker
{
	return split /\n/,
	  ask("SELECT DISTINCT datname FROM pg_stat_activity WHERE backend_type = 'outbox worker' ORDER BY 1");
}

# Databases whose worker was started for want of the extension are soon gone.
sub served_now
{
	my ($n, $how) = @_;
	my @found;

	wait_until
	{
		@found = grep { /^d/ } with_a_worker();
		@found == $n;
	}
	"$n databases are served";
	is(scalar @found, $n, "$how: so many databases are served as there are processes");
	return @found;
}

# The log's origin is written with the first endpoint: these are no copies.
ask('CREATE DATABASE original');
ask('CREATE EXTENSION outbox', 'original');
ask("CREATE DATABASE d$_ TEMPLATE original") foreach 1 .. $databases;
ask('DROP DATABASE original');

# One without an endpoint would leave its process to others.
ask("SELECT outbox.create_endpoint('all', '" . $receiver->url("/ok/d$_") . "')", "d$_") foreach 1 .. $databases;

my @with = served_now($served, 'at first');
my %with = map { $_ => 1 } @with;
my @without = grep { !$with{$_} } map { "d$_" } 1 .. $databases;

sub has_delivered
{
	my ($dbname, $how) = @_;
	my $id = ask("SELECT outbox.emit('a.b', '{}'::jsonb)", $dbname);
	$receiver->wait_delivered(1, path => "/ok/$dbname", id => $id);
	pass("$how: $dbname delivers");
	return;
}

has_delivered($with[0], 'served');
has_delivered($with[-1], 'served');
foreach my $dbname (@without[ 0, -1 ])
{
	is(ask('SELECT state FROM outbox.status', $dbname), 'no_worker', "$dbname has no worker");
	like(ask('SELECT reason FROM outbox.status', $dbname),
		qr/max_worker_processes/, 'and says which setting is too low');
}
my $waiting = emit($node, 'a.c', '{}', undef, $without[0]);
like($waiting, qr/^[0-9a-f-]{36}$/, 'emit works there all the same');

# A process that becomes free is used
foreach my $dropped (@with[ 0 .. 2 ])
{
	ask("DROP DATABASE $dropped");
	my %then = map { $_ => 1 } served_now($served, "$dropped was dropped");
	ok(!$then{$dropped}, 'it is not among them');
	my ($new) = grep { $then{$_} && !$with{$_} } @without;
	ok($new, 'another one is');
	has_delivered($new, 'served now');
	%with = %then;
}
my ($dropped) = grep { $with{$_} } @with;
ask('DROP EXTENSION outbox', $dropped);
wait_until
{
	!grep { $_ eq $dropped } with_a_worker()
}
'the worker notices that its extension is gone';
served_now($served, "$dropped has no extension any more");

# With two workers for each, no database gets a second one while another has none
ask('ALTER SYSTEM SET outbox.workers_per_database = 2');
$node->reload;
emit($node, 'a.d', '{}', undef, $_) foreach grep { $_ ne $dropped } served_now($served, 'two are wanted');
is(ask("SELECT max(n) FROM (SELECT count(*) AS n FROM pg_stat_activity WHERE backend_type = 'outbox worker' GROUP BY datid) AS c"),
	1, 'one each');

# When all but one are gone, that one gets its second worker
my ($last) = grep { $_ ne $dropped } served_now($served, 'before most are dropped');
foreach my $dbname (split /\n/, ask("SELECT datname FROM pg_database WHERE datname ~ '^d[0-9]' AND datname <> '$last'"))
{
	ask("DROP DATABASE $dbname");
}
has_delivered($last, 'alone');
ok( wait_sql(
		$node, "SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'outbox worker' AND datname = '$last'"),
	'the last database has both of its workers');

# And loses it again when others come
foreach my $n (1 .. $served)
{
	ask("CREATE DATABASE e$n");
	ask('CREATE EXTENSION outbox', "e$n");
	ask("SELECT outbox.create_endpoint('all', '" . $receiver->url("/ok/e$n") . "')", "e$n");
}
ok( wait_sql(
		$node, "SELECT count(DISTINCT datname) = $served AND count(*) = $served FROM pg_stat_activity"
		  . " WHERE backend_type = 'outbox worker' AND datname ~ '^[de][0-9]'"),
	'its second worker makes room');

done_testing();
