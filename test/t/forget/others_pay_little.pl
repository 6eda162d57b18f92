# Calls of forget() that are complete, and commands of others, are not read again and again.
# Many calls are carried out together, and endpoints that have nothing of a tenant are left alone.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $many = 5000;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub read_of { return ask("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = '$_[0]'") }

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{order.*}'");
endpoint($node, $receiver, 'z', '/ok/z', "topics => '{none}'");
$receiver->wait_delivered(1, id => emit($node, 'order.a', '{}', "tenant => 'acme'"));

# With each change of settings, the worker reads which calls are not complete.
ask('INSERT INTO outbox.forgotten (tenant, snapshot, upto, requested_at, endpoints, complete_at)'
	  . " SELECT 't' || n, pg_current_snapshot(), 0, now(), 0, now() FROM generate_series(1, $many) n");
my $scans = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname = 'forgotten'";
my $before = read_of('forgotten');
foreach my $n (1 .. 5)
{
	my $counted = ask($scans);
	ask("SELECT outbox.alter_endpoint('z', max_in_flight => $n)");
	ok(wait_sql($node, "SELECT ($scans) > $counted FROM outbox.emit('order.a', '{}')"), "change $n is read");
}
cmp_ok(read_of('forgotten') - $before, '<', $many, 'complete calls are not read with each change');

# One call waits for a command that fails, while many other commands wait
endpoint($node, $receiver, 'dead', '/status/500', "topics => '{dead}', max_attempts => 1");
emit($node, 'dead', '{}', "tenant => 'acme'");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'dead'"), 'a dead letter');
my $dead = ask("SELECT seq FROM outbox.parked WHERE status = 'dead'");
foreach my $waits ([ 'a', 'retry', 1, $many ], [ 'dead', 'forget', $dead, $dead ])
{
	my ($name, $action, @seqs) = @$waits;
	ask("INSERT INTO outbox.commands (endpoint_id, action, seq, retry_at) SELECT endpoint_id, '$action', n, now() + interval '1 day'"
		  . " FROM outbox.endpoint_settings, generate_series($seqs[0], $seqs[1]) n WHERE name = '$name'");
}
emit($node, 'order.a', '{}', "tenant => 'initech'");
ask("SELECT outbox.forget(t) FROM unnest('{acme,initech}'::text[]) t");
$before = read_of('commands');
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'initech'"), 'the call of another tenant is complete')
  or diag ask('TABLE outbox.forget_progress');
my $from = time;
while (time < $from + 4)
{
	$receiver->wait_delivered(1, id => emit($node, 'order.a', '{}'));
}
is(ask("SELECT events, complete_at IS NULL FROM outbox.forget_progress WHERE tenant = 'acme'"), '2|t', 'it waits for the command');
is(ask("SELECT count(*) FROM outbox.commands WHERE action = 'forget'"), 1, 'which is not written twice');
cmp_ok(read_of('commands') - $before, '<', 5 * $many, 'the others are not read each time');
ask("UPDATE outbox.commands SET retry_at = NULL WHERE action = 'forget'; SELECT outbox.wake_workers()");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'acme'"), 'then it is complete');
is(ask("SELECT status FROM outbox.parked WHERE seq = $dead"), 'cancelled', 'with the dead letter');

# Many calls, and many deduplication keys of others
my ($calls, $keys) = (300, 50_000);
ask("INSERT INTO outbox.dedup (topic, dedup_key, tenant, event_id, created_at) SELECT 'order.b', n, 'globex', gen_random_uuid(), now()"
	  . " FROM generate_series(1, $keys) n");
my @gone = split /\n/, ask("SELECT outbox.emit('order.b', '{}', key => 'k' || n, tenant => 'acme', dedup_key => 'd' || n) FROM generate_series(1, $calls) n");
my $kept = emit($node, 'order.b', '{}', "key => 'kept', tenant => 'acme'");
$receiver->wait_delivered(1, id => $_) foreach $gone[-1], $kept;
$before = read_of('dedup');
ask("SELECT outbox.forget('acme', 'k' || n) FROM generate_series(1, $calls) n");
ok(wait_sql($node, "SELECT count(*) = $calls AND bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress WHERE key IS NOT NULL AND tenant = 'acme'"),
	'many calls are complete')
  or diag ask("SELECT count(*) FILTER (WHERE complete_at IS NOT NULL) FROM outbox.forget_progress WHERE key IS NOT NULL AND tenant = 'acme'");
cmp_ok(read_of('dedup') - $before, '<', 10 * $keys, 'in a few passes');
is(ask("SELECT count(*), sum(events), sum(dedup_keys), min(events), min(dedup_keys) FROM outbox.forget_progress WHERE key IS NOT NULL AND tenant = 'acme'"),
	"$calls|$calls|$calls|1|0", 'each has its event');
is(ask("SELECT count(*) FILTER (WHERE forgotten), string_agg(key, ' ') FROM outbox.all_events WHERE topic = 'order.b' AND tenant = 'acme'"),
	"$calls|kept", 'and no other event is gone');
is(ask('SELECT count(*) FROM outbox.dedup'), $keys, 'nor the key of another tenant');

# A call that commits after a later one: its events leave memory, too.
endpoint($node, $receiver, 'queue', '/hold/queue', "topics => '{q}', max_in_flight => 1, timeout => '1 h'");
my $sent = emit($node, 'q', '{}');
$receiver->wait_for(1, id => $sent);
my $late = emit($node, 'q', '{}', "tenant => 'late'");
ok(wait_sql($node, "SELECT pending = 1 AND pending_exact FROM outbox.stats WHERE endpoint = 'queue'"), 'one is read, and waits');
my %call = map { $_ => $node->background_psql('postgres') } qw(first second);
$call{first}->query_safe("BEGIN; SELECT outbox.forget('late')");
$call{second}->query_until(qr/begun/, "\\echo begun\nSELECT outbox.forget('globex', 'nobody');\n");
ok(wait_sql($node, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted) OR EXISTS (SELECT FROM outbox.forget_progress WHERE tenant = 'globex' AND complete_at IS NOT NULL)"),
	'a later call waits, or is complete');
$call{first}->query_safe('COMMIT');
ok(wait_sql($node, "SELECT count(*) = 2 AND bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress WHERE tenant IN ('late', 'globex')"), 'both are complete');
my $next = emit($node, 'q', '{}');
$receiver->control(path => '/hold/queue', behave => '/ok');
$receiver->wait_delivered(1, id => $next);
is(scalar(() = $receiver->requests(id => $late)), 0, 'what was forgotten is not sent');
$_->quit foreach values %call;
$node->stop;
done_testing();
