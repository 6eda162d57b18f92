# Many requests that can be started at once do not keep the worker from others that come meanwhile.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# Endpoints with an open connection, in use: each request more opens another one, which takes time
my ($many, $each) = (40, 24);
foreach my $n (1 .. $many)
{
	endpoint($node, $receiver, "crowd$n", "/slow/$n?ms=3000", "topics => '{crowd.*}', tenant => 'crowd'");
}
endpoint($node, $receiver, 'quiet', '/ok/quiet', "topics => '{quiet.*}', tenant => 'quiet'");
ask("SELECT outbox.emit('crowd.first', '{}', tenant => 'crowd')");
my $id = ask("SELECT outbox.emit('quiet.first', '{}', tenant => 'quiet')");
$receiver->wait_delivered(1, id => $id);
ok($receiver->wait_for($many + 1), 'all are connected');

$id = ask("SELECT count(outbox.emit('crowd.n', '{}', tenant => 'crowd')) FROM generate_series(1, $each);"
	  . " SELECT outbox.emit('quiet.second', '{}', tenant => 'quiet')");
$id =~ s/.*\n//;
$receiver->wait_delivered(1, id => $id);
my $all = $many * (1 + $each);
ok(wait_sql($node, "SELECT count(*) >= $all FROM outbox.attempts WHERE endpoint LIKE 'crowd%'"), 'all have ended');

my $before = ask("SELECT count(*) FROM outbox.attempts WHERE endpoint LIKE 'crowd%'"
	  . " AND started_at >= (SELECT created_at FROM outbox.events WHERE id = '$id')"
	  . " AND started_at < (SELECT started_at FROM outbox.attempts WHERE event_id = '$id')");
cmp_ok($before, '<', $many * $each / 2, "requests of the crowd that were begun between the event of another tenant and its request: $before");
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint LIKE 'crowd%' AND error IS NOT NULL"), 0, 'none has failed');


# One event for many idle endpoints: answers that come meanwhile do not wait until all have a request.
# A tenant that may not send more now goes on later.
$node->safe_psql('postgres', "SELECT count(outbox.create_endpoint('idle' || n, '" . $receiver->url('/ok/idle')
	  . "', topics => '{idle}', max_in_flight => 1)) FROM generate_series(1, 400) n");
endpoint($node, $receiver, "limited$_", "/ok/limited$_", "topics => '{limited}', tenant => 'limited'") foreach 1 .. 2;
ask("SELECT outbox.set_tenant_limits('limited', rate_limit => 0.5)");
ok(wait_sql($node, 'SELECT count(*) = ' . ($many + 1 + 402) . ' FROM outbox.stats WHERE pending_exact'), 'known to the worker');
$id = ask("SELECT outbox.emit('limited', '{}', tenant => 'limited')");
ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.attempts WHERE event_id = '$id'"), 'the tenant has used what it may');
my $meanwhile = 0;
foreach my $try (1 .. 20)
{
	$id = ask("SELECT outbox.emit('quiet.third', '{}', tenant => 'quiet'); SELECT outbox.emit('idle', '{}');"
		  . " SELECT outbox.emit('limited', '{}', tenant => 'limited')");
	my ($quiet, $idle, $limited) = split /\n/, $id;
	ok(wait_sql($node, "SELECT count(*) = 403 FROM outbox.attempts WHERE event_id IN ('$quiet', '$idle', '$limited')"),
		'each endpoint gets its event');
	$meanwhile ||= ask("SELECT started_at + make_interval(secs => duration_ms / 1000) <"
		  . " (SELECT max(started_at) FROM outbox.attempts WHERE event_id = '$idle')"
		  . " FROM outbox.attempts WHERE event_id = '$quiet'") eq 't';
	last if $meanwhile;
}
ok($meanwhile, 'an answer was taken before the last of them had a request');

# None gets its next request before all have had their turn
my $last = ask("SELECT max(seq) FROM outbox.attempts");
ask("SELECT count(outbox.emit('idle', '{}')) FROM generate_series(1, 20)");
ok(wait_sql($node, "SELECT count(*) = 8000 FROM outbox.attempts WHERE seq > $last"), 'many events for each');
cmp_ok(ask("SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.attempts WHERE seq > $last AND started_at <="
	  . " (SELECT max(first) FROM (SELECT min(started_at) AS first FROM outbox.attempts WHERE seq > $last GROUP BY endpoint) f)"
	  . ' GROUP BY endpoint) e'), '<', 10, 'in turn');

$node->stop;
done_testing();
