# A second stand-in for SQS and SNS refuses, and takes for a repetition, the same as we expect.
# A FIFO queue keeps one message of an event that is sent again, also when the worker was killed
# meanwhile, and each key is in order.  A character that it refuses is refused before.  Against
# fauxqs, which takes connections on all addresses, so in a network of its own.  "make clients"
# fetches it and boto3, and runs this.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use OutboxTest::Network;
use OutboxTest::StandIn;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $cache = $ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test';
plan skip_all => 'needs what npm and pip fetch: "make clients" runs it' unless $ENV{OUTBOX_TEST_CLIENTS};
plan skip_all => 'outbox_aws was not built: it needs libcurl 7.87' unless is_installed('outbox_aws');
plan skip_all => "no boto3 in $cache/aws: pip could not fetch it" unless -e "$cache/aws/complete";
plan skip_all => "no fauxqs in $cache/fauxqs, or no node: npm could not fetch it"
  unless -e "$cache/fauxqs/complete" && system('node --version > /dev/null 2>&1') == 0;
own_network();
my ($zone) = start_dns();

local $ENV{PYTHONPATH} = "$cache/aws";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
my $dir = PostgreSQL::Test::Utils::tempdir('aws');
my ($port, $region, $account) = (4566, 'eu-central-1', '000000000000');
my $host = "sqs.$region.localhost";    # as it names itself in the URL of a queue
$zone->($host => '127.0.0.1');
my $json = JSON::PP->new->utf8->canonical;

{
	local @ENV{qw(FAUXQS_PORT FAUXQS_LOGGER FAUXQS_DEFAULT_REGION)} = ($port, 'false', $region);
	start_stand_in('fauxqs', $dir, $port, '/', 'node', "$cache/fauxqs/node_modules/fauxqs/dist/server.js");
}
my $client = start_client($port, $account);

sub client { return $client->(@_) }
ok(client('make'), 'queues and topics are made');

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\nrestart_after_crash = on\n");

sub create
{
	my ($name, $resource, $topic, $in_flight) = @_;
	my $config = $json->encode({ endpoint_url => "http://$host:$port" });
	my $keys = '{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "secret"}';
	return ask("SELECT outbox.create_endpoint('$name', 'arn:aws:$resource', '{$topic}', config => '$config', credentials => '$keys', format => 'raw', max_in_flight => $in_flight, timeout => '60 s')");
}
my %arn = (
	orders => "sqs:$region:$account:orders", fifo => "sqs:$region:$account:orders.fifo",
	news => "sns:$region:$account:news", news_fifo => "sns:$region:$account:news.fifo");

# One event, three times: by the worker, by the worker again, and by an ordinary client
create('one', $arn{fifo}, 'one', 10);
my $id = emit($node, 'one', '{"n": 1}', "key => 'k'");
wait_status($node, $id, 'delivered', 'an event is delivered');
ask("SELECT outbox.resend('one', '$id')");
endpoint_shows($node, 'one', 'delivered = 2 AND failed_attempts = 0', 'and again');
my $again = client('send orders.fifo ' . $json->encode({ body => '{"n": 1}', id => $id, group => 'k' }));
my ($message, @more) = @{ client('read orders.fifo') };
is(scalar @more, 0, 'the queue has it once');
is($message->{body}, '{"n": 1}', 'as it was emitted');
is("$again->{message} $again->{sequence}", "$message->{message} $message->{sequence}", 'what it says to a repetition is the id and the number of that message');
ask("SELECT outbox.drop_endpoint('one')");

# Workers that are killed under load
create($_, $arn{$_}, 'load', 40) foreach sort keys %arn;
my $n = 1500;
ask("SELECT outbox.pause_endpoint(name) FROM outbox.endpoints");
ask("SELECT count(outbox.emit('load', jsonb_build_object('n', n), key => 'k' || n % 40)) FROM generate_series(1, $n) n");
ask("SELECT outbox.resume_endpoint(name) FROM outbox.endpoints");
foreach my $round (1 .. 3)
{
	ok(wait_sql($node, "SELECT min(delivered) > $round * 200 FROM outbox.stats"), "round $round: it goes on");
	my $worker = worker_pid($node);
	kill 'KILL', $worker or die "SIGKILL: $!";
	wait_until { process_is_gone($worker) } 'it is gone';
	new_worker($node, $worker);
}
ok(wait_settled($node), 'after the workers were killed, all is delivered');
is(ask('SELECT sum(failed_attempts) FROM outbox.stats'), '0', 'no attempt has failed');
foreach my $name (qw(orders orders.fifo news news.fifo))
{
	my (%last, $disorder, %seen);
	foreach my $m (@{ client("read $name") })
	{
		my ($number) = $m->{body} =~ /"n": (\d+)/;
		next if $seen{$number}++;
		$disorder++ if ($last{ $m->{group} // '' } // 0) >= $number;
		$last{ $m->{group} // '' } = $number;
	}
	my $twice = grep { $_ > 1 } values %seen;
	is(scalar keys %seen, $n, "$name: nothing is lost");
	if ($name =~ /fifo/)
	{
		is($twice, 0, "$name: nothing is twice");
		is($disorder // 0, 0, "$name: each key is in order");
	}
	else { note("$name: $twice twice") }
}
ask('SELECT outbox.drop_endpoint(name) FROM outbox.endpoints');

# Characters: what is refused, is refused by both.  fauxqs also refuses those from U+10000 on, which
# the documentation of SQS allows.
create('chars', $arn{orders}, 'chars', 10);
my %fits = map { $_ => 1 } (0x9, 0xA, 0xD, 0x20, 0x7F, 0x85, 0xD7FF, 0xE000, 0xFFFD);
foreach my $code (sort { $a <=> $b } keys %fits, 0x1, 0x8, 0xB, 0xC, 0x1F, 0xFFFE, 0xFFFF)
{
	my $text = 'a' . chr($code) . 'b';
	my $name = sprintf 'U+%04X', $code;
	my $said = client('send orders ' . JSON::PP->new->ascii->encode({ body => $text }));

	is($said->{error} // 'taken', $fits{$code} ? 'taken' : 'AWS.SimpleQueueService.InvalidMessageContents', "$name: what the queue says");
	utf8::encode($text);
	$id = ask("SELECT outbox.emit_bytes('chars', '\\x" . unpack('H*', $text) . "'::bytea, 'text/plain')");
	wait_status($node, $id, $fits{$code} ? 'delivered' : 'dead', "$name: what becomes of the event");
	my @texts = map { unpack 'H*', $_ } map { my $t = $_->{body}; utf8::encode($t); $t } @{ client('read orders') };
	is("@texts", $fits{$code} ? join(' ', (unpack 'H*', $text) x 2) : '', 'and what is in the queue');
}
endpoint_shows($node, 'chars', "state = 'active'", 'the endpoint is not concerned');

$node->stop;
done_testing();
