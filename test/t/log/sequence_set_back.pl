# No event is lost, whatever the sequence of their numbers is set to.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Copies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_prepared_transactions = 5\n");
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'all', '/ok/a', "ordering => 'none'");

my $set_back = "SELECT setval('outbox.events_seq', 10)";
my @ids;

sub emitted
{
	my (@new) = @_;
	push @ids, grep { /\S/ } map { split /\n/ } @new;
}

sub all_arrive
{
	my ($name) = @_;
	wait_until { my %got = map { $_->{id} => 1 } $receiver->delivered; !grep { !$got{$_} } @ids } "$name: each event arrives";
	wait_sql($node, 'SELECT pending = 0 AND processing = 0 AND delivered = ' . @ids . ' FROM outbox.stats');
	is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT seq) FROM outbox.all_events'),
		0, "$name: no number is given out twice");
}

my $many = "SELECT outbox.emit('a.b', '{}'::jsonb) FROM generate_series(1, 200)";
emitted($node->safe_psql('postgres', $many));
all_arrive('before');

# Sessions that emit meanwhile, old and new ones, by function and by INSERT, and one that commits late
my $open = $node->background_psql('postgres', on_error_stop => 1);
$open->query_safe('BEGIN');
emitted($open->query_safe("SELECT outbox.emit('a.late', '{}'::jsonb)"));
$node->safe_psql('postgres', $set_back);
emitted($open->query_safe("SELECT outbox.emit('a.late', '{}'::jsonb)"));
emitted($node->safe_psql('postgres', "INSERT INTO outbox.events (topic, payload) VALUES ('a.insert', '{}') RETURNING id"));
emitted($node->safe_psql('postgres', $many));
$open->query_safe('COMMIT');
all_arrive('the sequence was set back under a worker');

# Whatever else ALTER SEQUENCE says while a worker lives.  With a cache, sessions have numbers in store.
foreach my $odd ('RESTART WITH 10', 'CACHE 20', 'INCREMENT BY -1', 'INCREMENT BY 7 CACHE 5', 'INCREMENT BY 1 MINVALUE -100 RESTART WITH -50')
{
	$node->safe_psql('postgres', "ALTER SEQUENCE outbox.events_seq $odd");
	emitted($open->query_safe("SELECT outbox.emit('a.b', '{}'::jsonb)"), $node->safe_psql('postgres', $many)) foreach 1 .. 3;
	all_arrive("ALTER SEQUENCE $odd");
}
$node->safe_psql('postgres', "ALTER SEQUENCE outbox.events_seq MAXVALUE 1000000000 CYCLE; SELECT setval('outbox.events_seq', 999999990)");
my (undef, undef, $full) = $node->psql('postgres', $many);
like($full, qr/ERROR:.*setval/, 'one that begins anew at its end refuses an event');
$node->safe_psql('postgres', 'ALTER SEQUENCE outbox.events_seq NO MAXVALUE NO CYCLE MINVALUE 1 RESTART WITH 1 CACHE 1');

# A crash sets it back to its start.
$node->safe_psql('postgres', 'ALTER SEQUENCE outbox.events_seq SET UNLOGGED');
emitted($node->safe_psql('postgres', $many));
$open->quit;
$node->stop('immediate');
$node->start;
emitted($node->safe_psql('postgres', $many));
all_arrive('a sequence that is not logged, and a crash');
$open = $node->background_psql('postgres', on_error_stop => 1);

# Again and again, in the midst of a transaction with many events
emitted($node->safe_psql('postgres', <<"SQL"));
SELECT outbox.emit('a.b', '{}'::jsonb) FROM generate_series(1, 300) i
WHERE i % 50 <> 0 OR setval('outbox.events_seq', i) > 0;
SQL
all_arrive('set back inside a statement');

# While no worker runs, after a start of the server, with an empty log
$node->safe_psql('postgres', "ALTER SYSTEM SET outbox.enabled = off; SELECT pg_reload_conf()");
$node->safe_psql('postgres', $set_back);
$node->restart;
emitted($node->safe_psql('postgres', "SET default_transaction_isolation = 'repeatable read'; $many"));
$node->safe_psql('postgres', $set_back);
$node->restart;
$node->safe_psql('postgres', "ALTER SYSTEM RESET outbox.enabled; SELECT pg_reload_conf()");
all_arrive('set back before the server was started');

# A worker that is idle has read up to a number that no event has.
my $far = $node->safe_psql('postgres', "SELECT setval('outbox.events_seq', last_value + 1000000) FROM outbox.events_seq");
ok(wait_sql($node, "SELECT EXISTS (SELECT FROM outbox.positions WHERE endpoint_id < 0 AND read_seq_low >= $far)"), 'set forward: a position has that number');
emitted($node->safe_psql('postgres', "BEGIN; SELECT setval('outbox.events_seq', $far - 1000000) \\g /dev/null\n$many; COMMIT"));
all_arrive('set forward, and back');

$node->safe_psql('postgres', 'SELECT outbox.pause_endpoint(\'all\')');
$node->safe_psql('postgres', $set_back);
emitted($node->safe_psql('postgres', $many));
$node->safe_psql('postgres', 'SELECT outbox.resume_endpoint(\'all\')');
all_arrive('an endpoint that is behind');

# In a copy that is adopted: before it is, while it waits for that, and afterwards, with a server that was started meanwhile
$open->quit;
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('all')");
my @waiting = split /\n/, $node->safe_psql('postgres', $many);
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
my $theirs = OutboxTest::Receiver->new('copy');
redirect($node, 'copy', $theirs, 'all');
my @here;
foreach my $at ('before', 'restart', 'held')
{
	$node->safe_psql('copy', $set_back);
	push @here, split /\n/, $node->safe_psql('copy', $many);
	$node->restart if $at eq 'restart';
}
$node->safe_psql('copy', $set_back);
$node->safe_psql('copy', "SELECT outbox.adopt(), outbox.resume_endpoint('all')");
push @here, split /\n/, $node->safe_psql('copy', $many);
$node->safe_psql('copy', $set_back);
push @here, split /\n/, $node->safe_psql('copy', $many);
ok((wait_until { my %got = map { $_->{id} => 1 } $theirs->delivered; !grep { !$got{$_} } @waiting, grep { /\S/ } @here } 'each event of the copy arrives'),
	'each event of the copy arrives');
is($node->safe_psql('copy', 'SELECT count(*) - count(DISTINCT seq) FROM outbox.all_events'), 0, 'the copy: no number is given out twice');
emitted(@waiting);
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('all')");
all_arrive('the original');

# While nothing is emitted that would raise it again
my $requests = () = $receiver->requests;
$node->safe_psql('postgres', $set_back);
is($node->safe_psql('postgres', "SELECT (outbox.page_bound(NULL, created_at, '0')).last >= seq FROM outbox.events ORDER BY seq DESC OFFSET 100 LIMIT 1"),
	't', 'a page begins at its time');
my $again = $node->safe_psql('postgres', "SELECT outbox.replay('all', now() - interval '1 h')");
cmp_ok($again, '>=', 200, 'a replay finds the events');
ok((wait_until { (() = $receiver->requests) >= $requests + $again } 'and sends them'), 'and sends them');

$node->safe_psql('postgres', "SELECT count(outbox.emit('a.b', '{}', tenant => 't', key => 'k' || (i > 3000))) FROM generate_series(1, 3001) i");
$node->safe_psql('postgres', $set_back);
$node->safe_psql('postgres', "SELECT outbox.forget('t', 'ktrue')");
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.forgotten WHERE complete_at IS NULL'), 'a key is forgotten');
is($node->safe_psql('postgres', "SELECT count(*) FROM outbox.events WHERE tenant = 't' AND payload IS NULL"), 1, 'with its event');

# At its end, and then set back
$node->safe_psql('postgres', "SELECT setval('outbox.events_seq', 9223372036854775807)");
like(($node->psql('postgres', $many))[2], qr/ERROR:.*reached maximum value/, 'after the last number no event is taken');
$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('all', topics => '{a.*}')");
ok(wait_sql($node, 'SELECT EXISTS (SELECT FROM outbox.positions WHERE read_seq_low >= 9223372036854775800)'), 'a position has that number');
$node->safe_psql('postgres', $set_back);
like(($node->psql('postgres', $many))[2], qr/ERROR:.*reached maximum value/, 'nor when the sequence is set back then');

# A second log in the same database begins anew
$node->safe_psql('postgres', 'DROP EXTENSION outbox; CREATE EXTENSION outbox');
@ids = ();
endpoint($node, $receiver, 'all', '/ok/b', "ordering => 'none'");
emitted($node->safe_psql('postgres', $many));
cmp_ok($node->safe_psql('postgres', 'SELECT max(seq) FROM outbox.events'), '<=', 250, 'numbers of a new log begin anew');
all_arrive('another log');

# The other sequences, with the statements of doc/copies.md
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('all'), outbox.resume_endpoint('all'), outbox.replay('all', now() - interval '1 h')") for 1 .. 2;
my @sequences = split /\n/, $node->safe_psql('postgres', "SELECT oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'S' AND relname <> 'events_seq'");
my @cure = slurp_file("$top/doc/copies.md") =~ /^ +(SELECT setval\('(outbox\.\w+).*)$/mg;
is(join(' ', sort grep { /^outbox/ } @cure), join(' ', sort @sequences), 'doc/copies.md has each');
$node->safe_psql('postgres', "SELECT setval('$_', 1)") foreach @sequences;
$node->safe_psql('postgres', $_) foreach grep { /^SELECT/ } @cure;
is(($node->psql('postgres', "SELECT outbox.create_endpoint('new', 'http://127.0.0.1:9/', topics => '{new}'), outbox.pause_endpoint('all'), outbox.resume_endpoint('all'), outbox.replay('all', now() - interval '1 h')"))[2], '', 'and endpoints are made, changed and replayed');

$node->stop;
done_testing();
