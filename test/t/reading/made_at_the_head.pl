# An endpoint that was just made gets the events from its start on, and none before.
# It rests at once.  Its start and the place of the head may see different transactions.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => "outbox.wakeup_interval = '60 s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $pid;

sub open_with_event
{
	my $session = $node->background_psql('postgres', on_error_stop => 1);
	my $id = $session->query_safe("BEGIN; SELECT outbox.emit('late', '{}')");
	return ($session, $id);
}

sub made
{
	my ($name) = @_;
	endpoint($node, $receiver, $name, "/ok/$name", "topics => '{late}'");
	return;
}

# The worker has a tick that lists the transactions that are open now.
sub read_log
{
	$receiver->wait_delivered(1, path => '/ok/all', id => emit($node, 'other', '{}'));
	ok(wait_settled($node), 'settled');
	return;
}

sub got
{
	my ($name, $id, $wanted, $what) = @_;
	is(scalar($receiver->delivered(path => "/ok/$name", id => $id)), $wanted, $what);
	return;
}

endpoint($node, $receiver, 'all', '/ok/all');
my ($before, $id_before) = open_with_event();
my ($after, $id_after) = open_with_event();
read_log();

# One of the two commits before the endpoint is made.  The head has not read it yet.
$pid = worker_pid($node);
kill 'STOP', $pid;
$before->query_safe('COMMIT');
made('first');
kill 'CONT', $pid;
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.stats WHERE endpoint = 'first' AND pending_exact"), 'it is known');
$receiver->wait_delivered(1, path => '/ok/all', id => $id_before);
made('second');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.stats WHERE endpoint = 'second' AND pending_exact"), 'so is one that is made at the head');
$after->query_safe('COMMIT');
$receiver->wait_delivered(1, path => "/ok/$_", id => $id_after) foreach qw(all first second);
$receiver->wait_delivered(1, path => "/ok/$_", id => emit($node, 'late', '{}')) foreach qw(all first second);
ok(wait_settled($node), 'settled');
foreach my $name (qw(first second))
{
	got($name, $id_before, 0, "$name: not the event that was committed before its start");
	got($name, $id_after, 1, "$name: once the event that was committed after it");
}

# After a restart each is at its place, also one that was made just before.
kill 'STOP', worker_pid($node);
made('third');
my $id = emit($node, 'late', '{}');
kill_everything($node);
start_again($node);
$receiver->wait_delivered(1, path => "/ok/$_", id => $id) foreach qw(first second third);
ok(wait_settled($node), 'settled');
got($_, $id_before, 0, "$_: nothing from before its start") foreach qw(first second third);
got($_, $id, 1, "$_: once what came after it") foreach qw(first second third);
$_->quit foreach $before, $after;

# Transactions without an event that have ended since their start are looked for once, and not for each of many.
my $many = 200;
my @open = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 10;
my $maker = $node->background_psql('postgres', on_error_stop => 1);
my $looks = "SELECT sum(seq_scan + idx_scan) FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname ~ '^events_[0-9]\$'";
$_->query_safe('BEGIN; SELECT pg_current_xact_id()') foreach @open;
$maker->query_safe("BEGIN; SELECT count(outbox.create_endpoint('many' || n, '" . $receiver->url('/ok/many') . "', topics => '{none}')) FROM generate_series(1, $many) n");
$_->query_safe('COMMIT') foreach @open;
replace_worker($node);
ok(wait_sql($node, "SELECT state FROM outbox.workers", 'running'), 'the head sees that they have ended');
my $looked = ask($looks);
$maker->query_safe('COMMIT');
ok(wait_sql($node, "SELECT count(*) = $many FROM outbox.stats WHERE endpoint LIKE 'many%' AND pending_exact"), 'many are made');
$_->quit foreach @open, $maker;
replace_worker($node);
cmp_ok(ask($looks) - $looked, '<', 5 * $many, 'the log is asked less often than for each endpoint and transaction');
is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');
$node->stop;
done_testing();
