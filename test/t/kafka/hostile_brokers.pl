# A hostile broker of Kafka harms its own endpoint at most, never the worker or webhooks.
# Each of many brokers sends garbage, huge or wrong numbers, or stops in the middle, while a
# webhook endpoint gets its events.  The worker's memory stays bounded, and when the endpoints
# are gone, so are their threads and pipes.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Beside;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'broker', 'authority', 'DNS:localhost,IP:127.0.0.1');
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\noutbox.ssl_ca_file = '$dir/authority.crt'\n");
my $beside = OutboxTest::Beside->new($node);
my $worker = $beside->{worker};
my $hostile = start_hostile('kafka');
my %port = %{ $hostile->{port} };
my %name = map { ("h$port{$_}" => $_) } keys %port;

sub threads { return scalar(() = glob("/proc/$worker/task/*")) }
sub niceness { return (split ' ', (eval { slurp_file("/proc/$_[0]/stat") } // '') =~ s/.*\) //sr)[16] // 99 }
sub pipes   { return scalar grep { (readlink($_) // '') =~ /^pipe:/ } glob("/proc/$worker/fd/*") }

# How often each behaviour was shown
sub shown
{
	my %times = map { ($_ => 0) } keys %port;
	$times{$_}++ foreach lines_of($hostile->{journal}, qr/./);
	return %times;
}

my ($threads, $pipes) = (threads(), pipes());
wait_sql($node, 'SELECT resident_limit > 0 FROM outbox.workers');
my $bound = ask('SELECT resident_limit FROM outbox.workers');
ask(join ';', map { "SELECT outbox.create_endpoint('$_', 'kafka://127.0.0.1:$port{$name{$_}}/t', '{hostile}', timeout => '4 s', backoff_base => '1 s', backoff_max => '2 s')" } sort keys %name);
ask(q{SELECT count(outbox.emit('hostile', '{}', key => 'k' || n)) FROM generate_series(1, 5) n});
my $count = keys %port;
like(slurp_file("$top/doc/kafka.md"), qr/ tries $count hostile brokers,/, "$count hostile brokers, as doc/kafka.md says");
all_of('each has shown what it is', sub { my %times = shown(); return grep { $times{$_} == 0 } sort keys %times });
ok(wait_sql($node, "SELECT reason ~ 'Invalid response size 99999999 ' FROM outbox.stats WHERE endpoint = 'h$port{'has a frame of 100 MB'}'"), 'an answer of 100 MB is refused before it is there');
all_of('each is worked on', sub { return split /\n/, ask("SELECT endpoint FROM outbox.stats WHERE endpoint <> 'fine' AND processing = 0 AND failed_attempts = 0 AND reason IS NULL AND pending > 0") });
note(ask("SELECT string_agg(format('%s %s', endpoint, to_jsonb(s) - 'endpoint'), E'\\n') FROM (SELECT endpoint, state, pending, processing, retrying, dead, delivered, failed_attempts, reason, last_error FROM outbox.stats) s") =~ s/^(h\d+)/$name{$1} \/\/ /grm);
note(sprintf '%d threads, %d pipes', threads(), pipes());
my $nice = niceness($worker);
wait_until { threads() > $threads && $threads >= grep { niceness($_) < $nice + 5 } map { m{(\d+)$} } glob "/proc/$worker/task/*" } 'the threads of librdkafka come after the worker';

ok(wait_sql($node, "SELECT resident_limit > $bound + $count * 0.5 * 244 * 1024 FROM outbox.workers"), 'the bound of memory has the links');
my %before = shown();
my $memory = private_memory($worker);
my $fine = $beside->delivered;
ask(q{SELECT count(outbox.emit('hostile', '{}', key => 'k' || n)) FROM generate_series(1, 50) n});
my $again = 0;
wait_until { my %times = shown(); $again = grep { $times{$_} >= $before{$_} + 3 } keys %times; $again >= $count / 3 } 'many come again and again', 120;
note("$again have come three times more");
$beside->goes_on(100, $fine);
my $later = private_memory($worker);
note(sprintf 'memory: %.1f MB, then %.1f MB', $memory, $later);
cmp_ok($later - $memory, '<', 100, 'the memory is bounded') unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
$beside->lives;

ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'");
all_of('threads end', sub { return threads() > $threads ? threads() . " instead of $threads" : () });
all_of('their pipes are closed', sub { return pipes() > $pipes ? pipes() . " instead of $pipes" : () });

# One that names more brokers than there can be.  librdkafka would have a thread for each.
my ($flood) = values %{ start_hostile('kafka', 'names 10,000 brokers that are not there')->{port} };
ask("SELECT outbox.create_endpoint('flood', 'kafka://127.0.0.1:$flood/t', '{flood}')");
my $id = emit($node, 'flood', '{}');
ok(wait_sql($node, "SELECT state = 'backing_off' AND reason = 'its brokers name more than 100 brokers' AND failed_attempts = 0 FROM outbox.stats WHERE endpoint = 'flood'"), 'a broker that names 10,000 brokers is given up for a while')
  or diag(ask("SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = 'flood'"));
all_of('its threads end', sub { return threads() > $threads ? threads() . " instead of $threads" : () });
ask("SELECT outbox.alter_endpoint('flood', url => 'kafka://127.0.0.1:$port{'sends a good answer byte by byte'}/t')");
wait_status($node, $id, 'delivered', 'with another URL it goes on');

ask("SELECT outbox.drop_endpoint('flood', discard => true)");

# One that would have figures of its clients.  Before 2.5 librdkafka has none.
note('librdkafka ' . `dpkg-query -W -f '\${Version}' librdkafka1`);
my $curious = start_hostile('kafka', 'asks for figures of its clients');
ask("SELECT outbox.create_endpoint('curious', 'kafka://127.0.0.1:" . (values %{ $curious->{port} })[0] . "/t', '{curious}')");
wait_status($node, emit($node, 'curious', '{}'), 'delivered', 'a broker that asks for figures gets events');
is(scalar(() = lines_of($curious->{journal}, qr/./)), 0, 'and is not even asked which');
ask("SELECT outbox.drop_endpoint('curious', discard => true)");

# How much the memory has grown, at most, until the condition holds for the endpoint
sub memory_until
{
	my ($most, $endpoint, $condition, $name) = @_;
	my $begun = private_memory($worker);
	my $grown = 0;

	wait_until
	{
		my $now = private_memory($worker) - $begun;
		$grown = $now if $now > $grown;
		$grown > 2 * $most || ask("SELECT $condition FROM outbox.stats WHERE endpoint = '$endpoint'") eq 't';
	}
	$name;
	cmp_ok($grown, '<', $most, sprintf '%s: memory has grown by %.1f MB', $name, $grown) unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
	ask("SELECT outbox.drop_endpoint('$endpoint', discard => true)");
	return all_of("$name: its threads end", sub { return threads() > $threads ? threads() . " instead of $threads" : () });
}

# One whose answers end in a byte that never comes.  librdkafka keeps the rest, for each connection.
my ($long) = values %{ start_hostile('kafka', 'keeps back the last byte, on each of 10 connections')->{port} };
ask("SELECT outbox.create_endpoint('long', 'kafka://127.0.0.1:$long/t', '{long}')");
ask(q{SELECT count(outbox.emit('long', '{}', key => 'k' || n)) FROM generate_series(1, 100) n});
memory_until(100, 'long', "last_error ~ 'Bad message format'", 'answers of 32 MB are refused');

# One that has many partitions of each topic, which events lead to.
my ($topics) = values %{ start_hostile('kafka', 'has topics of 20,000 partitions each')->{port} };
ask("SELECT outbox.create_endpoint('topics', 'kafka://127.0.0.1:$topics/{key}', '{topics}')");
ask(q{SELECT count(outbox.emit('topics', '{}', key => 'k' || n)) FROM generate_series(1, 1000) n});
memory_until(600, 'topics', "reason = 'its topics have too many partitions' AND failed_attempts = 0", 'partitions without end');

# Two that send answers to nothing without rest.  Each connection would cost a core.
my ($busy) = values %{ start_hostile('kafka', ('answers nothing without rest') x 2)->{port} };
ask("SELECT outbox.create_endpoint('busy', 'kafka://127.0.0.1:$busy/t', '{busy}')");
ask(q{SELECT count(outbox.emit('busy', '{}', key => 'k' || n)) FROM generate_series(1, 60) n});
endpoint_shows($node, 'busy', "state = 'backing_off' AND reason = 'its brokers keep threads of librdkafka busy with nothing' AND failed_attempts = 0", 'a broker that keeps threads busy with nothing is given up for a while');
all_of('its threads end', sub { return threads() > $threads ? threads() . " instead of $threads" : () });
ask("SELECT outbox.alter_endpoint('busy', url => 'kafka://127.0.0.1:$port{'answers twice'}/t')");
ok(wait_sql($node, "SELECT count(*) = 60 FROM outbox.deliveries WHERE endpoint = 'busy' AND status = 'delivered'"), 'with another URL it goes on');

# One that answers what it is asked, with a topic that librdkafka looks through ten times a second.
my ($large) = values %{ start_hostile('kafka', 'has 90,000 partitions')->{port} };
ask("SELECT outbox.create_endpoint('large', 'kafka://127.0.0.1:$large/t', '{large}', timeout => '1 min')");
emit($node, 'large', '{}');
endpoint_shows($node, 'large', "state = 'backing_off' AND reason = 'its brokers keep threads of librdkafka busy with nothing'", 'so is one whose answers keep them busy');

ask("SELECT outbox.drop_endpoint('large', discard => true)");

# Servers that are hostile before a broker's first byte
my %tls = map { $_ => start_hostile_tls($_, "$dir/broker") } 'tickets', 'key updates', 'large modulus', 'ffdhe8192', 'certificate requests';
my %tls_name = map { ("t$tls{$_}{port}" => $_) } keys %tls;
$fine = $beside->delivered;
ask(join ';', map { "SELECT outbox.create_endpoint('$_', 'kafkas://127.0.0.1:$tls{$tls_name{$_}}{port}/t', '{tls}', timeout => '4 s')" } sort keys %tls_name);
emit($node, 'tls', '{}');
all_of('each TLS server is met', sub { return grep { !lines_of($tls{$_}{journal}, qr/./) } sort keys %tls });
all_of('each is worked on', sub { return split /\n/, ask("SELECT endpoint FROM outbox.stats WHERE endpoint ~ '^t\\d' AND delivered = 0 AND failed_attempts = 0 AND reason IS NULL") });
note(ask("SELECT string_agg(concat_ws(' ', endpoint, state, reason, last_error), E'\\n') FROM outbox.stats WHERE endpoint ~ '^t\\d'") =~ s/^(t\d+)/$tls_name{$1}/grm);
$beside->goes_on(40, $fine);
$beside->lives('and the worker lives');
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'");
all_of('their threads end', sub { return threads() > $threads ? threads() . " instead of $threads" : () });
ok(wait_sql($node, "SELECT abs(resident_limit - $bound) < 4 * 1048576 FROM outbox.workers"), 'and no more when they are gone');

is(ask('SELECT restarts FROM outbox.workers'), '0', 'the worker has lived through all of it');

$beside->judge;

# Two that make librdkafka follow a NULL.  The worker ends for each, and no session does.  A memory checker would end both.
$node->start;
my $session = $node->background_psql('postgres');
my %deadly = %{ start_hostile('kafka', 'names a broker with no host at all', 'has a topic with no name at all')->{port} };
foreach my $name ($ENV{OUTBOX_MEMORY_CHECKER} ? () : sort keys %deadly)
{
	ask("SELECT outbox.create_endpoint('d$deadly{$name}', 'kafka://127.0.0.1:$deadly{$name}/t', '{deadly$deadly{$name}}')");
	emit($node, "deadly$deadly{$name}", '{}');
	endpoint_shows($node, "d$deadly{$name}", 'reason IS NOT NULL', "$name: the endpoint is held");
	note(ask("SELECT state, reason FROM outbox.stats WHERE endpoint = 'd$deadly{$name}'"));
}
is($session->query_safe('SELECT 1'), '1', 'a session has lived through both');
$session->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
