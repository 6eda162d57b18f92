# The memory of a worker does not grow with the number of parked deliveries.
# There are 300,000 of each kind here, on a worker that starts, and 5,000,000 in
# "make torture".
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Parked;
use Test::More;
use Time::HiRes qw(time);

my $n = 300_000;
my $node = outbox_node('main', conf => "shared_buffers = 256MB\nmax_wal_size = 4GB\nsynchronous_commit = off\n");
my $receiver = OutboxTest::Receiver->new('main');
my $idle = private_memory(worker_pid($node));

OutboxTest::Parked::fill($node, $receiver, $n);
my $free = emit($node, 'dead.free', '{}', "key => 'free'");
my $behind = emit($node, 'dead.behind', '{}', "key => 'k7'");
my $begun = time;
my $pid = OutboxTest::Parked::go($node);
$receiver->wait_delivered(1, id => $free);
my $first = time - $begun;
my $peak = OutboxTest::Parked::peak($pid, sub { OutboxTest::Parked::counted($node, $n) }, 120);

cmp_ok($peak - $idle, '<', 64, 'MB above what an idle worker has')
  unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
diag(sprintf('%d rows of each kind: %.0f MB above an idle worker, first delivery %.1f s after the server began to start',
		$n, $peak - $idle, $first));
is($pid, worker_pid($node), 'the same worker all the time');

# Each key is known for what is parked of it.
wait_status($node, $behind, 'blocked', 'behind a dead head that no memory holds');
my %id = map { $_ => emit($node, "$_.more", '{}', "key => 'k7'") } qw(retrying blocked cancelled);
wait_status($node, $id{retrying}, 'blocked', 'behind a retry that no memory holds');
wait_status($node, $id{blocked}, 'blocked', 'behind followers');
$receiver->wait_delivered(1, id => $id{cancelled});
pass('what was cancelled blocks nothing');

# So are more keys at once than the table is asked for at once.
ask("SELECT count(outbox.emit('retrying.many', '{}'::jsonb, key => 'k' || n)) FROM generate_series(1001, 2024) n");
ok(wait_sql($node, "SELECT blocked = 1025 FROM outbox.stats WHERE endpoint = 'retrying'"), 'many keys at once: all are blocked');
is(scalar(grep { $_->{topic} eq 'retrying.many' } $receiver->requests), 0, 'and none is sent');

# A head ends: those behind it come, and they alone.
ask(q{INSERT INTO outbox.commands (endpoint_id, action, seq) SELECT endpoint_id, 'discard', seq FROM outbox.parked}
	  . q{ JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'dead' AND key = 'k7' AND status = 'dead'});
ask(q{INSERT INTO outbox.commands (endpoint_id, action, seq) SELECT endpoint_id, 'cancel', seq FROM outbox.parked}
	  . q{ JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'retrying' AND key = 'k7' AND status = 'retrying'});
ask('SELECT outbox.endpoint_changed(0)');
$receiver->wait_delivered(1, id => $behind);
$receiver->wait_delivered(1, id => $id{retrying});
pass('discarded, and cancelled: what was behind them comes');
wait_status($node, $id{blocked}, 'blocked', 'what is behind another head does not');
ok(wait_sql($node, "SELECT dead = $n - 1 FROM outbox.stats WHERE endpoint = 'dead'"), 'and they are counted');
$node->stop;
done_testing();
