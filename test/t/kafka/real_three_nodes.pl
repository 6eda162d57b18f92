# Leaders of Kafka may die, replicas be too few, partitions be added: nothing is lost or stored twice.
# Each key stays in order.  No attempt is counted while the timeout lasts, and what is wrong
# is shown.  "make clients" fetches Kafka, and runs this.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

my $jars = OutboxTest::Kafka::needed();

# Soon enough that a dead leader is missed, and late enough that one on a busy machine is not
my $kafka = OutboxTest::Kafka->new(jars => $jars, nodes => 3, conf => <<'CONF');
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=6000
CONF
my @replicated = ('--replication-factor', 3, '--config', 'min.insync.replicas=2');
$kafka->topic('bus', 6, @replicated);
$kafka->topic('short', 3, @replicated);

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';
my $round = 0;
my $producer;

# A load, of which some is delivered
sub load
{
	$round++;
	my $before = stat_of($node, 'bus', 'delivered');
	$producer = start_producer($node, $log, topic => "load.$round", rate => 100, keys => 10);
	return endpoint_shows($node, 'bus', "delivered > $before + 100", 'events flow');
}

# Until all replicas have everything
sub heal
{
	return wait_until
	{
		!grep { @{ $_->{isrs} } < 3 } map { $kafka->partitions($_) } qw(bus short)
	}
	'all replicas are in sync', 120;
}

my $brokers = $kafka->brokers;
ask("SELECT outbox.create_endpoint('bus', 'kafka://$brokers/bus', '{load.*}', format => 'raw', timeout => '5 min')");
ask("SELECT outbox.create_endpoint('short', 'kafka://$brokers/short', '{short.*}', format => 'raw', timeout => '2 s', backoff_base => '500 ms', backoff_max => '1 s')");
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');
endpoint_shows($node, 'short', "state = 'active'", 'and the one that has little patience');

# A leader dies.  The controller, node 1, stays.
load();
my ($victim) = map { $_->{leader} } grep { $_->{leader} != 1 } $kafka->partitions('bus');
ok($victim, 'a broker that is not the controller leads a partition') or diag(explain([ $kafka->partitions('bus') ]));
$kafka->stop('KILL', $victim);
my $at = ask("SELECT max(seq) FROM outbox.events");
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE seq <= $at AND status <> 'delivered')"),
	'after the leader was killed, it goes on');
isnt(scalar(grep { $_->{leader} == $victim } $kafka->partitions('bus')), 6, 'with other leaders');
stop_producer($producer);
$kafka->check($node, $log, 'bus', name => 'a leader was killed');
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'no attempt has failed');
$kafka->start($victim);
heal();

# A leader falls silent, as a machine without power does: no connection to it ends.  With the default timeout its records
# go to the next leader, also those that it may have stored.
$kafka->topic('silent', 6, @replicated);
ask("SELECT outbox.create_endpoint('silent', 'kafka://$brokers/silent', '{silent.*}', format => 'raw')");
endpoint_shows($node, 'silent', "state = 'active'", 'the link comes up');
$producer = start_producer($node, "$log.silent", topic => 'silent.1', rate => 100, keys => 10);
endpoint_shows($node, 'silent', 'delivered > 100', 'events flow');
($victim) = map { $_->{leader} } grep { $_->{leader} != 1 } $kafka->partitions('silent');
$kafka->signal('STOP', $victim);
endpoint_shows($node, 'silent', "state = 'active' AND reason ~ '^no answer from broker'", 'the silent leader is named');
$at = ask("SELECT max(seq) FROM outbox.events");
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE seq <= $at AND status <> 'delivered')"), 'without it, it goes on');
$kafka->signal('CONT', $victim);
stop_producer($producer);
$kafka->check($node, "$log.silent", 'silent', name => 'a leader fell silent');
is(stat_of($node, 'silent', 'failed_attempts'), 0, 'no attempt has failed');
heal();

# Two of three die: fewer replicas than min.insync.replicas
load();
my $killed = time;
$kafka->stop('KILL', 2, 3);
endpoint_shows($node, 'bus', "state = 'active' AND reason IS NOT NULL", 'with one replica of three, a reason is shown');
stop_producer($producer);
endpoint_shows($node, 'bus', "state = 'active' AND reason ~ 'replicas' AND failed_attempts = 0", 'an endpoint with patience waits, and the reason has the words of Kafka');
my $short = $round + 1;
my $impatient = start_producer($node, "$log.short", topic => "short.$short", rate => 50, keys => 3, seconds => 2);
stop_producer($impatient, 1);
endpoint_shows($node, 'short', "failed_attempts > 3 AND last_error ~ 'replicas'", 'without patience attempts fail after the timeout, and the error says why');
$kafka->start(2, 3);
# In these, each of the 12 keys had a record under way for 2 s each time, and all may be stored
my $given_up = 12 * (2 + int((time - $killed) / 2));
$kafka->check($node, $log, 'bus', name => 'too few replicas');
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'of the endpoint with patience no attempt has failed');
endpoint_shows($node, 'bus', "state = 'active' AND reason IS NULL", 'and nothing is wrong any more');
$kafka->check($node, "$log.short", 'short', name => 'too few replicas for longer than the timeout', max_duplicates => $given_up);
heal();

# More partitions
load();
ok($kafka->command(1, 'partitions', 'bus', 12), 'partitions are added') or diag($kafka->log(1));
ok(wait_until(sub { $kafka->count('bus', 6 .. 11) > 200 }, 'records in them'), 'and used');
stop_producer($producer);
my @records = $kafka->check($node, $log, 'bus', name => 'more partitions', places => 2);
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'no attempt has failed');
my (%last, $back);
foreach my $record (@records)
{
	$back++ if ($last{ $record->{key} } // 0) >= $record->{n};
	$last{ $record->{key} } = $record->{n};
}
is($back // 0, 0, 'a key that has moved does not go back');

$kafka->stop('KILL');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
