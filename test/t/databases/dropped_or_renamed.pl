# DROP, RENAME, SET TABLESPACE and TEMPLATE of a database work while its worker is connected.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', extension => 0);
my $receiver = OutboxTest::Receiver->new('main');
my $tablespace = PostgreSQL::Test::Utils::tempdir();

sub make_database
{
	my ($name) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, 'CREATE EXTENSION outbox');
	ok(worker_pid($node, $name), "$name has a worker");
	endpoint($node, $receiver, 'all', "/ok/$name", "timeout => '3 s'", $name);
	return;
}

sub works
{
	my ($dbname, $path, $how) = @_;
	my $id = emit($node, 'a.b', '{}', undef, $dbname);
	$receiver->wait_delivered(1, path => $path, id => $id);
	pass("$dbname delivers $how");
	return;
}

# As above, but must end by itself within a time
sub quickly
{
	my ($sql, $name) = @_;
	my ($rc, undef, $err) =
	  $node->psql('postgres', $sql, timeout => 30, timed_out => \my $late);
	is($late ? 'too late' : "$rc $err", '0 ', $name);
	return;
}

is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM pg_stat_activity"
		  . " WHERE backend_type LIKE 'outbox%worker%' AND datname IN ('template0', 'template1')"),
	'0', 'template databases have no worker');

make_database('one');
make_database('two');
works('one', '/ok/one', 'at first');
works('two', '/ok/two', 'at first');

# RENAME
quickly('ALTER DATABASE one RENAME TO uno', 'RENAME works');
works('uno', '/ok/one', 'after RENAME');

# SET TABLESPACE
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$tablespace'");
quickly('ALTER DATABASE uno SET TABLESPACE elsewhere', 'SET TABLESPACE works');
works('uno', '/ok/one', 'after SET TABLESPACE');
quickly('ALTER DATABASE uno SET TABLESPACE pg_default', 'and back');

# TEMPLATE: the copy is held, it has another origin
$receiver->control(path => '/ok/one', behave => '/hang');
my $waiting = emit($node, 'a.waiting', '{}', undef, 'uno');
$receiver->wait_for(1, id => $waiting);
quickly('CREATE DATABASE copy TEMPLATE uno', 'TEMPLATE works');
ok(wait_sql($node, "SELECT state = 'held' FROM outbox.status", 't', 'copy'),
	'the copy is held');
isnt($node->safe_psql('copy', 'SELECT reason FROM outbox.status'),
	'', 'and says why');
$receiver->control(path => '/ok/one', behave => '/ok');
$receiver->wait_delivered(1, id => $waiting);

# ALTER DATABASE has ended its worker, perhaps before that had stored the outcome of an event.
# So uno may send one again.
ok(wait_settled($node, 'uno'), 'uno has nothing left to send');
nothing_arrives($receiver, 'the copy sends nothing', 1, path => '/ok/one');
works('uno', '/ok/one', 'after having been a template');
quickly('DROP DATABASE copy', 'the copy can be dropped');

# The next database has its place in shared memory
$node->safe_psql('postgres', 'CREATE DATABASE next');
$node->safe_psql('next', 'CREATE EXTENSION outbox');
isnt($node->safe_psql('next', 'SELECT state FROM outbox.status'), 'held', 'another database is not held because the copy was');
ok(worker_pid($node, 'next'), 'and has a worker');
quickly('DROP DATABASE next', 'it can be dropped');

# A role that may not drop it does not disturb it either
my $pid = worker_pid($node, 'two');
$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');
foreach my $sql ('DROP DATABASE two', 'ALTER DATABASE two RENAME TO mine',
	'ALTER DATABASE two SET TABLESPACE elsewhere')
{
	isnt(
		$node->psql('postgres', $sql, extra_params => [ '-U', 'stranger' ]),
		0, "a stranger may not: $sql");
}
is(worker_pid($node, 'two'), $pid, 'the worker did not even notice');

# A command that fails for another reason gives the database back
my $session = $node->background_psql('two');
isnt($node->psql('postgres', 'DROP DATABASE two'), 0, 'a session is connected');
$session->quit;
works('two', '/ok/two', 'after a DROP that failed');

# DROP with requests under way
$receiver->control(path => '/ok/two', behave => '/hang');
my $before = () = $receiver->requests(path => '/ok/two');
$node->safe_psql('two',
	"SELECT count(outbox.emit('a.b', '{}'::jsonb)) FROM generate_series(1, 50)");
wait_until { my $n = () = $receiver->requests(path => '/ok/two'); $n > $before }
'requests are under way';
quickly('DROP DATABASE two', 'DROP works with requests under way');
works('uno', '/ok/one', 'after another database was dropped');

# The same name again
make_database('two');
$receiver->control(path => '/ok/two', behave => '/ok');
works('two', '/ok/two', 'under a name that was used before');
quickly('DROP DATABASE uno', 'DROP');
quickly('DROP DATABASE two WITH (FORCE)', 'DROP … WITH (FORCE)');

# DROP EXTENSION ends the worker, its rollback changes nothing
make_database('three');
$pid = worker_pid($node, 'three');
$node->safe_psql('three', 'BEGIN; DROP EXTENSION outbox; ROLLBACK');
works('three', '/ok/three', 'after a DROP EXTENSION that was rolled back');
$node->safe_psql('three', 'DROP EXTENSION outbox');
ok( wait_sql(
		$node, "SELECT count(*) = 0 FROM pg_stat_activity"
		  . " WHERE backend_type LIKE 'outbox%worker%' AND datname = 'three'"),
	'DROP EXTENSION ends the worker');
$node->safe_psql('three', 'CREATE EXTENSION outbox');
ok(worker_pid($node, 'three'), 'and CREATE EXTENSION brings one');
endpoint($node, $receiver, 'all', '/ok/three', undef, 'three');
works('three', '/ok/three', 'anew');

# Each worker was asked once, and so could store what it had.
unlike(slurp_file($node->logfile), qr/FATAL:  terminating background worker/, 'no worker was ended before it had stored all');

$node->stop;
done_testing();
