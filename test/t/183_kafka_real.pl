# Apache Kafka gets every event once and in the order of its key, also when it is killed meanwhile.
# A broker that advertises a private address is not connected to.  "make clients" fetches
# Kafka, and runs this.
use strict;
use warnings;

use IO::Socket::INET;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jars = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/kafka';
chomp(my $pkglibdir = qx{@{[ $ENV{PG_CONFIG} || 'pg_config' ]} --pkglibdir});
plan skip_all => 'takes a minute or two and what Maven fetches: "make clients" runs it'
  unless $ENV{OUTBOX_TEST_CLIENTS};
plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless -e "$pkglibdir/outbox_kafka.so";
plan skip_all => 'there is no kcat to read with' if system('kcat -V > /dev/null 2>&1') != 0;
plan skip_all => "no Kafka in $jars, or no java: Maven could not fetch it"
  unless -e "$jars/complete" && system('java -version > /dev/null 2>&1') == 0;

# Ports below those of outgoing connections, or these could take them
my $dir = PostgreSQL::Test::Utils::tempdir('kafka');
my @ports;
for (my $port = 20000 + $$ % 10000; @ports < 3; $port++)
{
	push @ports, $port if IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1, ReuseAddr => 1);
}
my $broker = "127.0.0.1:$ports[0]";
append_to_file("$dir/address", "$broker\n");
append_to_file("$dir/server.properties", <<"CONF");
process.roles=broker,controller
node.id=1
controller.quorum.voters=1\@127.0.0.1:$ports[1]
listeners=PLAINTEXT://$broker,HIDDEN://127.0.0.1:$ports[2],CONTROLLER://127.0.0.1:$ports[1]
advertised.listeners=PLAINTEXT://$broker,HIDDEN://10.255.255.1:$ports[2]
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,HIDDEN:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$dir/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=11000000
CONF

sub kafka
{
	my (@command) = @_;
	return system("$top/test/kafka/broker '$jars' '$dir' @command >> $dir/log 2>&1") == 0;
}

my $pid;

sub start_kafka
{
	$pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>>', "$dir/log");
		open(STDERR, '>&', \*STDOUT);
		exec "$top/test/kafka/broker", $jars, $dir, 'run' or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	return wait_until(sub { system("kcat -L -b $broker -m 2 > /dev/null 2>&1") == 0 }, 'Kafka answers', 180);
}

ok(kafka('format'), 'a data directory') or diag(slurp_file("$dir/log"));
start_kafka() or diag(slurp_file("$dir/log"));

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $log = "$dir/producer";

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub stats
{
	my ($endpoint, $condition, $name) = @_;
	return ok(wait_until(sub { ask("SELECT $condition FROM outbox.stats WHERE endpoint = '$endpoint'") eq 't' }, $name, 240), $name)
	  || diag(ask("SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = '$endpoint'"));
}

# A topic that is missing
ask("SELECT outbox.create_endpoint('bus', 'kafka://$broker/shop.{topic}', '{load.*}', format => 'raw', timeout => '5 min')");
stats('bus', "state = 'active'", 'the link comes up');
ask("SELECT count(outbox.emit('load.test', jsonb_build_object('key', 'k' || n % 50, 'n', n), key => 'k' || n % 50)) FROM generate_series(1, 5000) n");
stats('bus', "reason = 'Kafka refuses topic shop.load.test: it does not exist'", 'a topic that is missing is named');
ok(kafka('topic', 'shop.load.test', 4), 'the topic is made');
stats('bus', 'delivered > 100', 'and events flow');

# Killed in the middle
kill 'KILL', $pid;
waitpid($pid, 0);
stats('bus', "state = 'backing_off'", 'a broker that was killed is shown');
ask("SELECT count(outbox.emit('load.test', jsonb_build_object('key', 'k' || n % 50, 'n', n), key => 'k' || n % 50)) FROM generate_series(5001, 10000) n");
start_kafka() or diag(slurp_file("$dir/log"));
stats('bus', 'delivered = 10000 AND pending = 0 AND processing = 0', 'everything is delivered when it is back');
is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'bus'"), '0', 'no attempt has failed');

my (%seen, %last, %where, $disorder, $moved, $wrong);
foreach (split /\n/, qx{kcat -C -q -e -b $broker -t shop.load.test -o beginning -f '%p\\t%k\\t%h\\t%s\\n'})
{
	my ($partition, $key, $headers, $body) = split /\t/, $_, 4;
	my ($n) = $body =~ /"n": (\d+)/;
	my ($id) = $headers =~ /outbox-id=([0-9a-f-]{36})/;

	$seen{$id}++;
	$wrong++ if $body ne qq({"n": $n, "key": "$key"});
	$disorder++ if $seen{$id} == 1 && ($last{$key} // 0) >= $n;
	$last{$key} = $n;
	$moved++ if ($where{$key} //= $partition) != $partition;
}
is(scalar keys %seen, 10000, 'nothing is lost');
is(scalar(grep { $_ > 1 } values %seen), 0, 'nothing is twice');
is($disorder // 0, 0, 'each key is in order');
is($moved // 0, 0, 'and in one partition');
is($wrong // 0, 0, 'the bodies are what was emitted');

# A broker that names a private address as its own
ask("SELECT outbox.create_endpoint('hidden', 'kafka://127.0.0.1:$ports[2]/shop.load.test', '{hidden}', timeout => '4 min')");
emit($node, 'hidden', '{}');
stats('hidden', "reason ~ 'address 10.255.255.1 is private, and not in outbox.allowed_networks'", 'an advertised address that is private is refused');
is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'hidden'"), '0', 'and that is no failure of the event');

kill 'TERM', $pid;
waitpid($pid, 0);
$node->stop;
done_testing();
