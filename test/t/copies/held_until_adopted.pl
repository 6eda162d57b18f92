# A copy of any kind sends nothing until it is adopted: template, clone, target of replication.
# So does a log that had no endpoint yet.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Copies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', streaming => 1, conf => <<'CONF');
wal_level = logical
outbox.instance_name = 'production'
CONF
my $receiver = OutboxTest::Receiver->new('main');
my $dir = PostgreSQL::Test::Utils::tempdir();

sub name_server
{
	my ($server, $name) = @_;
	$server->safe_psql('postgres', "ALTER SYSTEM SET outbox.instance_name = '$name'");
	$server->reload;
	return;
}

sub held
{
	my ($server, $dbname, $reason, $name) = @_;
	return ok(wait_sql($server, "SELECT state = 'held' AND reason LIKE '%$reason%' FROM outbox.status", 't', $dbname),
		$name);
}

endpoint($node, $receiver, $_, "/ok/$_", "topics => '{order.*}'") foreach qw(billing mail crm);
number_requests($node);
my $old = emit($node, 'order.delivered', '{"n": 1}');
$receiver->wait_delivered(1, path => "/ok/$_", id => $old) foreach qw(billing mail crm);
pause($node, $_) foreach qw(billing mail crm);
my @waiting = map { emit($node, 'order.waiting', "{\"n\": $_}", "key => 'k'") } 1 .. 5;
ok(wait_sql($node, "SELECT count(*) = 15 FROM outbox.deliveries WHERE status = 'pending'"), 'events wait');
$node->backup('clone');

# ---- a template, with the documents' own commands

my $text = PostgreSQL::Test::Utils::slurp_file("$top/doc/copies.md");
my ($commands) = $text =~ /^```sql copy\n(.*?)^```/ms;
$commands =~ s/127\.0\.0\.1:8080/127.0.0.1:$receiver->{port}/g;
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
held($node, 'copy', 'copy', 'a template copy is held');
$node->safe_psql('copy', "SELECT outbox.resume_endpoint('billing')");
my $mine = emit($node, 'order.copy', '{"n": 6}', "key => 'k'", 'copy');
my $expected = undelivered($node, 'copy');
is_deeply([ sort keys %{ $expected->{billing} } ], [ sort @waiting, $mine ], 'what it has to deliver');
my $out = $node->safe_psql('copy', $commands);
like($out, qr/^billing\|active\|\d+\|f\|/m, 'the documents: outbox.stats shows it before');
like($out, qr/^12$/m, 'and adopt() says how much it is');
compare_sent($receiver, 'billing-copy', [ @waiting, $mine ], 'template');
is_ordered($receiver, 'billing-copy', 'template');
is($node->safe_psql('copy', "SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'mail' AND status = 'pending'"),
	'6', 'what was paused waits');
ok(wait_sql($node, 'SELECT max(tick) > min(tick) FROM outbox.ticks', 't', 'copy'), 'the end of the log that was adopted is stored');
is($node->safe_psql('copy', 'SELECT max(seq_high) <= (SELECT last_value FROM outbox.events_seq) FROM outbox.ticks'), 't', 'with a number that there is');
kill_everything($node);
start_again($node);
is($node->safe_psql('copy', "SELECT count(outbox.emit('other.copy', '{}'))"), '1', 'after a restart events are emitted');
is(scalar(() = $receiver->requests(id => $waiting[0], path => '/ok/billing')), 0, 'the original is not concerned');

# ---- RENAME and SET TABLESPACE make no copy

mkdir "$dir/space" or die;
$node->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$dir/space'");
$node->safe_psql('postgres', $_) foreach 'ALTER DATABASE copy RENAME TO renamed', 'ALTER DATABASE renamed SET TABLESPACE space';
my $id = emit($node, 'order.renamed', '{"n": 7}', "key => 'k'", 'renamed');
$receiver->wait_delivered(1, path => '/ok/billing-copy', id => $id);
pass('renamed and moved to another tablespace: it goes on');

# ---- a physical clone

my $clone = PostgreSQL::Test::Cluster->new('clone');
$clone->init_from_backup($node, 'clone');
$clone->append_conf('postgresql.conf', "outbox.instance_name = 'staging'\n");
$clone->start;
held($clone, 'postgres', 'instance_name', 'a clone with another name is held');
$clone->safe_psql('postgres', 'SELECT outbox.resume_endpoint(name) FROM outbox.endpoints');
my $theirs = OutboxTest::Receiver->new('clone');
redirect($clone, 'postgres', $theirs, qw(billing mail crm));
nothing_arrives($theirs, 'and sends nothing', 0.5);
my $cloned = emit($clone, 'order.clone', '{"n": 8}', "key => 'k'");
is($clone->safe_psql('postgres', 'SELECT outbox.adopt()'), '18', 'adopted under its new name');
compare_sent($theirs, $_, [ @waiting, $cloned ], 'clone') foreach qw(billing mail crm);
name_server($clone, 'production');
held($clone, 'postgres', 'instance_name', 'the old name is a wrong one now');
$id = emit($clone, 'order.misnamed', '{"n": 9}');
name_server($clone, 'staging');
$theirs->wait_delivered(1, path => '/ok/billing', id => $id);
pass('named as it was adopted, it goes on');

# The worker's name is that of its start: it ends when the log is taken over
$clone->safe_psql('postgres', "SELECT outbox.pause_endpoint('mail')");
my @late = map { emit($clone, 'order.late', "{\"n\": $_}") } 10 .. 12;
$theirs->wait_delivered(1, path => '/ok/billing', id => $_) foreach @late;
my $worker = worker_pid($clone);
wait_until
{
	# not in the middle of a transaction, for whose locks adopt() would wait
	kill 'STOP', $worker;
	return 1 if $clone->safe_psql('postgres', "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = $worker)") eq 't';
	kill 'CONT', $worker;
	0
}
'the worker is stopped between two transactions';
name_server($clone, 'third');
ok(wait_sql($clone, "SELECT current_setting('outbox.instance_name') = 'third'"), 'renamed under a worker that does not see it');
is($clone->safe_psql('postgres', 'SELECT outbox.adopt() >= 3'), 't', 'and adopted');
kill 'CONT', $worker;
new_worker($clone, $worker);
like(PostgreSQL::Test::Utils::slurp_file($clone->logfile), qr/outbox worker ends: the log was adopted/,
	'it stores nothing any more: the log was not its own when it went on');
$clone->safe_psql('postgres', "SELECT outbox.resume_endpoint('mail')");
$theirs->wait_delivered(1, path => '/ok/mail', id => $_) foreach @late;
is(scalar(() = $theirs->requests(path => '/ok/mail', id => $late[0])), 1, 'each endpoint gets what it had not got');
$id = emit($clone, 'order.last', '{}');
$theirs->wait_delivered(1, path => "/ok/$_", id => $id) foreach qw(billing mail crm);
pass('new events flow');
$clone->stop;

# ---- a dump, restored into a clone of the database that it came from

endpoint($node, $receiver, 'ahead', '/ok/ahead', "topics => '{ahead}'");
$node->safe_psql('postgres', "CREATE TABLE burn AS SELECT 1; DO \$\$ BEGIN FOR i IN 1..3000 LOOP"
	  . " BEGIN INSERT INTO burn VALUES (1); EXCEPTION WHEN others THEN END; END LOOP; END \$\$");
my $ahead = emit($node, 'ahead', '{}');
wait_status($node, $ahead, 'delivered', 'the original is many transactions ahead of its clone');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/ahead", $node->connstr('postgres') ], 'pg_dump');
foreach my $name (qw(staging production))
{
	my $restored = PostgreSQL::Test::Cluster->new("restored_$name");
	$restored->init_from_backup($node, 'clone');
	$restored->append_conf('postgresql.conf', "outbox.instance_name = '$name'\noutbox.enabled = off\n");
	$restored->start;
	$restored->command_ok([ 'pg_restore', '--clean', '--if-exists', '--exit-on-error', '-d', $restored->connstr('postgres'), "$dir/ahead" ],
		'pg_restore --clean');
	redirect($restored, 'postgres', $theirs, 'ahead');
	my $here = emit($restored, 'ahead', '{}');
	$restored->append_conf('postgresql.conf', "outbox.enabled = on\n");
	$restored->reload;
	held($restored, 'postgres', 'restored', "a dump is held in a clone of the database that it came from ($name)");
	$restored->safe_psql('postgres', 'SELECT outbox.adopt()');
	$theirs->wait_delivered(1, path => '/ok/ahead', id => $here);
	is(scalar(() = $theirs->requests(path => '/ok/ahead', id => $ahead)), 0, 'adopted, it sends what was emitted there, and nothing again');
	$restored->stop;
}
$node->safe_psql('postgres', 'DROP TABLE burn');

# ---- a target of logical replication

my $target = outbox_node('target', conf => "wal_level = logical\n");
my $third = OutboxTest::Receiver->new('target');
my $connstr = $node->connstr('postgres') =~ s/'/''/gr;
endpoint($target, $third, 'own', '/ok/own', "topics => '{order.*,own.*}'");
number_requests($target);
$_->safe_psql('postgres', 'CREATE TABLE orders (n int PRIMARY KEY)') foreach $node, $target;
$target->safe_psql('postgres', <<'SQL');
CREATE FUNCTION emit_own() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.emit('own.trigger', to_jsonb(NEW), key => 'k', dedup_key => NEW.n::text);
    RETURN NULL;
END $$;
CREATE TRIGGER emit_own AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION emit_own();
ALTER TABLE orders ENABLE REPLICA TRIGGER emit_own;
SQL
$node->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$target->safe_psql('postgres',
	"CREATE SUBSCRIPTION everything CONNECTION '$connstr' PUBLICATION everything");
$target->wait_for_subscription_sync($node, 'everything');
my $replicated = emit($node, 'order.replicated', '{}');
$node->wait_for_catchup('everything');
is($target->safe_psql('postgres', "SELECT count(*) FROM outbox.events WHERE id = '$replicated'"), 0, 'an event of the publisher stays there');
my $own = emit($target, 'own.one', '{}');
$third->wait_delivered(1, path => '/ok/own', id => $own);
pass('the events of the target itself are delivered');
nothing_arrives($third, 'those of the publisher are not', 0.5, id => $replicated);

# What the publisher's worker and users write about their log stays out: their
# first endpoint has the number of the first one here
$target->safe_psql('postgres', "SELECT outbox.pause_endpoint('own')");
my @own = map { emit($target, 'own.waits', "{\"n\": $_}", "key => 'k'") } 1 .. 5;
ok(wait_sql($target, "SELECT pending = 5 FROM outbox.stats WHERE endpoint = 'own'"), 'events of the target wait');
my $settings = "SELECT s FROM outbox.endpoint_settings s WHERE name = 'own'";
my $before = $target->safe_psql('postgres', $settings);
my $same = emit($node, 'order.same', '{}', "dedup_key => 'same'");
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('billing')");
$receiver->wait_delivered(1, path => '/ok/billing', id => $same);
ok(wait_sql($node, "SELECT pending + processing = 0 FROM outbox.stats WHERE endpoint = 'billing'"), 'the publisher delivers');
$node->wait_for_catchup('everything');
is($target->safe_psql('postgres', $settings), $before, 'its endpoint is as it was');
push @own, emit($target, 'order.same', '{}', "dedup_key => 'same'");
isnt($own[-1], $same, 'and its deduplication keys are');
$node->safe_psql('postgres', 'INSERT INTO orders VALUES (1), (2)');
$node->wait_for_catchup('everything');
push @own, split /\n/, $target->safe_psql('postgres', "SELECT id FROM outbox.events WHERE topic = 'own.trigger'");
is(scalar @own, 8, 'what a trigger here emits for replicated rows is its own');
$node->safe_psql('postgres', 'TRUNCATE outbox.events_0');
$node->safe_psql('postgres', 'INSERT INTO orders VALUES (3)');
ok(wait_sql($target, 'SELECT count(*) = 3 FROM orders'), 'a piece of the log that is emptied there: the subscription goes on');
push @own, $target->safe_psql('postgres', "SELECT id FROM outbox.events WHERE topic = 'own.trigger' ORDER BY seq DESC LIMIT 1");
my $reads = worker_pid($target);
$target->safe_psql('postgres', "SELECT pg_terminate_backend($reads)");
new_worker($target, $reads);
$target->safe_psql('postgres', "SELECT outbox.resume_endpoint('own')");
$third->wait_delivered(1, path => '/ok/own', id => $_) foreach @own;
is_ordered($third, 'own', 'target');
nothing_arrives($third, 'nothing of the publisher is sent', 0.5, id => $same);
endpoint($target, $third, 'more', '/ok/more');
pass('an endpoint can be made meanwhile');
$target->safe_psql('postgres', 'DROP SUBSCRIPTION everything');
$target->stop;

# ---- a log that had no endpoint: its events lie in the past

my $unused = outbox_node('unused');
$unused->safe_psql('postgres', "CREATE TABLE burn AS SELECT 1; DO \$\$ BEGIN FOR i IN 1..3000 LOOP"
	  . " BEGIN INSERT INTO burn VALUES (1); EXCEPTION WHEN others THEN END; END LOOP; END \$\$");
my @unclaimed = map { emit($unused, 'order.unclaimed', "{\"n\": $_}") } 1 .. 3;
$unused->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/unused", $unused->connstr('postgres') ], 'pg_dump');
my $fresh = outbox_node('fresh', extension => 0);
$fresh->command_ok([ 'pg_restore', '--exit-on-error', '-d', $fresh->connstr('postgres'), "$dir/unused" ], 'pg_restore');
is( $fresh->safe_psql('postgres',
		'SELECT bool_and(xid >= pg_snapshot_xmax(pg_current_snapshot())) FROM outbox.events'),
	't', 'events of transactions that this system has yet to get to');
endpoint($fresh, $third, 'now', '/ok/now');
endpoint($fresh, $third, 'beginning', '/ok/beginning', "start_at => 'beginning'");
compare_sent($third, 'beginning', \@unclaimed, 'from the beginning');
$fresh->safe_psql('postgres', "DO \$\$ BEGIN FOR i IN 1..6000 LOOP"
	  . " BEGIN INSERT INTO burn VALUES (1); EXCEPTION WHEN others THEN END; END LOOP; END \$\$");
$id = emit($fresh, 'order.fresh', '{}');
$third->wait_delivered(1, path => '/ok/now', id => $id);
is(join(' ', sent_to($third, 'now')), $id, 'from now on: not even when it gets to them');

$_->stop foreach $unused, $fresh, $node;
done_testing();
