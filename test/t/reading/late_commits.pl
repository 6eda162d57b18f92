# An event whose transaction commits late is delivered, although later numbers were read before.
# Numbers are handed out before the commit, so a reader that takes "everything above the
# last number" would lose such events.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/a');

# A transaction with a lower xid and seq, open for long
my $late = $node->background_psql('postgres');
$late->query_safe('BEGIN');
my $late_id = $late->query_safe(
	q{SELECT outbox.emit('late.one', '{}'::jsonb, key => 'late')});
my @others = map { emit($node, 'early.one', "{\"n\": $_}", "key => 'early'") } 1 .. 5;
$receiver->wait_delivered(5, key => 'early');
pass('others flow meanwhile');
is(scalar(() = $receiver->requests(id => $late_id)), 0, 'it is not sent before its commit');
$late->query_safe('COMMIT');
$receiver->wait_delivered(1, id => $late_id);
pass('it is delivered after its commit');

# Many of them, committed in the reverse order, some rolled back
my @sessions = map { $node->background_psql('postgres') } 1 .. 6;
my @ids;
foreach my $session (@sessions)
{
	$session->query_safe('BEGIN');
	push @ids,
	  $session->query_safe(q{SELECT outbox.emit('late.many', '{}'::jsonb)});
	emit($node, 'early.two', '{}');
}
foreach my $i (reverse 0 .. $#sessions)
{
	$sessions[$i]->query_safe($i % 3 == 1 ? 'ROLLBACK' : 'COMMIT');
	emit($node, 'early.three', '{}');
}
wait_settled($node);
foreach my $i (0 .. $#sessions)
{
	my $n = () = $receiver->delivered(id => $ids[$i]);
	is($n, $i % 3 == 1 ? 0 : 1,
		"transaction $i: " . ($i % 3 == 1 ? 'rolled back, never sent' : 'sent once'));
}

# The order of two transactions is that of their emits, not of their xids: the
# one with the lower xid waits for the other's row lock, and emits after it.
$node->safe_psql('postgres',
	'CREATE TABLE accounts (id int PRIMARY KEY, n int);'
	  . ' INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 20) i');
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('all')");
my ($first, $second) = map { $node->background_psql('postgres') } 1 .. 2;
my $change = sub {
	my ($i, $n) = @_;
	return "SELECT outbox.emit('account.changed', jsonb_build_object('n', $n),"
	  . " key => 'account $i')";
};
foreach my $i (1 .. 20)
{
	$second->query_safe('BEGIN');
	$second->query_safe('SELECT pg_current_xact_id()');
	$first->query_safe('BEGIN');
	$first->query_safe("UPDATE accounts SET n = 1 WHERE id = $i");
	$second->query_until(qr/waiting/, <<"SQL");
\\echo waiting
UPDATE accounts SET n = 2 WHERE id = $i;
SQL
	wait_sql($node, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted');
	$first->query_safe($change->($i, 1));
	$first->query_safe('COMMIT');
	$second->query_safe($change->($i, 2));
	$second->query_safe('COMMIT');
}
is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM outbox.events a JOIN outbox.events b"
		  . " ON a.key = b.key AND a.seq < b.seq AND a.xid > b.xid"),
	'20', 'twenty pairs whose xids are the other way round');
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('all')");
my $wrong = 0;
foreach my $i (1 .. 20)
{
	my @got = $receiver->wait_for(2, key => "account $i");
	my @n = map { JSON::PP::decode_json($_->{body})->{data}{n} } @got;
	$wrong++ unless "@n" eq '1 2';
}
is($wrong, 0, 'all are delivered in the order of their emits');
$first->quit;
$second->quit;

# Two that are late together come in the order of their emits, too: the worker
# has seen both open, and looks again when both are committed.
($first, $second) = map { $node->background_psql('postgres') } 1 .. 2;
foreach my $session ($second, $first)
{
	$session->query_safe('BEGIN');
	$session->query_safe('SELECT pg_current_xact_id()');
}
$first->query_safe(q{SELECT outbox.emit('late.pair', '{"n": 1}'::jsonb, key => 'pair')});
$second->query_safe(q{SELECT outbox.emit('late.pair', '{"n": 2}'::jsonb, key => 'pair')});
$receiver->wait_delivered(1, id => emit($node, 'early.pair', '{}'));
my $turn = sub {
	my ($enabled, $state) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET outbox.enabled = $enabled");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
	return ok(wait_sql($node, 'SELECT state FROM outbox.workers', $state), "the worker is $state");
};
$turn->('off', 'disabled');
$_->query_safe('COMMIT') foreach $first, $second;
$turn->('on', 'running');
is( join(' ', map { JSON::PP::decode_json($_->{body})->{data}{n} }
		  $receiver->wait_delivered(2, key => 'pair')),
	'1 2', 'of two late ones the first emit comes first');
is( $node->safe_psql('postgres', "SELECT count(*) FROM outbox.events a JOIN outbox.events b"
		  . " USING (key) WHERE key = 'pair' AND a.seq < b.seq AND a.xid > b.xid"),
	'1', 'whose xid is the higher one');
$_->quit foreach $first, $second;

# An event that commits while those around it are being read does not belong to this
# tick: it comes with the next one, once.  The receiver holds the first requests until then,
# and the worker has read no more than an endpoint may have waiting.
endpoint($node, $receiver, 'amid', '/ok/amid', "topics => '{amid.*}', ordering => 'none'");
$receiver->control(path => '/ok/amid', behave => '/hold');
my $amid = $node->background_psql('postgres');
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('amid')");
my $many = q{SELECT count(outbox.emit('amid.n', '{}'::jsonb)) FROM generate_series(1, 2500)};
$node->safe_psql('postgres', $many);
$amid->query_safe('BEGIN');
my $among = $amid->query_safe(q{SELECT outbox.emit('amid.late', '{}'::jsonb)});
$node->safe_psql('postgres', $many);
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('amid')");
$receiver->wait_for(1, path => '/ok/amid');
$amid->query_safe('COMMIT');
$amid->quit;
$receiver->control(path => '/ok/amid', behave => '/ok');
$receiver->wait_delivered(1, path => '/ok/amid', id => $among);
$receiver->wait_delivered(1, path => '/ok/amid', id => emit($node, 'amid.last', '{}'));
wait_settled($node);
is(scalar(() = $receiver->requests(path => '/ok/amid', id => $among)), 1, 'committed amid what was read: sent once');
is(scalar(() = $receiver->requests(path => '/ok/amid')), 5002, 'and so is all the rest');

# Another session holds the oldest xid, without any event
my $idle = $node->background_psql('postgres');
$idle->query_safe('BEGIN');
$idle->query_safe('SELECT pg_current_xact_id()');
my $id = emit($node, 'early.four', '{}');
$receiver->wait_delivered(1, id => $id);
pass('an idle transaction with an older xid delays no event');
$idle->query_safe('COMMIT');
$idle->quit;

$_->quit foreach @sessions, $late;
$node->stop;
done_testing();
