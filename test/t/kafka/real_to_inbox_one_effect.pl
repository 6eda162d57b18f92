# With Kafka between them, outbox and inbox give each event exactly one effect, whatever is killed.
# Four consumers are killed and started again, so that partitions move between them, and the worker
# is killed meanwhile.  "make clients" fetches Kafka, and runs this.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jars = OutboxTest::Kafka::needed();
plan skip_all => 'there is no confluent_kafka or psycopg2 for /usr/bin/python3'
  if system(q{/usr/bin/python3 -c 'import confluent_kafka, psycopg2' 2>/dev/null}) != 0;

my $seed = $ENV{SEED} || int(rand(1_000_000));
srand($seed);
note("SEED=$seed");
my $kafka = OutboxTest::Kafka->new(jars => $jars, conf => "group.initial.rebalance.delay.ms=0\n");
$kafka->topic('shop', 6);

# The consumers have a server of their own, which has nothing else of ours.
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\nrestart_after_crash = on\n");
my $consumers = PostgreSQL::Test::Cluster->new('consumers');
$consumers->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$consumers->start;
$consumers->safe_psql('postgres', slurp_file("$top/demo/consumer.sql"));

my $dir = PostgreSQL::Test::Utils::tempdir('inbox');
my ($started, %running) = (0);

sub start_consumer
{
	my $name = 'c' . ++$started;
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>>', "$dir/consumers");
		open(STDERR, '>&', \*STDOUT);
		exec '/usr/bin/python3', "$top/demo/consumer.py", $kafka->brokers, 'shop', 'billing', $consumers->connstr('postgres'), $name
		  or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	$running{$name} = $pid;
	return $name;
}

sub count
{
	my ($what) = @_;
	return $consumers->safe_psql('postgres', "SELECT count(*) FROM $what");
}

# Waits until a consumer has read so many records.
sub reads
{
	my ($name, $records) = @_;
	return wait_sql($consumers, "SELECT count(*) >= $records FROM readings WHERE consumer = '$name'")
	  || diag(slurp_file("$dir/consumers"));
}

$node->safe_psql('postgres', "SELECT outbox.create_endpoint('bus', 'kafka://" . $kafka->brokers . "/shop', '{load.*}', format => 'raw', timeout => '2 min')");
my $producer = start_producer($node, "$dir/producer", rate => 150, keys => 30);
start_consumer() foreach 1 .. 4;
ok(wait_sql($consumers, 'SELECT count(DISTINCT consumer) = 4 FROM readings'), 'four consumers share the partitions')
  or diag(slurp_file("$dir/consumers"));

# Each round kills one or two consumers in the middle of their work, and in every second one
# the worker, which takes its server down.  Then others come.
my $killed = 0;
foreach my $round (1 .. 8)
{
	my @names = sort keys %running;
	my @victims = splice @names, int(rand(@names - 1)), 1 + int(rand(2));
	my $effects = count('effects');

	kill 'KILL', map { $running{$_} } @victims;
	if ($round % 2 == 0)
	{
		my $worker = worker_pid($node);
		kill 'KILL', $worker;
		ok(new_worker($node, $worker), "round $round: another worker comes");
	}
	foreach my $name (@victims)
	{
		waitpid(delete $running{$name}, 0);
		$killed++;
	}
	my @fresh = map { start_consumer() } @victims;
	reads($_, 60) foreach @fresh;
	ok(wait_sql($consumers, "SELECT count(*) >= $effects + 300 FROM effects"), "round $round: after " . @victims . ' killed consumers, others go on');
}
stop_producer($producer);
ok(wait_settled($node), 'all events are delivered');

# The topic as Kafka has it, and each record of it has been read
my @records = $kafka->records('shop');
$consumers->safe_psql('postgres', 'CREATE TABLE topic (partition int, "offset" bigint, event_id text)');
$consumers->safe_psql('postgres', "COPY topic FROM STDIN;\n" . join('', map { "$_->{partition}\t$_->{offset}\t$_->{id}\n" } @records) . "\\.\n");
ok(wait_sql($consumers, 'SELECT NOT EXISTS (SELECT partition, "offset" FROM topic EXCEPT SELECT partition, "offset" FROM readings)'), 'each record is read')
  or diag(slurp_file("$dir/consumers"));
kill 'TERM', values %running;
foreach my $name (sort keys %running)
{
	waitpid($running{$name}, 0);
	is($? >> 8, 0, "$name ends well") or diag(slurp_file("$dir/consumers"));
}

# Each event that was committed has one effect, with its payload
my $emitted = $node->safe_psql('postgres', q{SELECT id || ' ' || md5(payload::text) FROM outbox.events WHERE topic = 'load.test' ORDER BY 1});
my $worked = $consumers->safe_psql('postgres', q{SELECT event_id || ' ' || md5(body) FROM effects ORDER BY 1});
my ($events, $repeated, $again) = ($emitted =~ tr/\n// + 1, @records - count('(SELECT DISTINCT event_id FROM topic) t'), count('readings WHERE NOT new'));
note("$events events, " . @records . " records, of these $repeated repetitions; $killed consumers killed; " . count('readings') . " readings, of these $again refused");
cmp_ok($events, '>', 2000, 'there are events');
ok($worked eq $emitted, 'each event has exactly one effect') or diag($consumers->safe_psql('postgres', 'SELECT event_id, count(*) FROM effects GROUP BY 1 HAVING count(*) > 1 LIMIT 5'));
cmp_ok($again, '>', 0, 'although records were read again');
is(count('(SELECT DISTINCT partition FROM readings) r'), 6, 'all partitions have been read');
cmp_ok(count('(SELECT FROM readings GROUP BY partition HAVING count(DISTINCT consumer) > 1) r'), '>', 0, 'and they have moved');
$consumers->stop;
$node->stop;
done_testing();
