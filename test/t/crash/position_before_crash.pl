# A position that is stored before a crash passes over no event that is emitted after it.
# A position is a snapshot.  After a crash the server assigns xids again that had left
# no trace in the WAL, and a stored position must not count such an xid as seen.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => "autovacuum = off\n");
my $receiver = OutboxTest::Receiver->new('main');

# Workers that do nothing after the crash either
sub enable
{
	my ($on) = @_;

	ask("ALTER SYSTEM SET outbox.enabled = $on");
	ask('SELECT pg_reload_conf()');
	return;
}

# Workers stopped between two transactions: nothing but the place itself gets into
# the WAL, and nothing waits for them.
sub stop_workers
{
	return wait_until
	{
		my @pids = split /\n/, ask("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%worker%'");
		my $list = join ',', @pids, 0;
		kill 'STOP', @pids;
		return 1 if @pids && ask("SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid IN ($list))") eq 't';
		kill 'CONT', @pids;
		0
	}
	'the workers are stopped';
}

# Stores a place while another session has begun subtransactions that only wrote
# to a temporary table.  Their xids are higher than the one of the place's own
# transaction.  Then everything is killed, and 40 events are emitted.
sub crash_after
{
	my ($name, $sql, $subxids, $dbname) = @_;
	my $maker = $node->background_psql($dbname);
	my $other = $node->background_psql('postgres');
	my $topic = "t" . $name =~ s/\W/_/gr;

	$other->query_safe('CREATE TEMP TABLE scratch (n int)');
	$maker->query_safe('BEGIN');
	$maker->query_safe('SELECT pg_current_xact_id()');
	$other->query_safe('BEGIN');
	$other->query_safe("DO \$\$ BEGIN FOR i IN 1..$subxids LOOP"
		  . " BEGIN INSERT INTO scratch VALUES (i); EXCEPTION WHEN others THEN NULL; END; END LOOP; END \$\$");
	stop_workers();
	$maker->query_safe($sql);
	$maker->query_safe('COMMIT');
	kill_everything($node);
	eval { $_->quit } foreach $maker, $other;
	start_again($node);
	my @ids = split /\n/, ask(join('', map { "SELECT outbox.emit('$topic.n', '{\"n\": $_}'::jsonb);\n" } 1 .. 40), $dbname);
	is(scalar @ids, 40, "$name: 40 events are emitted after the crash");
	return @ids;
}

sub arrive
{
	my ($name, $path, @ids) = @_;

	wait_until { my %got = map { $_->{id} => 1 } $receiver->delivered(path => $path); !grep { !$got{$_} } @ids } "$name: they arrive";
	my %got = map { $_->{id} => 1 } $receiver->delivered(path => $path);
	is(scalar(grep { $got{$_} } @ids), 40, "$name: all of them are delivered");
	return;
}

sub crash_and_look
{
	my ($name, $path, $sql, $subxids, $dbname) = @_;

	enable('off');
	my @ids = crash_after($name, $sql, $subxids, $dbname // 'postgres');
	enable('on');
	arrive($name, $path, @ids);
	return;
}

endpoint($node, $receiver, 'first', '/ok/first');
my $url = $receiver->url('/ok');
crash_and_look("create$_", "/ok/create$_", "SELECT outbox.create_endpoint('create$_', '$url/create$_')", $_)
  foreach 30, 100;
crash_and_look('seek', '/ok/create30', "SELECT outbox.seek_endpoint('create30', 'now')", 100);

# A copy that becomes a log of its own
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
crash_and_look('adopt', '/ok/create100', 'SELECT outbox.adopt()', 100, 'copy');

# A worker that works stores places all the time: a loop, with a producer that
# makes subtransactions, too.  It has a rate, so that it lasts until the crash and
# leaves the processor to the others.
foreach my $round (1 .. 5)
{
	my $busy = $node->background_psql('postgres');

	$busy->query_safe('CREATE TEMP TABLE scratch (n int)');
	$busy->query_until(qr/busy/, "\\echo busy\nDO \$\$ BEGIN FOR i IN 1..100000 LOOP"
		  . " BEGIN INSERT INTO scratch VALUES (i); EXCEPTION WHEN others THEN NULL; END;"
		  . " IF i % 20 = 0 THEN PERFORM pg_sleep(0.001); END IF; END LOOP; END \$\$;\n");
	my $id = emit($node, 'loop.before', "{\"n\": $round}");
	$receiver->wait_delivered(1, path => '/ok/first', id => $id);
	ask("SELECT outbox.create_endpoint('loop$round', '$url/loop$round', topics => '{loop.*}')");
	kill_everything($node);
	eval { $busy->quit };
	start_again($node);
	my @ids = split /\n/, ask(join('', map { "SELECT outbox.emit('loop.n', '{\"n\": $_}'::jsonb);\n" } 1 .. 40));
	arrive("round $round, $_", "/ok/$_", @ids) foreach 'first', "loop$round";
}

$node->stop;
done_testing();
