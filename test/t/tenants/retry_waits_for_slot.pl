# A retry that is due waits for its tenant's slot: the worker sleeps, and sends it when one is free.
# So does a probe, where the breaker of the endpoint is open.
use strict;
use warnings;

use OutboxTest;
use Test::More;
use Time::HiRes 'time';

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub emit_to
{
	my ($topic, $count) = @_;
	return ask("SELECT count(outbox.emit('$topic', '{}', tenant => 't')) FROM generate_series(1, $count)");
}

# Another endpoint of the tenant has its only slot for a time.
sub while_held
{
	my ($n, $then) = @_;
	my $pid = worker_pid($node);

	emit_to("held.$n", 1);
	ok(wait_sql($node, "SELECT processing = 1 FROM outbox.stats WHERE endpoint = 'held.$n'"), 'the only slot is taken');
	ok(wait_sql($node, "SELECT state <> 'paused' AND retrying > 0 AND processing = 0 AND coalesce(next_attempt_at < clock_timestamp() - interval '0.1 s', true)"
			  . " FROM outbox.stats WHERE endpoint = 'fails.$n'"), 'meanwhile a retry is due');
	sleeps_meanwhile($pid, 20, 'the worker sleeps',
		sub { is(ask("SELECT outbox.wait_for((SELECT id FROM outbox.events WHERE topic = 'held.$n'), '2 s')"), 'f', 'the slot is not free') });
	$then->();
	my $begun = time;
	$receiver->control(path => "/hold/$n", behave => '/ok');
	ok(wait_sql($node, "SELECT delivered > 0 FROM outbox.stats WHERE endpoint = 'fails.$n'"), 'it gets the slot');
	cmp_ok(time - $begun, '<', 30, 'as soon as that is free');
	return;
}

sub limit
{
	my ($slots) = @_;
	ask("SELECT outbox.set_tenant_limits('t', max_in_flight => $slots)");
	return;
}

limit(1);
foreach my $n (1, 2)
{
	endpoint($node, $receiver, "held.$n", "/hold/$n", "topics => '{held.$n}', tenant => 't', timeout => '5 min'");
	endpoint($node, $receiver, "fails.$n", "/status/500/$n",
		"topics => '{fails.$n}', tenant => 't', ordering => 'none', backoff_base => '2 s', backoff_max => '2 s'");
}

emit_to('fails.1', 1);
ok(wait_sql($node, "SELECT retrying = 1 FROM outbox.stats WHERE endpoint = 'fails.1'"), 'one has failed');
while_held(1, sub { $receiver->control(path => '/status/500/1', behave => '/ok') });

# All of its events have failed, so that the probe is one of them.
limit(50);
emit_to('fails.2', 30);
ok(wait_sql($node, "SELECT state = 'backing_off' AND retrying = 30 AND pending = 0 FROM outbox.stats WHERE endpoint = 'fails.2'"),
	'the breaker of one is open');
limit(1);
while_held(2, sub { $receiver->control(path => '/status/500/2', behave => '/ok') });
done_testing();
