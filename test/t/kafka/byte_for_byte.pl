# Events reach Kafka byte for byte, each once, in the order of their keys and where Java puts them.
# A missing topic, a broker that is down and an address that is refused are named in words,
# and no event fails for them.  Against librdkafka's mock broker; skipped without it.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use Encode qw(encode);
use IO::Handle;
use IO::Socket::INET;
use IPC::Open2;
use JSON::PP;
use List::Util qw(sum);
use OutboxTest;
use OutboxTest::Network;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');
plan skip_all => 'there is no kcat to read with' if system('kcat -V > /dev/null 2>&1') != 0;

my $dir = PostgreSQL::Test::Utils::tempdir('kafka');
system("gcc -o $dir/mock $top/test/kafka/mock.c \$(pkg-config --cflags --libs rdkafka)") == 0 or die "no mock\n";
my $mock_pid = open2(my $out, my $in, "$dir/mock");
push @OutboxTest::Receiver::started, $mock_pid;
chomp(my $broker = <$out>);

sub mock
{
	print $in "$_[0]\n";
	$in->flush;
	return <$out> eq "ok\n";
}

# All records of a topic, in the order of their partitions: partition, key, headers, body
sub records
{
	my ($topic) = @_;
	my $text = qx{kcat -C -q -e -X broker.address.family=v4 -b $broker -t $topic -o beginning -f '%p\\t%k\\t%h\\t%T\\t%s\\n' 2>/dev/null};
	return map { [ split /\t/, $_, 5 ] } split /\n/, $text;
}

make_ca($dir, $_) foreach qw(authority other);
local $ENV{OUTBOX_NAGLE} = "$dir/nagle";
$ENV{LD_PRELOAD} = shim('nagle');
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\noutbox.ssl_ca_file = '$dir/authority.crt'\n");
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'web', '/ok/web', "topics => '{web.*}'");

sub numbers
{
	my (@records) = @_;
	return join ' ', map { $_->[4] =~ /"n": (\d+)/ } @records;
}

# The CPU time of each of the worker's threads that have this name
sub threads
{
	my ($name) = @_;
	return map { eval { cpu_ticks($_) / 100 } // () } grep { (eval { slurp_file("/proc/$_/comm") } // '') =~ /^$name/ } map { s{^/proc/}{}r } glob '/proc/' . worker_pid($node) . '/task/*';
}

mock('topic orders 12');
ask("SELECT outbox.create_endpoint('bus', 'kafka://$broker/orders', '{order.*}', format => 'raw', timeout => '60 s', headers => '{\"x-endpoint\": \"e\"}')");
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');

# Bytes
my $id = emit($node, 'order.created', '{"n": "ü"}', q{key => 'ключ', headers => '{"x-a": "b"}'});
wait_status($node, $id, 'delivered', 'an event is delivered');
my ($got) = records('orders');
is($got->[1], 'ключ', 'the key');
is($got->[4], '{"n": "ü"}', 'the body');
like($got->[2], qr/^content-type=application\/json,outbox-id=$id,outbox-topic=order\.created,outbox-type=order\.created,outbox-attempt=1,x-endpoint=e,x-a=b$/, 'the headers');
is($got->[3], ask("SELECT floor(extract(epoch FROM created_at) * 1000) FROM outbox.events WHERE id = '$id'"), 'the time is that of emit');
$id = ask(q{SELECT outbox.emit_bytes('order.bytes', '\x00ff0180'::bytea, 'application/avro')});
wait_status($node, $id, 'delivered', 'bytes are delivered');
my ($bytes) = grep { $_->[2] =~ /$id/ } records('orders');
is(unpack('H*', $bytes->[4] // ''), '00ff0180', 'as they are');
is($bytes->[1], '', 'without a key where there was none');

# The partition is the one that Java's producer chooses: murmur2 as in Kafka's own tests
my %murmur2 = ('21' => -973932308, 'foobar' => -790332482, 'a-little-bit-long-string' => -985981536,
	'a-little-bit-longer-string' => -1486304829, 'lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8' => -58897971);
emit($node, 'order.partition', '{}', "key => '$_'") foreach sort keys %murmur2;
endpoint_shows($node, 'bus', 'pending = 0 AND processing = 0 AND delivered = 7', 'records for the partitioner');
my %partition = map { ($_->[1] => $_->[0]) } records('orders');
is($partition{$_}, ($murmur2{$_} & 0x7fffffff) % 12, "the partition of $_") foreach sort keys %murmur2;

# A topic that is missing
mock('missing later');
ask("SELECT outbox.create_endpoint('later', 'kafka://$broker/later', '{later.*}', format => 'raw', timeout => '60 s')");
endpoint_shows($node, 'later', "state = 'active'", 'the link comes up');
ask("SELECT count(outbox.emit('later.x', jsonb_build_object('n', n), key => 'k')) FROM generate_series(1, 50) n");
endpoint_shows($node, 'later', "state = 'backing_off' AND reason = 'Kafka refuses topic later: it does not exist'", 'a missing topic is named');
mock('there later');
mock('topic later 3');
endpoint_shows($node, 'later', "delivered = 50 AND failed_attempts = 0 AND state = 'active'", 'once it is there, all are delivered and none has failed');
is(numbers(records('later')), join(' ', 1 .. 50), 'in order, each once');

# A link that was refused is tried again also while records of other topics stay in librdkafka,
# whose timeout is never reached here.
mock('topic held 1');
mock('leaderless held');
mock('missing lost');
ask("SELECT outbox.create_endpoint('mixed', 'kafka://$broker/{topic}', '{held,lost}', format => 'raw', timeout => '20 min')");
endpoint_shows($node, 'mixed', "state = 'active'", 'the link comes up');
my $held = emit($node, 'held', '{"n": 1}', "key => 'a'");
endpoint_shows($node, 'mixed', "processing = 1 AND state = 'active'", 'a record stays in librdkafka, because its partition has no leader');
my $lost = emit($node, 'lost', '{"n": 2}', "key => 'b'");
endpoint_shows($node, 'mixed', "state = 'backing_off' AND reason = 'Kafka refuses topic lost: it does not exist'", 'another topic is missing');
mock('there lost');
mock('topic lost 1');
wait_status($node, $lost, 'delivered', 'once it is there, its record goes');
endpoint_shows($node, 'mixed', "state = 'active' AND processing = 1", 'while the first one is still in flight');

# A batch that is too large does not wait for that one, nor does anything wait for the batch.
mock('topic bulky 1');
mock('leaderless bulky');
ask("SELECT outbox.create_endpoint('bulky', 'kafka://$broker/bulky', '{bulky}', format => 'raw', timeout => '20 min')");
endpoint_shows($node, 'bulky', "state = 'active'", 'another endpoint has the same connections');
my $instances = threads('rdk:main');
ask("SELECT count(outbox.emit('bulky', jsonb_build_object('n', n), key => 'k' || n)) FROM generate_series(1, 40) n");
endpoint_shows($node, 'bulky', 'processing = 40', 'its records will be one batch, when there is a leader');
mock('error 0 10 10');
mock('led bulky');
endpoint_shows($node, 'bulky', 'delivered = 39 AND dead = 1 AND failed_attempts = 1', 'they go one by one, so that only the one that is too large by itself is dead');
is(scalar(records('bulky')), 39, 'each once');
ok(wait_until(sub { threads('rdk:main') == $instances }, 'threads'), 'the connection for single records has ended');
mock('led held');
wait_status($node, $held, 'delivered', 'that one is delivered when there is a leader');
endpoint_shows($node, 'mixed', 'failed_attempts = 0', 'and no attempt has failed');

# A link that is refused is tried again after one second, then after two more.
mock('topic secret 1');
ask("SELECT outbox.create_endpoint('secret', 'kafka://$broker/secret', '{secret}', format => 'raw', timeout => '60 s')");
endpoint_shows($node, 'secret', "state = 'active'", 'the link comes up');
mock('error 0 29 29');
my $refused = time;
$id = emit($node, 'secret', '{"n": 1}');
ok(wait_until(sub { slurp_file($node->logfile) =~ /endpoint "secret" sends nothing: Kafka refuses topic secret: Broker: Topic authorization failed/ }, 'the log'),
	'a topic that may not be written to is named');
wait_status($node, $id, 'delivered', 'when it may, its record goes');
cmp_ok(time - $refused, '>', 2.9, 'tried twice, and not all the time');
endpoint_shows($node, 'secret', "state = 'active' AND failed_attempts = 0", 'no attempt has failed');

# A batch that is too large, though none of its records is
mock('topic sizes 1');
ask("SELECT outbox.create_endpoint('sizes', 'kafka://$broker/sizes', '{size.*}', format => 'raw', timeout => '60 s')");
endpoint_shows($node, 'sizes', "state = 'active'", 'the link comes up');
mock('error 0 10');
ask("SELECT count(outbox.emit('size.x', jsonb_build_object('n', n), key => 'k' || n % 40)) FROM generate_series(1, 200) n");
endpoint_shows($node, 'sizes', 'delivered = 200 AND failed_attempts = 0', 'a batch that is too large goes one by one, and no attempt is counted');
is(join(' ', sort { $a <=> $b } split / /, numbers(records('sizes'))), join(' ', 1 .. 200), 'each once');
mock('error 0 10 10');
$id = emit($node, 'size.x', '{"n": 0}', "key => 'large'");
wait_status($node, $id, 'dead', 'a record that is too large by itself is dead');
like(ask("SELECT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'sizes'"),
	qr/^aborted by receiver: Kafka: .*too large/, 'with the words of Kafka');

# A batch that is refused because one of its records is too old
mock('topic times 1');
ask("SELECT outbox.create_endpoint('times', 'kafka://$broker/times', '{time.*}', format => 'raw', timeout => '60 s')");
endpoint_shows($node, 'times', "state = 'active'", 'the link comes up');
mock('error 0 32');
ask("SELECT count(outbox.emit('time.x', jsonb_build_object('n', n), key => 'k' || n % 40)) FROM generate_series(1, 200) n");
endpoint_shows($node, 'times', 'delivered = 200 AND failed_attempts = 0', 'its records go one by one');
mock('error 0 32 32');
$id = emit($node, 'time.x', '{"n": 201}', "key => 'old'");
wait_status($node, $id, 'delivered', 'one whose time is refused by itself is tried again');
endpoint_shows($node, 'times', 'delivered = 201 AND failed_attempts = 1', 'and that is counted');
is(join(' ', sort { $a <=> $b } split / /, numbers(records('times'))), join(' ', 1 .. 201), 'each once');

# While librdkafka may not send what it has, because of answers that are not there yet, its
# thread sleeps.  At least 40 answers come one after the other.
mock('topic slow 1');
ask("SELECT outbox.create_endpoint('slow', 'kafka://$broker/slow', '{slow}', format => 'raw', timeout => '60 s', max_in_flight => 100)");
endpoint_shows($node, 'slow', "state = 'active'", 'the link comes up');
ask("SELECT outbox.pause_endpoint('slow')");
ask("SELECT count(outbox.emit('slow', jsonb_build_object('n', n), key => 'k' || n % 1000)) FROM generate_series(1, 4000) n");
mock('rtt 40');
my ($cpu, $began) = (sum(threads('rdk:broker')), time);
ask("SELECT outbox.resume_endpoint('slow')");
endpoint_shows($node, 'slow', 'delivered = 4000 AND failed_attempts = 0', 'a broker that answers late gets all records');
my $took = time - $began;
$cpu = sum(threads('rdk:broker')) - $cpu;
note("$cpu s of CPU in $took s");
mock('rtt 0');
cmp_ok($cpu, '<', $took / 10, 'threads of librdkafka sleep while they wait for it');
is(join(' ', sort { $a <=> $b } split / /, numbers(records('slow'))), join(' ', 1 .. 4000), 'each once');
ask("SELECT outbox.drop_endpoint('slow')");

# The numbers of many records under way are stored as they are: compressing them takes ten
# times as long.
mock('topic many 3');
ask("SELECT outbox.create_endpoint('many', 'kafka://$broker/many', '{many}', format => 'raw', timeout => '60 s', max_in_flight => 1000)");
endpoint_shows($node, 'many', "state = 'active'", 'the link comes up');
mock('rtt 1000');
ask("SELECT count(outbox.emit('many', jsonb_build_object('n', n))) FROM generate_series(1, 1000) n");
ok(wait_sql($node, 'SELECT max(cardinality(outbox.pending_seqs(pending))) > 500 FROM outbox.positions'), 'many records are under way');
is(ask('SELECT count(*) FROM outbox.positions WHERE octet_length(pending) > cardinality(outbox.pending_seqs(pending)) * 2 + 12'), '0', 'their numbers take little room');
mock('rtt 0');
endpoint_shows($node, 'many', 'delivered = 1000', 'and all are delivered');
ask("SELECT outbox.drop_endpoint('many')");
like(slurp_file("$dir/nagle"), qr/^n+$/, 'no request waits until what was sent before it is acknowledged');

# What was forgotten does not wait in librdkafka, whose timeout is never reached here, also where
# another endpoint shares the connections.
mock('topic kept 1');
mock('leaderless kept');
foreach (qw(kept beside))
{
	ask("SELECT outbox.create_endpoint('$_', 'kafka://$broker/kept', '{$_}', format => 'raw', timeout => '21 min')");
	endpoint_shows($node, $_, "state = 'active'", 'the link comes up');
}
$id = emit($node, 'kept', '{"n": 1}', "tenant => 'gone', key => 'a'");
my $kept = emit($node, 'kept', '{"n": 2}', "tenant => 'here', key => 'a'");
endpoint_shows($node, 'kept', 'processing = 2', 'records of two tenants stay in librdkafka, because their partition has no leader');
my $connected = () = slurp_file($node->logfile) =~ /endpoint "kept" is connected/g;
ask("SELECT outbox.forget('gone')");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'gone'"), 'one of them is forgotten');
ok(wait_until(sub { $connected < (() = slurp_file($node->logfile) =~ /endpoint "kept" is connected/g) }), 'another instance takes the place of the one that had them')
  or diag(ask("SELECT state, reason FROM outbox.stats WHERE endpoint = 'kept'"));
mock('led kept');
wait_status($node, $kept, 'delivered', 'the other one is delivered when there is a leader');
is(numbers(records('kept')), '2', 'and nothing of what was forgotten');
ask("SELECT outbox.drop_endpoint('$_')") foreach qw(kept beside);

# Kafka's own troubles are librdkafka's to wait out, and are named when they last
mock('error 0 19 6 7');
$id = emit($node, 'size.x', '{"n": 201}', "key => 'k'");
wait_status($node, $id, 'delivered', 'too few replicas, another leader, a timeout: it is sent again');
mock('error 0' . ' 19' x 300);
$id = emit($node, 'size.x', '{"n": 202}', "key => 'k'");
endpoint_shows($node, 'sizes', "state = 'active' AND reason = 'Broker: Not enough in-sync replicas'", 'too few replicas are named while it lasts');
mock('clear 0');
wait_status($node, $id, 'delivered', 'and the event waits');
endpoint_shows($node, 'sizes', "reason IS NULL AND failed_attempts = 1", 'then nothing is wrong, and no attempt was counted but that of the large record');
ask("SELECT outbox.create_endpoint('hasty', 'kafka://$broker/sizes', '{hasty}', format => 'raw', timeout => '1 s', backoff_base => '100 ms', backoff_max => '200 ms')");
endpoint_shows($node, 'hasty', "state = 'active'", 'the link comes up');
mock('error 0' . ' 19' x 300);
$id = emit($node, 'hasty', '{}');
endpoint_shows($node, 'hasty', "failed_attempts > 0 AND last_error = 'Kafka: Local: Message timed out: Broker: Not enough in-sync replicas'", 'after the timeout, the attempt has failed with these words');
mock('clear 0');
wait_status($node, $id, 'delivered', 'and the event is delivered at last');

# The broker goes in the middle, and comes back
my $log = "$dir/producer";
mock('topic load 4');
ask("SELECT outbox.create_endpoint('load', 'kafka://$broker/{topic}', '{load}', format => 'raw', timeout => '60 s')");
endpoint_shows($node, 'load', "state = 'active'", 'the link comes up');
ask("SELECT count(outbox.emit('load', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series(1, 1000) n");
mock('down');
endpoint_shows($node, 'load', "state = 'backing_off' AND reason <> ''", 'a broker that is gone is shown');
ask("SELECT count(outbox.emit('load', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series(1001, 2000) n");
$id = emit($node, 'web.x', '{}');
wait_status($node, $id, 'delivered', 'webhooks go on');
mock('up');
endpoint_shows($node, 'load', "delivered = 2000 AND failed_attempts = 0 AND state = 'active'", 'all are delivered when it is back, and none has failed');

# librdkafka repeats a batch whose acknowledgement went with the broker.  A real one knows it again
# (kafka/real_three_nodes), the mock broker stores it once more.
my (%last, %where, %found, $disorder, $moved);
foreach my $record (records('load'))
{
	my ($n) = $record->[4] =~ /"n": (\d+)/;
	next if $found{$n}++;
	$disorder++ if ($last{ $record->[1] } // 0) >= $n;
	$last{ $record->[1] } = $n;
	$moved++ if ($where{ $record->[1] } //= $record->[0]) != $record->[0];
}
is(scalar(keys %found), 2000, 'each is there');
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = 'load'"), 2000, 'and was given to librdkafka once');
is($disorder // 0, 0, 'in the order of the keys');
is($moved // 0, 0, 'each key in one partition');

# CloudEvents in binary mode, as their SDK reads them
mock('topic events 1');
ask("SELECT outbox.create_endpoint('events', 'kafka://$broker/events', '{events.*}', format => 'cloudevents-binary')");
$id = emit($node, 'events.made', '{"n": "ü"}', q[key => 'кл=1', type => 'made', tenant => 'acme', headers => '{"origin": "ö, ä"}']);
wait_status($node, $id, 'delivered', 'a CloudEvent in binary mode');
my $record = decode_json(qx{kcat -C -q -e -J -X broker.address.family=v4 -b $broker -t events -o beginning 2>/dev/null});
is($record->{payload}, qq({"n": "\x{fc}"}), 'its value is the payload');
my %said = @{ $record->{headers} };
is_deeply([ sort grep { /^ce_/ } keys %said ],
	[ map { "ce_$_" } qw(id origin outboxtenant partitionkey source specversion subject time type) ], 'its attributes are headers');
is($said{ce_origin}, "\x{f6}, \x{e4}", 'in UTF-8');
is($said{'content-type'}, 'application/json', 'with the type of the payload');
SKIP:
{
	my $sdk = "$top/test/conformance/node_modules/cloudevents";
	skip 'the CloudEvents SDK of npm is not installed', 1 unless -d $sdk && system('node --version > /dev/null 2>&1') == 0;
	append_to_file("$dir/record.json", encode_json($record));
	my $read = qx{node -e 'const { Kafka } = require("$sdk"); const r = require("$dir/record.json"); const h = {};
		for (let i = 0; i < r.headers.length; i += 2) h[r.headers[i]] = r.headers[i + 1];
		const e = Kafka.toEvent({ headers: h, key: r.key, value: JSON.parse(r.payload) }); e.validate();
		console.log([e.id, e.type, e.subject, e.partitionkey, e.outboxtenant, e.data.n].join(" "));' 2>&1};
	is($read, encode('UTF-8', "$id made \x{43a}\x{43b}=1 \x{43a}\x{43b}=1 acme \x{fc}\n"), 'the SDK reads it');
}

# The same event in structured mode: the record's value is the whole CloudEvent
mock('topic whole 1');
ask("SELECT outbox.create_endpoint('whole', 'kafka://$broker/whole', '{whole.*}', format => 'cloudevents')");
$id = emit($node, 'whole.made', '{"n": "ü"}', q[key => 'кл=1', type => 'made', tenant => 'acme']);
wait_status($node, $id, 'delivered', 'a CloudEvent in structured mode');
my ($whole) = records('whole');
like($whole->[2], qr/^content-type=application\/cloudevents\+json[,;]/, 'its type says so');
my $event = decode_json($whole->[4]);
is(join(' ', @$event{qw(specversion id type subject partitionkey outboxtenant)}, $event->{data}{n}),
	"1.0 $id made \x{43a}\x{43b}=1 \x{43a}\x{43b}=1 acme \x{fc}", 'its value has the attributes and the payload');
is($whole->[1], 'кл=1', 'and its key is that of the event');

# What the caller does not say is the sink's
sub unsaid
{
	return ask("SELECT concat_ws(' ', format, max_in_flight, timeout) FROM outbox.endpoints WHERE name = 'unsaid'");
}
ask("SELECT outbox.create_endpoint('unsaid', 'kafka://$broker/load', '{unsaid}')");
is(unsaid(), 'raw 1000 00:01:00', 'the format, the number in flight and the time of this sink');
ask("SELECT outbox.alter_endpoint('unsaid', format => 'standard', max_in_flight => 5, timeout => '1 s')");
is(unsaid(), 'standard 5 00:00:01', 'they can be changed');
ask("SELECT outbox.alter_endpoint('unsaid', reset => '{format,max_in_flight,timeout}')");
is(unsaid(), 'raw 1000 00:01:00', 'and brought back');
ask("SELECT outbox.drop_endpoint('unsaid')");

# URLs
foreach my $bad ([ "$broker/a b", 'contains a space' ], [ "x\@$broker/a", 'a user name' ],
	(map { [ "$broker,$_/a", 'a name that cannot be looked up' ] } '-a.example', 'a' x 64 . '.example', 'a..example', '<host>:9092', 'a"b'),
	(map { [ "$_,$broker", 'neither a name nor an address' ] } '1.2.3.4.5:9092', '256.1.1.1', '[::g]:9092', '[abc]'),
	(map { [ "$broker,$_/a", 'the address in the URL is private' ] } '10.0.0.1:9092', '[::ffff:10.0.0.1]', '0xa.1'),
	(map { [ "$_/a", 'empty or too long' ] } ':9092', "$broker,", 'a.' x 130))
{
	my ($rc, undef, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('bad', 'kafka://$bad->[0]')");
	like($err, qr/$bad->[1].*\nHINT:/, "refused: $bad->[0]");
}
my %words = ('?x=1' => 'more than brokers and a topic', '/a/b' => 'the topic in the URL may have', ':99999/a' => 'is not host:port',
	'/{body}' => 'a place in the URL is not', '/{header.}' => 'a place in the URL is not',
	'/{header.Outbox-Attempt}' => 'a place in the URL is not',
	'/{header.a/b}' => 'a place in the URL is not', '/{topic.0}' => 'a place in the URL is not', '/{topic' => 'a place in the URL is not',
	'/..' => 'one that Kafka cannot have', '/' . 'a' x 250 => 'one that Kafka cannot have', '/' . '{type}' x 17 => 'more than 16 parts');
foreach my $rest (sort keys %words)
{
	my ($rc, undef, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('bad', 'kafka://127.0.0.1$rest', '{bad}')");
	like($err, qr/the sink kafka cannot have this endpoint: .*$words{$rest}.*\nHINT:  Write the URL as kafka/, "$rest is refused");
}

# Topics that are made of the event
mock("topic $_ 1") foreach qw(shop.order.t-7.order.v2 acme.order order);
ask("SELECT outbox.create_endpoint('places', 'kafka://$broker/shop.{topic.1}.{tenant}.{type}', '{order.placed}', format => 'raw', timeout => '60 s', tenant => 't-7')");
ask("SELECT outbox.create_endpoint('segment', 'kafka://$broker/acme.{topic.2}', '{place.*}', format => 'raw', timeout => '60 s', max_attempts => 1)");
$id = ask("SELECT outbox.emit('order.placed', '{\"n\": 1}', type => 'order.v2', tenant => 't-7')");
wait_status($node, $id, 'delivered', 'a topic of a segment, the tenant and the type');
is(numbers(records('shop.order.t-7.order.v2')), '1', 'is where the event is');
$id = emit($node, 'place.order.x', '{"n": 2}');
wait_status($node, $id, 'delivered', 'another segment');
is(numbers(records('acme.order')), '2', 'is where its event is');
$id = emit($node, 'place.' . 'x' x 245, '{}');
wait_status($node, $id, 'dead', 'an event whose topic is too long for Kafka is dead');
like(ask("SELECT last_error FROM outbox.dead_letters WHERE event_id = '$id'"), qr/^Kafka cannot have the topic "acme\.x{95}": its name is longer than 249 characters/, 'and says why');
ask("SELECT outbox.create_endpoint('deep', 'kafka://$broker/{topic.3}', '{deep.*}', format => 'raw', timeout => '60 s')");
$id = emit($node, 'deep.x', '{}');
wait_status($node, $id, 'dead', 'an event without that segment is dead');
like(ask("SELECT last_error FROM outbox.dead_letters WHERE event_id = '$id'"), qr/a segment of the topic that the event's topic does not have/, 'and says why');
ask("SELECT outbox.create_endpoint('whose', 'kafka://$broker/{tenant}', '{whose.*}', format => 'raw', timeout => '60 s')");
$id = emit($node, 'whose.x', '{}');
wait_status($node, $id, 'dead', 'an event without a tenant has no topic of a tenant');
mock('topic to.eu.k-1 1');
ask("SELECT outbox.create_endpoint('routed', 'kafka://$broker/to.{header.X-Region}.{key}', '{routed.*}', format => 'raw', timeout => '60 s', max_attempts => 1)");
my %routed = map { $_->[0] => ask("SELECT outbox.emit('routed.x', '{\"n\": 3}', key => $_->[1], headers => '$_->[2]')") } (
	[ good => "'k-1'", '{"x-region": "eu"}' ], [ 'that the event does not have' => "'k-2'", '{"x-regions": "eu"}' ],
	[ 'has \{key\}, and the event has no key' => 'NULL', '{"x-region": "eu"}' ], [ 'the topic "to\.eu\.k/3": its name may have letters, digits' => "'k/3'", '{"x-region": "eu"}' ]);
wait_status($node, delete $routed{good}, 'delivered', 'a topic of a header and the key');
is(numbers(records('to.eu.k-1')), '3', 'is where its event is');
foreach my $why (sort keys %routed)
{
	wait_status($node, $routed{$why}, 'dead', "dead: $why");
	like(ask("SELECT last_error FROM outbox.dead_letters WHERE event_id = '$routed{$why}'"), qr/$why/, 'and says why');
}

# Tombstones, Debezium's header, a schema's number
mock('topic changes 1');
ask("SELECT outbox.create_endpoint('changes', 'kafka://$broker/changes', '{change.*}', format => 'raw', timeout => '60 s', config => '{\"tombstones\": true, \"headers\": \"debezium\", \"schema_id\": 258}')");
ask(q{SELECT outbox.emit('change.a', '{"n": 1}', key => 'k')});
my $gone = ask(q{SELECT outbox.emit('change.b', 'null', key => 'k')});
ask(q{SELECT outbox.emit('change.c', 'null')});
ask(q{SELECT outbox.emit_bytes('change.d', '\x8081'::bytea, 'application/avro', key => 'k')});
endpoint_shows($node, 'changes', 'delivered = 4', 'four changes');
my %value = map { /outbox-topic=change\.(\w)/ ? ($1 => $_) : () } split /\n/,
  qx{kcat -C -q -e -X broker.address.family=v4 -b $broker -t changes -o beginning -f '%S %h %s\n' 2>/dev/null};
like($value{a}, qr/^8 .*\{"n": 1\}$/, 'a value stays as it is');
like($value{b}, qr/^-1 .*,id=$gone/, 'null with a key is a record without a value, and the header id is that of the event');
like($value{c}, qr/^4 .* null$/, 'null without a key is null');
is(unpack('H*', $value{d} =~ /^7 \S+ (.*)$/ ? $1 : ''), '00000001028081', 'bytes have the number of their schema before them') or diag($value{d});

# A header "id" of the event is no second one; a content type has upper or lower case
my $debezium = ask(q{SELECT outbox.emit('change.e', '{}', headers => '{"Id": "not-this", "x": "y"}')});
ask(q{SELECT outbox.emit_bytes('change.f', 'null', 'APPLICATION/JSON; charset=utf-8', key => 'k')});
ask(q{SELECT outbox.emit_bytes('change.g', 'null', 'application/json-seq', key => 'k')});
endpoint_shows($node, 'changes', 'delivered = 7', 'three more');
%value = map { /outbox-topic=change\.(\w)/ ? ($1 => $_) : () } split /\n/,
  qx{kcat -C -q -e -X broker.address.family=v4 -b $broker -t changes -o beginning -f '%S %h %s\n' 2>/dev/null};
is(join(' ', $value{e} =~ /[ ,](id=[^, ]*)/gi), "id=$debezium", 'the header id is there once, as Debezium has it');
like($value{e}, qr/,x=y,/, 'the others are there');
like($value{f}, qr/^-1 /, 'null in JSON of another case is null');
like($value{g}, qr/^9 /, 'what only begins like JSON is bytes');
foreach my $bad ([ '{"tombstones": "yes"}', 'neither true nor false' ], [ '{"headers": "x"}', 'is not debezium' ], [ '{"schema_id": -1}', 'no number of a schema' ],
	[ '{"schema_id": 2147483648}', 'no number of a schema' ])
{
	my ($rc, undef, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('bad', 'kafka://$broker/a', '{bad}', config => '$bad->[0]')");
	like($err, qr/$bad->[1].*\nHINT:  Use/, "refused: $bad->[0]");
}

# Authentication: what cannot be right is refused at once
foreach my $bad (
	[ 'kafka', '{"sasl": "GSSAPI"}', '{}', 'sasl in config is no mechanism', 'Use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM' ],
	[ 'kafka', '{"sasl": "PLAIN"}', '{}', 'sasl needs username and password', 'Pass credentials' ],
	[ 'kafka', '{"sasl": "PLAIN"}', '{"username": "u"}', 'sasl needs username and password', 'Pass credentials' ],
	[ 'kafka', '{"sasl": "OAUTHBEARER"}', '{"username": "u", "password": "p"}', 'credentials has no token', 'Pass credentials' ],
	[ 'kafka', '{}', '{"username": "u", "password": "p"}', 'no sasl in config uses them', 'Name the mechanism' ],
	[ 'kafka', '{"sasl": "PLAIN"}', '{"username": "u", "password": "p", "token": "t"}', 'no sasl in config uses it', 'OAUTHBEARER' ],
	[ 'kafkas', '{}', '{"client_key": "k"}', 'one of client_certificate and client_key', 'Pass both' ],
	[ 'kafka', '{}', '{"client_key": "k", "client_certificate": "c"}', 'for encrypted connections only', 'kafkas://' ],
	[ 'kafka', '{"ssl.key.location": "/etc/passwd"}', '{}', 'unknown name "ssl.key.location" in config', 'The sink kafka knows: sasl, region, credentials, headers, schema_id, tombstones.' ],
	[ 'kafka', '{}', '{"sasl.password": "p"}', 'unknown name in credentials', 'The sink kafka knows: username, password, token, client_certificate, client_key, access_key_id, secret_access_key, session_token.' ])
{
	my ($rc, undef, $err) = $node->psql('postgres',
		"SELECT outbox.create_endpoint('bad', '$bad->[0]://$broker/orders', '{bad}', config => '$bad->[1]', credentials => '$bad->[2]')");
	like($err, qr/ERROR: .*\Q$bad->[3]\E.*HINT: .*\Q$bad->[4]\E/s, "refused: $bad->[1] $bad->[2]");
}

# What only librdkafka can tell
ask("SELECT outbox.create_endpoint('no_pem', 'kafkas://$broker/orders', '{no_pem}', credentials => '{\"client_certificate\": \"x\", \"client_key\": \"x\"}')");
endpoint_shows($node, 'no_pem', "state = 'backing_off' AND reason ~ '^librdkafka: '", 'a certificate that is none is named');
ask("SELECT outbox.drop_endpoint('no_pem')");

# Endpoints with the same brokers and other credentials do not share a connection.  The
# mock broker does not know SASL.
ask(q[SELECT outbox.create_endpoint('open', 'kafka://%s/orders', '{open}', timeout => '60 s')] =~ s/%s/$broker/r);
endpoint_shows($node, 'open', "state = 'active'", 'without credentials it is connected');
ask(q[SELECT outbox.create_endpoint('closed', 'kafka://%s/orders', '{closed}', timeout => '60 s', config => '{"sasl": "PLAIN"}', credentials => '{"username": "u", "password": "s3cr3t"}')] =~ s/%s/$broker/r);
endpoint_shows($node, 'closed', "state = 'backing_off' AND reason ~ 'SASL'", 'with credentials it is not, because the broker does not take them');
$id = emit($node, 'open', '{"n": 1}');
wait_status($node, $id, 'delivered', 'the other one goes on');
ask("SELECT outbox.alter_endpoint('closed', reset => '{config,credentials}')");
endpoint_shows($node, 'closed', "state = 'active'", 'and it too, without credentials');

# A broker that ends each connection, as one does that wants SASL or TLS
my $rude = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 10) or die "socket: $!\n";
my $rude_pid = fork // die "fork: $!\n";
if ($rude_pid == 0)
{
	while (my $connection = $rude->accept) { sysread($connection, my $ignored, 4096); close($connection); }
	POSIX::_exit(0);
}
push @OutboxTest::Receiver::started, $rude_pid;
ask("SELECT outbox.create_endpoint('rude', 'kafka://127.0.0.1:" . $rude->sockport . "/orders', '{rude}')");
endpoint_shows($node, 'rude', "state = 'backing_off' AND reason ~ 'Disconnected'", 'a broker that ends connections is named');
ask("SELECT outbox.drop_endpoint('rude')");

# Brokers that are silent: at the connection, at its first request, or later
my %silent = (
	'accepts no connection' => 'no connection to broker',
	'accepts and says nothing' => 'no answer from broker',
	'is silent after it has told its versions' => 'no answer from broker');
my $hostile = start_hostile('kafka', sort keys %silent);
foreach my $name (sort keys %silent)
{
	my $address = "127.0.0.1:$hostile->{port}{$name}";
	ask("SELECT outbox.create_endpoint('silent', 'kafka://$address/orders', '{silent}', timeout => '60 s', connect_timeout => '60 s')");
	$id = emit($node, 'silent', '{}');
	endpoint_shows($node, 'silent', "state = 'backing_off' AND reason = '$silent{$name} $address for more than a second'", "a broker that $name is named");
	is(ask("SELECT pending || ' ' || processing || ' ' || failed_attempts FROM outbox.stats WHERE endpoint = 'silent'"), '1 0 0', 'its event waits');
	ask("SELECT outbox.drop_endpoint('silent', discard => true)");
}
kill 'STOP', $mock_pid;
$id = emit($node, 'order.stopped', '{}');
endpoint_shows($node, 'bus', "state = 'active' AND reason = 'no answer from broker $broker for more than a second'", 'a broker that has stopped to answer is named, and still used');
kill 'CONT', $mock_pid;
wait_status($node, $id, 'delivered', 'when it answers again, all goes on');
endpoint_shows($node, 'bus', "state = 'active' AND reason IS NULL AND failed_attempts = 0", 'and nothing is said any more');
unlike(slurp_file($node->logfile), qr/endpoint "bus".*no answer/, 'the log does not repeat what a view shows');

# TLS to a broker that speaks none
ask("SELECT outbox.create_endpoint('tls', 'kafkas://$broker/orders', '{tls}')");
endpoint_shows($node, 'tls', "state = 'backing_off' AND reason ~ 'SSL'", 'a broker without TLS is not spoken to in clear');
ask("SELECT outbox.drop_endpoint('tls')");

# TLS to a broker that is not who it says, with the places in the sources of OpenSSL left out
make_cert($dir, 'good', 'authority', 'IP:127.0.0.1');
make_cert($dir, 'expired', 'authority', 'IP:127.0.0.1', -30, -1);
make_cert($dir, 'stranger', 'other', 'IP:127.0.0.1');
make_cert($dir, 'elsewhere', 'authority', 'DNS:elsewhere.test,IP:127.0.0.2');
foreach my $name (qw(good expired stranger elsewhere))
{
	my $front = start_front('127.0.0.1:0', $broker =~ s/.*://r, cert => "$dir/$name.crt", key => "$dir/$name.key");
	ask("SELECT outbox.create_endpoint('$name', 'kafkas://127.0.0.1:$front->{port}/orders', '{tls}')");
	if ($name eq 'good')
	{
		ok(wait_until(sub { lines_of($front->{journal}, '^tls TLS') }, 'a handshake'), 'a broker with a good certificate is spoken to');
	}
	else
	{
		endpoint_shows($node, $name, "state = 'backing_off' AND reason ~ 'certificate verify failed' AND reason !~ '[.]c:'", "a broker whose certificate is bad is not: $name");
		is(scalar lines_of($front->{journal}, '^tls TLS'), 0, '... not one byte');
	}
	note(ask("SELECT reason FROM outbox.stats WHERE endpoint = '$name'"));
	ask("SELECT outbox.drop_endpoint('$name')");
}

# Another authority, in the setting and then in its file, is that of new connections after a reload
my %tls = map { $_ => start_front('127.0.0.1:0', $broker =~ s/.*://r, cert => "$dir/$_.crt", key => "$dir/$_.key") } qw(good stranger);
ask("SELECT outbox.create_endpoint('$_', 'kafkas://127.0.0.1:$tls{$_}{port}/orders', '{tls}')") foreach qw(good stranger);
my $trust = sub {
	my ($trusted, $other, $why, $before) = @_;
	$before //= lines_of($tls{$trusted}{journal}, '^tls TLS');
	ask('SELECT pg_reload_conf()');
	endpoint_shows($node, $other, "state = 'backing_off' AND reason ~ 'certificate verify failed'", "$why: not $other");
	ok(wait_until(sub { lines_of($tls{$trusted}{journal}, '^tls TLS') > $before }, 'a handshake'), "but $trusted");
};
$trust->('good', 'stranger', 'the authority', 0);
ask("ALTER SYSTEM SET outbox.ssl_ca_file = '$dir/other.crt'");
$trust->('stranger', 'good', 'another one');
ask("ALTER SYSTEM SET outbox.ssl_ca_file = '$dir/nowhere.crt'");
ask('SELECT pg_reload_conf()');
ask("SELECT outbox.create_endpoint('late', 'kafkas://127.0.0.1:$tls{good}{port}/orders', '{late}', timeout => '59 s')");
endpoint_shows($node, $_, "state = 'backing_off' AND reason ~ '^librdkafka: ssl.ca.location'", "one that is not there is named: $_") foreach qw(good stranger late);
ok(wait_sql($node, "SELECT shared IS NOT NULL FROM outbox.positions JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'late' ORDER BY number DESC LIMIT 1"), 'an endpoint without events is idle by now');
system_or_bail('cp', "$dir/authority.crt", "$dir/nowhere.crt");
$trust->('good', 'stranger', 'once it is there');
endpoint_shows($node, 'late', "state = 'active'", 'also for an endpoint that was created before');
system_or_bail('cp', "$dir/other.crt", "$dir/nowhere.crt");
$trust->('stranger', 'good', 'with other content');
ask('ALTER SYSTEM RESET outbox.ssl_ca_file');
ask("SELECT outbox.drop_endpoint('$_')") foreach qw(good stranger late);

# Addresses
ask("SELECT outbox.create_endpoint('inside', 'kafka://$broker/inside', '{inside}', timeout => '61 s')");
wait_status($node, emit($node, 'inside', '{"n": 0}'), 'delivered', 'to an address that is allowed');
ask("ALTER SYSTEM SET outbox.allowed_networks = ''");
ask('SELECT pg_reload_conf()');
wait_sql($node, q[SELECT current_setting('outbox.allowed_networks') = ''], 't');
foreach ([ 'kafka://b1.example:9092/t', 1 ], [ 'kafkas://b1.example:9092/t', 0 ])
{
	my ($url, $refused) = @$_;
	my (undef, undef, $err) = $node->psql('postgres', "BEGIN; SELECT outbox.create_endpoint('clear', '$url')");

	is($err =~ /plain kafka is allowed to addresses in outbox.allowed_networks only\nHINT:  Use kafkas/ ? 1 : 0, $refused, "no network is allowed: $url");
}
ask("ALTER SYSTEM SET outbox.allowed_networks = '10.99.0.0/16'");
ask('SELECT pg_reload_conf()');
endpoint_shows($node, 'inside', "state = 'backing_off' AND reason ~ 'address 127.0.0.1 is loopback, and not in outbox.allowed_networks'",
	'a connection that is open is not used for an address that is not allowed any more');
$id = emit($node, 'inside', '{"n": 1}');
ask("ALTER SYSTEM SET outbox.allowed_networks = '127.0.0.1/32'");
ask('SELECT pg_reload_conf()');
wait_status($node, $id, 'delivered', 'until it is allowed');
endpoint_shows($node, 'inside', 'failed_attempts = 0', 'and no attempt was counted');

# The end of a worker is bounded, with a dead broker too
mock('down');
ask("SELECT outbox.emit('load', '{\"n\": 2001}', key => 'k1')");
my $worker = worker_pid($node);
ask("SELECT pg_terminate_backend($worker)");
new_worker($node, $worker);
mock('up');
endpoint_shows($node, 'load', 'pending = 0 AND processing = 0', 'after another worker has started, the event is delivered');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|FATAL:(?!  terminating)|was terminated by signal/, 'no process has crashed');
done_testing();
