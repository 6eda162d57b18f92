# A hostile service of AWS harms its own endpoint at most, never the worker or other endpoints.
# Each of many servers sends garbage, too much, too little or what does not fit, while a webhook
# endpoint and good services get their events.  Nothing counts as delivered that no server has
# accepted, an operator sees what is wrong, and the worker's memory stays bounded.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Beside qw(all_of);
use OutboxTest::Aws;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();

# What outbox.stats says of each server of test/aws/hostile.py, as its reason or its last error.
my $timeout = qr/^SQS: timed out$/;
my $foreign = qr/^\w+: what answers is another service \(status 200\)$/;
my $unfit = qr/^\w+: its answer does not fit the request \(status 200\)$/;
my $long = qr/^SQS: its answer is too long$/;
my $lacks = qr/^\w+: its answer lacks the entry$/;
my $curl = qr/^SQS: \w[^?]{10,}$/;    # libcurl's words, which its versions have changed
my %says = (
	'sqs: says nothing' => $timeout,
	'sqs: closes' => qr/^SQS: .*(?:[Ee]mpty|nothing)/,
	'sqs: resets' => qr/^SQS: .*reset/,
	'sqs: accepts, and closes' => qr/^SQS: .*(?:[Ee]mpty|nothing)/,
	'sqs: accepts, and resets in the middle of the answer' => qr/^SQS: .*reset/,
	'sqs: sends garbage' => $curl,
	'sqs: sends zeros without end' => $curl,
	'sqs: speaks SSH' => $curl,
	'https sqs: says nothing' => qr/^SQS: timed out while connecting$/,
	'https sqs: sends garbage' => qr/SSL|TLS/,
	'sqs: sends a byte now and then' => $timeout,
	'sqs: stops in the middle of the headers' => $timeout,
	'sqs: stops in the middle of the answer' => $timeout,
	'sqs: closes in the middle of the answer' => qr/^SQS: .*(?:closed with 3 bytes remaining|3 bytes missing)/,
	'sqs: closes in the middle of an answer of unknown length' => $foreign,
	'sqs: closes in the middle of a chunk' => qr/^SQS: .*closed/,
	'sqs: sends headers without end' => $long,
	'sqs: sends a header without end' => $long,
	'sqs: sends 100 Continue without end' => $long,
	'sqs: sends trailers without end' => $long,
	'sqs: sends a body without end' => $long,
	'sqs: sends chunks without end' => $timeout,
	'sqs: pads its answer to 2 MiB' => $long,
	'sqs: has a length that is none' => $curl,
	'sqs: has a length below zero' => $curl,
	'sqs: has a length of 2^64' => qr/^SQS: \w/,
	'sqs: has a length that is too short' => $foreign,
	'sqs: has a chunk whose length is none' => $curl,
	'sqs: has a chunk of 2^64 - 1 bytes' => $curl,
	'sqs: codes its chunks' => qr/^SQS: its answer has a transfer coding other than chunked$/,
	'sqs: has a zero in a header' => $curl,
	'sqs: compresses its answer' => $foreign,
	'sqs: has the status 999' => qr/^SQS: it refuses \(status 999\)$/,
	'sqs: speaks HTTP/7.3' => $curl,
	'sqs: changes the protocol' => $curl,
	'sqs: leads to itself' => qr/^SQS: it refuses \(status 307\)$/,
	'sqs: leads elsewhere' => qr/^SQS: it refuses \(status 301\)$/,
	'sqs: asks for a password' => qr/^SQS: it refuses \(status 401\)$/,
	'sqs: is a proxy that asks for a password' => qr/^SQS: it refuses \(status 407\)$/,
	'sqs: wants to be left alone for 30,000 years' => qr/^SQS: Unavailable$/,
	'sqs: refuses in words without a code' => qr/^SQS: it refuses \(status 403\): Forbidden by a firewall$/,
	'sqs: refuses in words that are no text' => qr/^SQS: Odd\?\?%s%n: \?\(\?\?\[31m%s%n'; DROP$/,
	'sqs: refuses in 100,000 letters' => qr/^SQS: C{63}: w{40,199}$/,
	'sqs: finds everything too large' => qr/^SQS: it refuses \(status 413\)$/,
	'sqs: has a page for everything' => $foreign,
	'sqs: has nothing to say' => $foreign,
	'sqs: has no content' => qr/^SQS: what answers is another service \(status 204\)$/,
	'sqs: has an error with the status 200' => qr/^SQS: AccessDenied: no$/,
	'sqs: has an error and successes' => qr/^SQS: AccessDenied: neither$/,
	'sqs: answers 50,000 levels deep' => $foreign,
	'sqs: is deep within its lists' => $foreign,
	'sqs: names 10,000 others' => $unfit,
	'sqs: names unknown ids' => $unfit,
	'sqs: names ids that are no numbers' => $unfit,
	'sqs: names each id twice' => $unfit,
	'sqs: names each as stored and failed' => $unfit,
	'sqs: has successes that are no objects' => $unfit,
	'sqs: leaves out every other one' => $lacks,
	'sqs: names none' => $lacks,
	'sqs: fails all without a word' => qr/^SQS: it gives no reason$/,
	'sqs: fails every other one for its sender' => qr/^SQS: Bad$/,
	'kinesis: leaves out the last record' => $unfit,
	'kinesis: has a record more' => $unfit,
	'kinesis: has null and then records' => $unfit,
	'kinesis: counts a failure that no record has' => $unfit,
	'kinesis: counts no failure, and has some' => $unfit,
	'kinesis: has records that say nothing' => qr/^Kinesis: it gives no reason$/,
	'kinesis: has empty numbers' => qr/^Kinesis: it gives no reason$/,
	'kinesis: has a number and an error' => qr/^Kinesis: InternalFailure: both$/,
	'kinesis: fails every other one' => qr/^Kinesis: InternalFailure: even$/,
	'events: has entries in entries' => qr/^EventBridge: its answer does not fit the request \(status 200\)$/,
	'events: has its entries twice' => $unfit,
	'sns: has an error before the answer' => qr/^SNS: AccessDenied$/,
	'sns: has a page before the answer' => $foreign,
	'sns: has entities that grow' => $foreign,
	'sns: is not closed' => $foreign,
	'sns: answers 80,000 levels deep' => $foreign,
	'sns: has a name of 100,000 letters' => $foreign,
	'sns: answers in JSON' => $foreign,
	'sns: leaves out every other one' => $lacks);

# Those that get everything delivered in spite of what they do
my @good = ('sqs: answers well', 'sns: answers well', 'events: answers well', 'kinesis: answers well',
	'sqs: sends a good answer byte by byte', 'sqs: pads its answer to almost 256 kB', 'sqs: calls its answer a picture');

# Those that kill an event, as their documents allow
my %dead = map { $_ => 1 } 'sqs: finds everything too large', 'sqs: fails every other one for its sender';

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 20);
$receiver->wait_delivered(20, path => '/ok/fine');
my $worker = worker_pid($node);
my $hostile = start_hostile('aws');
my %port = %{ $hostile->{port} };
my %name = map { ("h$port{$_}" => $_) } keys %port;

# How often each server was asked, and for which events it has accepted
sub shown
{
	my %times = map { ($_ => 0) } keys %port;
	my (%accepted, @odd);
	foreach (lines_of($hostile->{journal}, qr/./))
	{
		my ($name, $what, $more) = split /\t/;
		!$what ? $times{$name}++ : $what eq 'accepted' ? $accepted{$name}{$more} = 1 : push @odd, $_;
	}
	return (\%times, \%accepted, \@odd);
}

# The state of each endpoint: { name => { column => value } }
sub stats
{
	my %stats;
	my @columns = qw(endpoint pending processing delivered dead failed_attempts reason last_error);
	foreach (split /\n/, ask("SELECT concat_ws(E'\\t', endpoint, pending, processing + retrying, delivered, dead, failed_attempts, coalesce(reason, ''), coalesce(last_error, '')) FROM outbox.stats WHERE endpoint <> 'fine'"))
	{
		my %row;
		@row{@columns} = split /\t/, $_, -1;
		$stats{ $name{ $row{endpoint} } } = \%row;
	}
	return %stats;
}

my $count = keys %port;
like(slurp_file("$top/doc/aws.md"), qr/ tries $count hostile services,/, "$count hostile services, as doc/aws.md says");
is(join("\n", sort keys %port), join("\n", sort keys %says, @good), 'it is known what each server does');
my %arn = (sqs => 'q', sns => 't', events => 'event-bus/b', kinesis => 'stream/s');
my $before = private_memory($worker);
ask(join ';', map {
	my ($scheme, $service) = $name{$_} =~ /^(?:(https) )?(\w+):/;
	sprintf q{SELECT outbox.create_endpoint('%s', 'arn:aws:%s:eu-central-1:123456789012:%s', '{hostile}', config => '{"endpoint_url": "%s://127.0.0.1:%d"}', credentials => '{"access_key_id": "a", "secret_access_key": "s3cr3t", "session_token": "t0k3n"}', format => 'raw', timeout => '2 s', connect_timeout => '1 s', backoff_base => '500 ms', backoff_max => '1 s')},
	  $_, $service, $arn{$service}, $scheme // 'http', $port{ $name{$_} }
} sort keys %name);
ask(q{SELECT count(outbox.emit('hostile', jsonb_build_object('n', n), key => 'k' || n)) FROM generate_series(1, 6) n});

all_of('each server has shown what it is', sub { my ($times) = shown(); return grep { $times->{$_} == 0 } sort keys %port });
all_of('a good answer is good, however it comes', sub {
	my %stats = stats();
	return map { "$_: $stats{$_}{delivered}" } grep { $stats{$_}{delivered} < 6 } @good;
});
all_of('of what is named in part, that part is delivered', sub {
	my %stats = stats();
	return map { "$_: $stats{$_}{delivered}" } grep { /every other one/ && $stats{$_}{delivered} < 3 } sort keys %says;
});
my %seen;
all_of('the operator sees what each of the others does', sub {
	my %stats = stats();
	$seen{$_} ||= $stats{$_}{reason} =~ $says{$_} || $stats{$_}{last_error} =~ $says{$_} foreach keys %says;
	return map { "$_: $stats{$_}{reason} / $stats{$_}{last_error}" } grep { !$seen{$_} } sort keys %says;
});

# Once more, with more events
my ($times) = shown();
my $memory = private_memory($worker);
my $fine = () = $receiver->delivered(path => '/ok/fine');
ask(q{SELECT count(outbox.emit('hostile', jsonb_build_object('n', n), key => 'k' || n)) FROM generate_series(7, 60) n});
all_of('each is asked again and again, for as long as it is not good', sub {
	my ($now) = shown();
	return map { "$_: $times->{$_}, then $now->{$_}" } grep { $now->{$_} < $times->{$_} + 2 } sort grep { !$dead{$_} } keys %says;
});
all_of('the good ones get all', sub {
	my %stats = stats();
	return map { "$_: $stats{$_}{delivered}" } grep { $stats{$_}{delivered} < 60 } @good;
});
$receiver->wait_delivered($fine + 50, path => '/ok/fine');
my $later = private_memory($worker);
note(sprintf 'memory: %.1f MB before, then %.1f MB and %.1f MB', $before, $memory, $later);
cmp_ok($later - $before, '<', 100, 'the memory is bounded') unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
is(worker_pid($node), $worker, 'the worker lives');

# Nothing is delivered that was not accepted
my %delivered;
foreach (split /\n/, ask(q{SELECT d.endpoint || ' ' || (e.payload::jsonb ->> 'n') FROM outbox.deliveries d JOIN outbox.events e ON e.id = d.event_id WHERE d.topic = 'hostile' AND d.status = 'delivered'}))
{
	my ($endpoint, $n) = split / /;
	push @{ $delivered{ $name{$endpoint} } }, $n;
}
my (undef, $accepted, $odd) = shown();
my @invented;
foreach my $name (sort keys %delivered)
{
	push @invented, "$name: $_" foreach grep { !$accepted->{$name}{$_} } sort { $a <=> $b } @{ $delivered{$name} };
}
is(join("\n", @invented), '', 'nothing counts as delivered that was not accepted');
my %stats = stats();
is(join("\n", map { "$_: $stats{$_}{dead}" } grep { $stats{$_}{dead} > 0 && !$dead{$_} } sort keys %stats), '', 'no event is dead but those that were refused for good');
is(join("\n", @$odd), '', 'each request is a POST to /, with a signature');
unlike(slurp_file($hostile->{journal}), qr/s3cr3t/, 'no secret was sent');

ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'");

# Credentials go into header lines, and none begins another one
my $files = PostgreSQL::Test::Utils::tempdir('files');
append_to_file("$files/odd", "a\r\nX-Odd: yes");
ask("ALTER SYSTEM SET outbox.secrets_directory = '$files'");
ask('SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT current_setting('outbox.secrets_directory') = '$files'"), 'a file may have what no value in SQL may have');
foreach my $odd (qw(access_key_id secret_access_key session_token))
{
	ask("SELECT outbox.create_endpoint('odd', 'arn:aws:sqs:eu-central-1:123456789012:q.fifo', '{none}', config => '{\"endpoint_url\": \"http://127.0.0.1:9\"}',"
		  . " credentials => '{\"access_key_id\": \"a\", \"secret_access_key\": \"b\", \"session_token\": \"c\"}'::jsonb || '{\"$odd\": {\"file\": \"odd\"}}')");
	ok(wait_sql($node, "SELECT reason = '$odd has a control character' FROM outbox.stats WHERE endpoint = 'odd'"), "a line break in $odd: the endpoint waits");
	ask("SELECT outbox.drop_endpoint('odd')");
}
stop_producer($producer);
is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'fine'"), '0', 'webhooks have not noticed anything');
is(ask('SELECT restarts FROM outbox.workers'), '0', 'the worker has lived through all of it');
check_history($node, $receiver, $log, endpoints => ['/ok/fine'], name => 'nothing lost, nothing twice, all in order');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
unlike(slurp_file($node->logfile), qr/s3cr3t|t0k3n/, 'no key is in the log');
done_testing();
