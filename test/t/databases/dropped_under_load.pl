# Dropping or copying a database, the extension or an endpoint under load affects only that one.
# Events are emitted and requests are in flight meanwhile, and nothing else is lost.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', extension => 0);
my $receiver = OutboxTest::Receiver->new('main');
my $tablespace = PostgreSQL::Test::Utils::tempdir();
my $logs = PostgreSQL::Test::Utils::tempdir();
my $slots = 16;

$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$tablespace'");
$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');

sub ask
{
	my ($dbname, $sql) = @_;
	return $node->safe_psql($dbname, $sql);
}

# Runs a command that must end by itself in time.
sub quickly
{
	my ($sql, $name, $dbname) = @_;
	my ($rc, undef, $err) =
	  $node->psql($dbname // 'postgres', $sql, timeout => 30, timed_out => \my $late);
	return is($late ? 'too late' : "$rc $err", '0 ', $name);
}

# A database with two endpoints, one of which always has requests under way.
sub make_database
{
	my ($name) = @_;

	ask('postgres', "CREATE DATABASE $name");
	ask($name, 'CREATE EXTENSION outbox');
	endpoint($node, $receiver, 'ok', "/ok/$name", "max_in_flight => $slots", $name);
	endpoint($node, $receiver, 'slow', "/slow/$name?ms=50", "max_in_flight => $slots", $name);
	return;
}

sub load
{
	my ($dbname, $topic, $rate) = @_;
	my $producer = start_producer($node, "$logs/$dbname.$topic", dbname => $dbname,
		rate => 200, keys => 8, topic => "load.$topic");
	wait_until { ask($dbname, 'SELECT sum(delivered) > 10 AND sum(in_flight) > 0'
		  . " FROM outbox.workers WHERE datname = current_database()") eq 't' }
	"$dbname is at work";
	return $producer;
}

# A worker that is sent away settles first.  What was in flight is sent again.
sub judge
{
	my ($dbname, $topic, $path, $name, %option) = @_;
	return check_history($node, $receiver, "$logs/$dbname.$topic", dbname => $dbname,
		endpoints => [ "/ok/$path", "/slow/$path" ],
		max_duplicates => $option{times} * 2 * ($slots + 40), name => $name, %option);
}

# A neighbour that must not notice any of the following.
make_database('neighbour');
my $neighbour = load('neighbour', 'a', 20);
my $neighbour_pid = worker_pid($node, 'neighbour');

# DROP DATABASE by a role that may not, RENAME and SET TABLESPACE too
make_database('shop');
my $producer = load('shop', 'a');
my $pid = worker_pid($node, 'shop');
foreach my $sql ('DROP DATABASE shop', 'DROP DATABASE shop WITH (FORCE)',
	'ALTER DATABASE shop RENAME TO mine', 'ALTER DATABASE shop SET TABLESPACE elsewhere',
	'CREATE DATABASE mine TEMPLATE shop')
{
	isnt($node->psql('postgres', $sql, extra_params => [ '-U', 'stranger' ]),
		0, "a stranger may not: $sql");
}
is(worker_pid($node, 'shop'), $pid, 'and the worker stays');

# A transaction that drops the extension and is rolled back: with the log in
# hand, and among emitting sessions, which may be in a deadlock with it
foreach my $lock ('LOCK TABLE outbox.events', 'SELECT 1')
{
	$node->psql('shop', "BEGIN; $lock; DROP EXTENSION outbox; SELECT pg_sleep(0.3); ROLLBACK");
}
$receiver->wait_new(100, '/ok/shop');
is(worker_pid($node, 'shop'), $pid, 'DROP EXTENSION that was rolled back: the same worker goes on');

# Nor does it wait for the sequence, which others hold as a DROP does
my $session = $node->background_psql('shop');
$session->query_safe('BEGIN; ALTER SEQUENCE outbox.events_seq CACHE 1');
ok( wait_sql($node, "SELECT w.last_loop_at > x.xact_start + interval '4 s'"
		  . ' FROM outbox.workers w, pg_stat_activity x'
		  . " WHERE w.datname = 'shop' AND x.query LIKE '%ALTER SEQUENCE%' AND x.pid <> pg_backend_pid()",
		't', 'shop'),
	'the loop goes on while the sequence is locked');
$session->query_safe('COMMIT');
$session->quit;
$receiver->wait_new(100, '/ok/shop');
is(worker_pid($node, 'shop'), $pid, 'and it is still the same worker');
stop_producer($producer);
judge('shop', 'a', 'shop', 'DROP EXTENSION, rolled back under load', times => 0);

# With a backlog and requests under way, but no other session connected
sub backlog
{
	my ($dbname, $topic) = @_;

	$receiver->control(path => '/slow/shop', behave => '/hold');
	my $producer = start_producer($node, "$logs/shop.$topic", dbname => $dbname,
		rate => 800, keys => 50, topic => "load.$topic");

	wait_until { ask($dbname, "SELECT count(*) > 400 FROM outbox.events WHERE topic = 'load.$topic'") eq 't' }
	'there are events';
	stop_producer($producer);
	ok(wait_sql($node, "SELECT in_flight > 0 FROM outbox.workers WHERE datname = '$dbname'", 't', $dbname), "$dbname has requests under way");
	$receiver->control(path => '/slow/shop');    # the held requests get no answer
	return;
}
backlog('shop', 'rename');
quickly('ALTER DATABASE shop RENAME TO store', 'RENAME with requests under way');
rename "$logs/shop.rename", "$logs/store.rename" or die $!;
judge('store', 'rename', 'shop', 'RENAME', times => 1);

backlog('store', 'space');
quickly('ALTER DATABASE store SET TABLESPACE elsewhere', 'SET TABLESPACE with requests under way');
rename "$logs/shop.space", "$logs/store.space" or die $!;
judge('store', 'space', 'shop', 'SET TABLESPACE', times => 1);
quickly('ALTER DATABASE store SET TABLESPACE pg_default', 'and back to the first one');

# A copy of it has the same backlog, and sends none of it
backlog('store', 'copy');
quickly('CREATE DATABASE copy TEMPLATE store', 'TEMPLATE with requests under way');
ok(wait_sql($node, "SELECT state = 'held' FROM outbox.status", 't', 'copy'), 'the copy is held');
isnt(ask('copy', 'SELECT count(*) FROM outbox.events'), '0', 'and has the events');
my $own = emit($node, 'load.own', '{}', undef, 'copy');
rename "$logs/shop.copy", "$logs/store.copy" or die $!;
judge('store', 'copy', 'shop', 'TEMPLATE: the original goes on, once', times => 1);
is(scalar(() = $receiver->requests(id => $own)), 0, 'the copy sent nothing');
quickly('DROP DATABASE copy', 'the copy can be dropped');

# DROP EXTENSION in the middle of it, at once made anew: a new log, and what was
# undelivered is gone with the old one
$producer = start_producer($node, "$logs/store.drop", dbname => 'store',
	rate => 200, keys => 8, topic => 'load.drop');
$receiver->wait_new(100, '/ok/shop');
my $url = $receiver->url('');
my @gone = split /\n/, ask('store', <<"SQL");
BEGIN;
LOCK TABLE outbox.events IN ACCESS EXCLUSIVE MODE;
SELECT id FROM outbox.events;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
SELECT outbox.create_endpoint('ok', '${url}/ok/new') \\g /dev/null
SELECT outbox.create_endpoint('slow', '${url}/slow/new?ms=50') \\g /dev/null
COMMIT;
SQL
cmp_ok(scalar(@gone), '>', 100, 'DROP and CREATE EXTENSION in one transaction, under load');
ok($receiver->wait_new(100, '/ok/new'), 'the new log is delivered');
stop_producer($producer);
check_history($node, $receiver, "$logs/store.drop", dbname => 'store',
	endpoints => [ '/ok/new', '/slow/new' ], gone => \@gone, exists_too => \@gone,
	name => 'all of it, and nothing of the old log');

# Dropped and made again one after the other, and twice by two sessions
ask('store', 'DROP EXTENSION outbox');
ok( wait_sql($node, "SELECT count(*) = 0 FROM pg_stat_activity"
		  . " WHERE backend_type LIKE 'outbox%worker%' AND datname = 'store'"),
	'DROP EXTENSION ends the worker');
ask('store', 'CREATE EXTENSION outbox');
endpoint($node, $receiver, 'ok', '/ok/third', undef, 'store');
$receiver->wait_delivered(1, id => emit($node, 'load.third', '{}', undef, 'store'));
pass('and CREATE EXTENSION brings another one');

# DROP DATABASE with requests under way
$producer = load('store', 'last');
$receiver->control(path => '/ok/third', behave => '/hang');
wait_until { ask('store', "SELECT in_flight > 0 FROM outbox.workers WHERE datname = 'store'") eq 't' }
'requests hang';
stop_producer($producer);
quickly('DROP DATABASE store', 'DROP DATABASE with requests that hang');

# A schema named outbox that is not ours
ask('postgres', 'CREATE DATABASE other');
ask('other', <<'SQL');
CREATE SCHEMA outbox AUTHORIZATION stranger;
CREATE TABLE outbox.events (id uuid, seq bigint, topic text);
CREATE TABLE outbox.endpoint_settings (name text);
SQL
ok( wait_sql($node, "SELECT count(*) = 0 FROM pg_stat_activity"
		  . " WHERE backend_type LIKE 'outbox%worker%' AND datname = 'other'"),
	'a schema named outbox that is not ours gets no worker');
my ($rc, undef, $err) = $node->psql('other', 'CREATE EXTENSION outbox');
isnt($rc, 0, 'and no extension');
like($err, qr/schema "?outbox.*HINT:/s, 'with a hint that says what to do');
is(ask('other', "SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"),
	'2', 'it is as it was');
ask('other', 'ALTER SCHEMA outbox RENAME TO theirs; CREATE EXTENSION outbox');
endpoint($node, $receiver, 'ok', '/ok/other', undef, 'other');
$receiver->wait_delivered(1, id => emit($node, 'load.other', '{}', undef, 'other'));
pass('out of the way, it is installed and works');

# An endpoint is dropped and made again under its name with requests in flight
make_database('again');
$producer = load('again', 'before');
my $slow = $receiver->url('/slow/again?ms=50');
my $secret = ask('again', "SELECT outbox.endpoint_secret('slow')");
foreach my $round (1 .. 10)
{
	ask('again', <<"SQL");
SELECT outbox.drop_endpoint('slow', discard => true);
SELECT outbox.create_endpoint('slow', '$slow', max_in_flight => $slots, secret => '$secret');
SQL
	wait_until { ask('again', "SELECT processing > 0 FROM outbox.stats WHERE endpoint = 'slow'") eq 't' }
	"it has requests in flight again, $round";
}
stop_producer($producer);
check_history($node, $receiver, "$logs/again.before", dbname => 'again',
	endpoints => ['/ok/again'], name => 'an endpoint dropped and made again: the other one noticed nothing');
$producer = load('again', 'after');
$receiver->wait_new(100, '/slow/again');
stop_producer($producer);
judge('again', 'after', 'again', 'and it works as a new one', times => 0);
is(ask('again', 'SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');

# The neighbour noticed nothing of all this
is(worker_pid($node, 'neighbour'), $neighbour_pid, 'the neighbour kept its worker');
stop_producer($neighbour);
judge('neighbour', 'a', 'neighbour', 'and its history is clean', times => 0);
$node->stop;
done_testing();
