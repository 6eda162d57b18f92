# An endpoint that is disabled for longer than the retention still gets everything later.
# Under load: the log keeps what the endpoint has yet to get and nothing else, and
# nothing waits.  test/torture/retention.pl measures it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $retention = 2;
my $node = outbox_node('main', conf => <<CONF);
outbox.retention = ${retention}s
outbox.attempts_retention = ${retention}s
log_lock_waits = on
deadlock_timeout = 100ms
CONF
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

sub forgotten
{
	my ($id, $name) = @_;
	return ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id = '$id')"), $name);
}

endpoint($node, $receiver, 'fast', '/ok/fast', "topics => '{load.*}'");
endpoint($node, $receiver, 'gone', '/ok/gone', "topics => '{load.*}'");
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");

# One event for every endpoint, in a piece that none of them needs any more.  Then one
# that disables an endpoint.
my $before = emit($node, 'load.before', '{}');
$receiver->wait_delivered(1, path => "/ok/$_", id => $before) foreach qw(fast gone);
my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
ok(wait_sql($node, "SELECT piece <> $piece FROM outbox.pieces WHERE log = 'events'"), 'another piece');
$receiver->control(path => '/ok/gone', behave => '/status/410');
my $first = emit($node, 'load.first', '{}');
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'gone'"), 'an endpoint is disabled');
my $waiting = emit($node, 'load.waiting', '{}');    # the other is parked, and can be kept aside

# Load, until the log has not been shortened for three times the retention
my $producer = start_producer($node, $log, rate => 200, keys => 20);
forgotten($before, 'what it has had is forgotten');
ok( wait_sql($node, "SELECT clock_timestamp() - since > interval '@{[3 * $retention]} s' FROM outbox.pieces WHERE log = 'events'"),
	'what it has yet to get is not, for three times the retention');
ok( wait_sql($node, "SELECT s.state = 'disabled' AND s.reason ~ '410' AND s.retained_bytes > 0.9 * l.log_bytes"
		  . " FROM outbox.stats s, outbox.status l WHERE endpoint = 'gone'"),
	'outbox.stats says why, and how much');
is(ask('SELECT retained_by FROM outbox.status'), 'gone', 'outbox.status names the endpoint');
ok( wait_sql($node, "SELECT min(a.started_at) > e.created_at FROM outbox.attempts a, outbox.events e"
		  . " WHERE e.id = '$waiting' GROUP BY e.created_at"),
	'requests are forgotten all the same');
my $other = emit($node, 'other.one', '{}');
$receiver->wait_delivered(1, path => '/ok/other', id => $other);
$receiver->wait_new(200, '/ok/fast');
pass('the others are served');
stop_producer($producer);
$receiver->wait_delivered(1, path => '/ok/fast', id => emit($node, 'load.last', '{}'));
ok(wait_sql($node, "SELECT pending = 0 FROM outbox.stats WHERE endpoint = 'fast'"), 'to the last event');
my @kept = event_ids($node);
my $bytes = ask('SELECT log_bytes FROM outbox.status');
cmp_ok($bytes / @kept, '<', 1000, 'each takes no more than its row and its index entries');

# Resumed: all of it, in order.  Then the log is what the retention says.
$receiver->control(path => '/ok/gone', behave => '');
ask("SELECT outbox.resume_endpoint('gone')");
$receiver->wait_delivered(1, path => '/ok/gone', id => $first);
ok( wait_until {
		my %got = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/gone');
		!grep { !$got{$_} && $_ ne $other } @kept;
	}
	'resumed: it gets everything');
check_history($node, $receiver, $log, endpoints => [ '/ok/fast', '/ok/gone' ], exists_too => [ @kept, $before, $first ],
	name => 'nothing lost, nothing twice, in order');
forgotten($waiting, 'and then it is forgotten');
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.events)'), 'all of it');
ok(wait_sql($node, "SELECT log_bytes < $bytes / 3 AND retained_by IS NULL FROM outbox.status"),
	'the space is given back');
unlike(slurp_file($node->logfile), qr/still waiting for (?!AccessShareLock).* on relation/, 'no session that emits or delivers has waited for a lock');
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');

$node->stop;
done_testing();
