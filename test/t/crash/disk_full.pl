# When the disk of the tables or of the WAL is full, no event is lost, for a webhook or a sink.
# The disks are small ones in memory.  Delivery goes on when there is room again.  The steps of the
# runbook make room, as they stand there, on a disk that has not a page left.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest::Disks (tables => 256, wal => 160, data => 128);    # the first: it runs this again, with these
use OutboxTest;
use OutboxTest::Aws;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($tables, $wal) = map { OutboxTest::Disks::path($_) } qw(tables wal);
mkdir "$tables/space" or die "$tables/space: $!\n";
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8', '--waldir', "$wal/pg_wal", '--wal-segsize=1' ]);
my $aws = OutboxTest::Aws::missing() ? undef : OutboxTest::Aws->new;
diag('NOT TESTED with a sink: ' . OutboxTest::Aws::missing()) unless $aws;
$node->append_conf('postgresql.conf', $aws ? "outbox.sinks = 'webhook, aws'\n" : '');
my $conf = <<'CONF';
shared_preload_libraries = 'outbox'
outbox.allowed_networks = '127.0.0.1/32'
max_connections = 20
min_wal_size = 2MB
max_wal_size = 4MB
fsync = on
CONF
$node->append_conf('postgresql.conf', $conf);
$node->start;
$node->safe_psql('postgres', "CREATE TABLESPACE small LOCATION '$tables/space'");
$node->safe_psql('postgres', 'CREATE DATABASE shop TABLESPACE small');
$node->safe_psql('postgres', 'CREATE DATABASE till TABLESPACE small');
$node->safe_psql($_, 'CREATE EXTENSION outbox') foreach qw(shop till);
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

sub goes_on
{
	my ($name) = @_;
	ok($receiver->wait_new(50, '/ok/a'), "$name: deliveries go on");
	my $stored = $aws && scalar $aws->stored('q.fifo');
	ok((wait_until { $aws->stored('q.fifo') > $stored + 50 } 'entries in the queue'), "$name: so do those to a queue") if $aws;
	ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status", 't', 'shop'), "$name: a worker runs");
	return;
}

sub wait_log
{
	my ($pattern, $from, $name) = @_;
	return ok((wait_until { slurp_file($node->logfile, $from) =~ $pattern } $name), $name);
}

endpoint($node, $receiver, 'ok', '/ok/a', 'max_in_flight => 16', 'shop');
endpoint($node, $receiver, 'fails', '/fail/b?rate=0.2',
	"max_in_flight => 16, backoff_base => '20 ms', backoff_max => '200 ms'", 'shop');
$node->safe_psql('shop', "SELECT " . $aws->create_endpoint('queue', 'sqs', 'q.fifo', 'max_in_flight => 16')) if $aws;
my $producer = start_producer($node, $log, dbname => 'shop', rate => 200, keys => 8);
goes_on('at first');

# From 19 on statements that only read write visibility maps.
ok(wait_sql($node, "SELECT count(*) = 0 FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND pg_relation_size(oid, 'vm') = 0", 't', 'shop'),
	'each table has its map')
  if $node->pg_version >= 19;

# The tables: emitters get an error, the worker tries again until there is room
my $from = -s $node->logfile;
OutboxTest::Disks::fill('tables');
wait_log(qr/ERROR:  could not extend file.*No space left.*\n(?:.*HINT.*\n)?.*STATEMENT:.*outbox\.emit/,
	$from, 'no room for the tables: emit() says so');
ok( wait_sql($node, "SELECT count(*) > 0 FROM outbox.held_steps WHERE reason = 'resources' AND last_error ~ 'No space left'", 't', 'shop'),
	'the worker cannot write what it did: that is on hold');
ok(wait_sql($node, 'SELECT max(failures) >= 3 FROM outbox.held_steps', 't', 'shop'), 'it has tried several times');
is($node->safe_psql('shop', "SELECT pg_relation_size('outbox.reserve') >= 1.5 * 1024 * 1024"), 't', 'and has left the part of the reserve that is for changes');
OutboxTest::Disks::free('tables');
goes_on('room for the tables');
my $restarts = $node->safe_psql('shop', "SELECT restarts FROM outbox.workers WHERE datname = 'shop'");

# Returns the size of the reserve in "till", or NULL where it is locked.
sub reserve_of_till
{
	return scalar $node->safe_psql('till', "SET lock_timeout = '10 s'; SELECT pg_relation_size('outbox.reserve')");
}

# The runbook: what is to be given up is in a database of its own, and the producer goes on in the other one.
# A disk that is full stays so until the log gives something back: the ballast stays.  What the producer takes of the reserve
# before a command has it, the command gets when it is tried again.
sub emit_till
{
	return scalar $node->psql('till', "SELECT count(outbox.emit('invoice.created', jsonb_build_object('n', n, 'x',"
		  . " (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100) m WHERE m <> n)))) FROM generate_series(1, 1000) n");
}
endpoint($node, $receiver, 'billing', '/ok/billing', undef, 'till');
endpoint($node, $receiver, 'acme.a', '/ok/acme', "tenant => 'acme'", 'till');
$node->safe_psql('till', "CREATE ROLE portal; SELECT outbox.grant_to('portal', 'portal')");
$node->safe_psql('till', "SET ROLE portal; SELECT outbox.portal_pause_endpoint('acme', 'acme.a'), outbox.portal_resume_endpoint('acme', 'acme.a')");
$node->safe_psql('till', "SELECT outbox.pause_endpoint('billing')");
emit_till() while $node->safe_psql('till', 'SELECT log_bytes < 30000000 FROM outbox.status') eq 't';
$node->safe_psql('till', 'VACUUM outbox.endpoint_changes, outbox.commands');    # without rows they have no page then
OutboxTest::Disks::fill('tables');
emit_till() or fail('the disk is full') for 1 .. 3;

# What customers call leaves the reserve to the operator, whether it fails or is rolled back
foreach my $end (qw(COMMIT ROLLBACK))
{
	$node->psql('till', "SET ROLE portal; BEGIN; SELECT outbox.portal_${_}_endpoint('acme', 'acme.a'); $end") foreach (qw(pause resume)) x 5;
}
cmp_ok(reserve_of_till(), '>=', 1.5 * 1024 * 1024, 'calls of the portal leave the part of the reserve that is for changes');
my ($section) = slurp_file("$top/doc/runbook.md") =~ /^## The disk fills\n(.*?)^## /ms;

# Runs the commands of the runbook, in order.  Each has to work, unless it is named as one that may need room.
sub run_the_section
{
	my ($node, $dbname, $emit, %may) = @_;    # 'wait' for room, or 'end'
	my @later;
	my $room;

	foreach my $command ($section =~ /^```sql(?: superuser)?\n(.*?)^```$/msg)
	{
		if ($command =~ /reset/i && !$room)
		{
			$node->safe_psql($dbname, "SELECT outbox.set_retention(events => '2 s')");    # the test cannot wait for so long
			my $emits = sub { return (eval { $emit->() } // 1) == 0 || ($may{end} && $may{end}->() && 0) };
			ok((wait_until { $emits->() } 'room'), 'the log gives back what it had');
			$room = 1;
			is($node->psql($dbname, $_, on_error_stop => 1), 0, 'then: ' . (split /\n/, $_)[0]) foreach @later;
		}
		my ($rc, undef, $error) = $node->psql($dbname, $command, on_error_stop => 1);
		my $ended = $rc == 2 && $may{end} && wait_until { $may{end}->() } 'its end';    # a moment after its sessions
		($rc, undef, $error) = $node->psql($dbname, $command, on_error_stop => 1)
		  if $rc && ($ended || $error =~ /could not extend/ || ($error =~ /because of crash of another server process/ && $node->poll_query_until($dbname, 'SELECT true')) || ($may{end} && $may{end}->()));
		if ($rc && $may{wait} && $command =~ $may{wait} && $error =~ /could not write to file/)
		{
			push @later, $command;
			next;
		}
		is($rc, 0, 'on a full disk: ' . (split /\n/, $command)[0]) or diag($error);
	}
	return;
}
run_the_section($node, 'till', \&emit_till);
goes_on('room by the runbook');
ok(wait_sql($node, "SELECT pg_relation_size('outbox.reserve') >= 2 * 1024 * 1024", 't', 'till'), 'the reserve is there again');

# A part that a transaction has given up is not locked until it ends
OutboxTest::Disks::fill('tables');
my ($rc, $locks);
wait_until {
	($rc, $locks) = $node->psql('till', "BEGIN; SELECT outbox.pause_endpoint('billing');"
		  . " SELECT count(*) FROM pg_locks l WHERE l.relation = 'outbox.reserve'::regclass AND l.mode = 'AccessExclusiveLock'; ROLLBACK");
	$rc == 0
}
'a call that is carried out';
is($locks, "\n0", 'the reserve is free for others while a transaction is open');
cmp_ok(reserve_of_till(), '<', 2 * 1024 * 1024, 'that has given up a part');
OutboxTest::Disks::free('tables');
$node->safe_psql('till', "SELECT outbox.drop_endpoint('billing', discard => true)");

# The WAL: PostgreSQL ends, of itself
# (Segments that it may use again would let it go on for ever.)
$node->safe_psql('shop', "ALTER SYSTEM SET wal_keep_size = '1 GB'");
$node->reload;
ok(wait_sql($node, "SELECT current_setting('wal_keep_size') = '1GB'", 't', 'shop'), 'WAL is kept');
$from = -s $node->logfile;
OutboxTest::Disks::fill('wal');
wait_log(qr/PANIC:  could not (?:write to|extend) file.*No space left/, $from, 'no room for the WAL: PostgreSQL ends');
wait_until { !-e $node->data_dir . '/postmaster.pid' || process_is_gone($node->{_pid}) } 'it is gone';
OutboxTest::Disks::free('wal');
start_again($node);
$node->safe_psql('shop', 'ALTER SYSTEM RESET wal_keep_size');
$node->reload;
goes_on('room for the WAL');
stop_producer($producer);
my $repeated = ($restarts + 3) * 2 * (16 + 100);
$aws->check($node, $log, 'q.fifo', dbname => 'shop', max_duplicates => $repeated, name => 'the queue has everything, and each key in order') if $aws;
check_history($node, $receiver, $log, dbname => 'shop', endpoints => [ '/ok/a', '/fail/b' ],
	max_duplicates => $repeated,
	name => "nothing lost, and the order kept, through $restarts restarts of the worker and one of the server");

$node->stop;

# The data directory itself, with the WAL: PostgreSQL ends, and the runbook begins with room outside of its directories
my $data = OutboxTest::Disks::path('data');
mkdir "$data/pgdata", 0700 or die "$data/pgdata: $!\n";
my $whole = PostgreSQL::Test::Cluster->new('whole');
symlink "$data/pgdata", $whole->data_dir or die $whole->data_dir . ": $!\n";
$whole->init(extra => [ '--locale=C', '--encoding=UTF8', '--wal-segsize=1' ]);
$whole->append_conf('postgresql.conf', $conf);
$whole->start;
$whole->safe_psql('postgres', 'CREATE EXTENSION outbox');
endpoint($whole, $receiver, 'billing', '/ok/whole-billing', undef, 'postgres');
endpoint($whole, $receiver, 'well', '/ok/whole', "topics => '{well.*}'", 'postgres');
$whole->safe_psql('postgres', "SELECT outbox.pause_endpoint('billing')");
my $emit_whole = sub
{
	return scalar $whole->psql('postgres', "SELECT count(outbox.emit('invoice.created', jsonb_build_object('n', n, 'x',"
		  . " (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100) m WHERE m <> n)))) FROM generate_series(1, 1000) n");
};
$emit_whole->() while $whole->safe_psql('postgres', 'SELECT log_bytes < 30000000 FROM outbox.status') eq 't';
my $before = emit($whole, 'well.n', '{}');
OutboxTest::Disks::fill('data');
wait_until { $emit_whole->() != 0 } 'an error';
# Where it has ended, so much room as it takes to start, and no more
my $given = 0;
my $start_if_ended = sub
{
	return 0 unless process_is_gone($whole->{_pid}) || OutboxTest::is_zombie($whole->{_pid});
	for (;;)
	{
		truncate("$data/ballast", (-s "$data/ballast") - 1048576) or die "ballast: $!\n";
		last if ++$given > 40 || (eval { start_again($whole) } && $whole->psql('postgres', 'SELECT 1') == 0);
	}
	return 1;
};
$start_if_ended->();
run_the_section($whole, 'postgres', $emit_whole, wait => qr/ALTER SYSTEM/, end => $start_if_ended);
note("$given MB of room outside of its directories");
cmp_ok($given, '<=', 4, 'what PostgreSQL needs to start is enough room');
$receiver->wait_delivered(1, id => $before);
$receiver->wait_delivered(1, id => emit($whole, 'well.n', '{}'));
pass('deliveries go on');
$whole->stop;
done_testing();
