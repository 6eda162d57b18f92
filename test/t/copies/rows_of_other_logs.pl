# Rows of another log with our numbers are not sent, and hide or replace none of our events.
# A subscription or a restore may have brought them.  Every place is tried where an
# event is looked up by its number.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $soon = "backoff_base => '10 ms', backoff_max => '10 ms'";

# The next n numbers of ours are those of rows of another log, too.  These come
# first in the index, and one number more has a third row.
sub twins
{
	my ($name, $n) = @_;

	ask('INSERT INTO outbox.events (id, seq, epoch, topic, key, payload)'
		  . " SELECT gen_random_uuid(), s.last_value + g.n, e.epoch, '$name.foreign', 'k', '{\"n\": -1}'"
		  . " FROM outbox.events_seq s, (VALUES (77, $n), (78, 1)) e (epoch, n), generate_series(1, e.n) g (n)");
	return;
}

# Emits n events with the numbers of rows of the other log.
sub emit_among
{
	my ($name, $n, $key) = @_;

	twins($name, $n);
	return split /\n/, ask("SELECT outbox.emit('$name.ours', jsonb_build_object('n', n), key => $key) FROM generate_series(1, $n) n");
}

sub numbers_of
{
	my ($path) = @_;
	return map { JSON::PP::decode_json($_->{body})->{data}{n} } $receiver->delivered(path => $path);
}

# Emits one more event, and waits until nothing of the endpoint is left.
sub wait_for_end
{
	my ($name, $path) = @_;
	my $last = emit($node, "$name.last", '{"n": 0}');

	$receiver->wait_delivered(1, path => $path, id => $last);
	ok(wait_sql($node, "SELECT pending + processing + retrying + blocked = 0 FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: nothing is left");
	return $last;
}

emit($node, 'no.one', '{}');

# ---- read: a page may end between two rows of one number

endpoint($node, $receiver, 'read', '/ok/read', "topics => '{read.*}'");
my @ours = emit_among('read', 3000, 'NULL');
push @ours, wait_for_end('read', '/ok/read');
my %got = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/read');
is(scalar(grep { !$got{$_} } @ours), 0, 'read: none of ours is missing');
is(scalar(keys %got), 3001, 'read: and there is no other');
ask("SELECT outbox.seek_endpoint('read', 'beginning')");
$receiver->wait_delivered(2, path => '/ok/read', id => $ours[-1]);
ok(wait_sql($node, "SELECT pending + processing = 0 FROM outbox.stats WHERE endpoint = 'read'"), 'read again');
my %times;
$times{ $_->{id} }++ foreach $receiver->delivered(path => '/ok/read');
is(scalar(grep { ($times{$_} // 0) != 2 } @ours), 0, 'read again: none of ours is missing');
is(scalar(keys %times), 3001, 'read again: and there is no other');

# ---- fails once: heads and followers come back from outbox.parked by number

endpoint($node, $receiver, 'retry', '/flaky/retry?first=1', "topics => '{retry.*}', $soon");
emit_among('retry', 20, "'k'");
wait_for_end('retry', '/flaky/retry');
is(join(' ', grep { $_ != 0 } numbers_of('/flaky/retry')), join(' ', 1 .. 20), 'retry: ours, in order');
is(scalar(() = $receiver->requests(path => '/flaky/retry', topic => 'retry.foreign')), 0, 'retry: and there is no other');

# ---- in flight when the worker ends: read again by number

endpoint($node, $receiver, 'held', '/hold/held', "topics => '{held.*}'");
@ours = emit_among('held', 3, 'NULL');
$receiver->wait_for(3, path => '/hold/held');
ok(wait_sql($node, "SELECT cardinality(outbox.pending_seqs(pending)) = 3 FROM outbox.endpoint_positions WHERE name = 'held'"), 'held: stored');
my $worker = worker_pid($node);
ask("SELECT pg_terminate_backend($worker)");
new_worker($node, $worker);
$receiver->control(path => '/hold/held', behave => '/ok');
$receiver->wait_delivered(1, path => '/hold/held', id => $_) foreach @ours;
wait_for_end('held', '/hold/held');
is(scalar(() = $receiver->requests(path => '/hold/held', topic => 'held.foreign')), 0, 'held: ours, and there is no other');

# ---- taken back before it is read

endpoint($node, $receiver, 'cancel', '/ok/cancel', "topics => '{cancel.*}'");
ask("SELECT outbox.pause_endpoint('cancel')");
my ($cancelled) = emit_among('cancel', 1, 'NULL');
is(ask("SELECT outbox.cancel('$cancelled')"), 't', 'cancel: an event that waits');
wait_status($node, $cancelled, 'cancelled', 'cancel: it is cancelled');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), '0', 'cancel: no worker failed');
is(ask("SELECT count(*) FROM outbox.all_events WHERE topic = 'cancel.foreign'"), '0', 'what is of another log is no event of ours');
ask("SELECT outbox.resume_endpoint('cancel')");

# ---- dead, and then its piece of the log goes

endpoint($node, $receiver, 'dead', '/ok/dead', "topics => '{dead.*}', max_attempts => 1");
$receiver->control(path => '/ok/dead', behave => '/status/500');
my ($dead) = emit_among('dead', 1, 'NULL');
wait_status($node, $dead, 'dead', 'dead');
is(ask("SELECT string_agg(event_id || ' ' || payload, ',') FROM outbox.dead_letters"), "$dead {\"n\": 1}",
	'dead: the dead letter is ours');
is(ask("SELECT outbox.retry('dead', topics => '{dead.foreign}')"), '0', 'dead: it has the topic of ours');
ask("ALTER SYSTEM SET outbox.retention = '2 s'");
ask('SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id = '$dead')"), 'dead: its piece is emptied');
is(ask("SELECT string_agg(id::text, ',') FROM outbox.kept_events"), $dead, 'dead: our event is kept, and no other');
$receiver->control(path => '/ok/dead', behave => '');
is(ask("SELECT outbox.retry('dead')"), '1', 'dead: tried again');
$receiver->wait_delivered(1, path => '/ok/dead', id => $dead);
is(scalar(() = $receiver->requests(path => '/ok/dead', topic => 'dead.foreign')), 0, 'dead: ours is sent');

$node->stop;
done_testing();
