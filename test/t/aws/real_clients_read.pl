# An ordinary client reads the events in SQS, SNS, EventBridge and Kinesis: all, and in order.
# botocore's own signer finds each signature right.  Against moto; "make clients" fetches it and
# boto3, and runs this.
use strict;
use warnings;

use IPC::Open2;
use JSON::PP;
use OutboxTest;
use OutboxTest::StandIn;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $libraries = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/aws';
plan skip_all => 'needs what pip fetches: "make clients" runs it' unless $ENV{OUTBOX_TEST_CLIENTS};
plan skip_all => 'outbox_aws was not built: it needs libcurl 7.87' unless is_installed('outbox_aws');
plan skip_all => "no moto in $libraries: pip could not fetch it" unless -e "$libraries/complete";

local $ENV{PYTHONPATH} = $libraries;
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
my $dir = PostgreSQL::Test::Utils::tempdir('aws');
my $json = JSON::PP->new->utf8;

my $port = start_moto($dir);
my $client = start_client($port);

sub client { return $client->(@_) }
ok(client('make') && client('make_more'), 'queues, topics, a bus and a stream are made');

local $ENV{AWS_EC2_METADATA_SERVICE_ENDPOINT} = "http://127.0.0.1:$port";
local $ENV{AWS_ENDPOINT_URL_STS} = "http://127.0.0.1:$port/";
local $ENV{AWS_ROLE_ARN} = 'arn:aws:iam::123456789012:role/outbox';
local $ENV{AWS_WEB_IDENTITY_TOKEN_FILE} = "$dir/token";
append_to_file("$dir/token", "token\n");
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");

sub shows
{
	my ($endpoint, $condition, $name) = @_;
	return ok(wait_until(sub { ask("SELECT $condition FROM outbox.stats WHERE endpoint = '$endpoint'") eq 't' }, $name, 120), $name)
	  || diag(ask("SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = '$endpoint'"));
}

my $keys = q('{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "secret"}');

sub create
{
	my ($name, $resource, $topic, %more) = @_;
	my $config = $json->encode({ endpoint_url => 'http://127.0.0.1:' . ($more{port} // $port), ($more{source} ? (source => $more{source}) : ()) });
	ask("SELECT outbox.create_endpoint('$name', 'arn:aws:$resource', '{$topic}', config => '$config', credentials => $keys, format => 'raw', max_in_flight => 100, timeout => '60 s')");
}
my ($region, $account) = qw(eu-central-1 123456789012);
create('orders', "sqs:$region:$account:orders", 'load');
create('orders_fifo', "sqs:$region:$account:orders.fifo", 'load');
create('news', "sns:$region:$account:news", 'load');
create('news_fifo', "sns:$region:$account:news.fifo", 'load');
create('bus', "events:$region:$account:event-bus/bus", 'load', source => 'shop');
create('stream', "kinesis:$region:$account:stream/stream", 'load');

my $n = 300;
ask("SELECT count(outbox.emit('load', jsonb_build_object('n', n, 'ü', '<&>\"'), key => 'k' || n % 20, headers => '{\"x-a\": \"b\"}')) FROM generate_series(1, $n) n");
shows($_, "delivered = $n AND pending = 0 AND failed_attempts = 0", "$_: all is delivered") foreach qw(orders orders_fifo news news_fifo bus stream);

my %expected = map { split /\t/, $_, 2 } split /\n/, ask("SELECT id || E'\\t' || payload FROM outbox.events WHERE topic = 'load'");
utf8::decode($_) foreach values %expected;
my @numbers = 1 .. $n;
foreach my $name (qw(orders orders.fifo news news.fifo bus stream))
{
	my (%last, $disorder, %seen, $wrong);
	foreach my $m (@{ client("read $name") })
	{
		my $body = $m->{body};
		my $id = $m->{attributes}{'outbox-id'};
		if ($name eq 'bus')
		{
			my $event = JSON::PP->new->decode($body);
			($id) = $event->{resources}[0] =~ /^urn:uuid:(.*)$/;
			$wrong++ if $event->{source} ne 'shop' || $event->{'detail-type'} ne 'load' || $event->{detail}{"\x{fc}"} ne '<&>"';
			$body = $expected{$id};
		}
		my ($number) = $body =~ /"n": (\d+)/;
		$wrong++ if $id && $body ne $expected{$id};
		$wrong++ if $name =~ /orders|news/ && $m->{attributes}{'x-a'} ne 'b';
		$wrong++ if $name =~ /fifo/ && ($m->{deduplication} ne $id || $m->{group} ne 'k' . $number % 20);
		$seen{$number}++;
		$disorder++ if ($last{ $m->{group} // '' } // 0) >= $number;
		$last{ $m->{group} // '' } = $number;
	}
	is(join(' ', sort { $a <=> $b } keys %seen), "@numbers", "$name: nothing is lost");
	is(scalar(grep { $_ > 1 } values %seen), 0, "$name: nothing is twice");
	is($wrong // 0, 0, "$name: everything is as it was emitted");
	is($disorder // 0, 0, "$name: each key is in order") if $name =~ /fifo|stream/;
}

# A queue that is missing, in the words of another implementation
create('later', "sqs:$region:$account:later", 'later');
ask("SELECT count(outbox.emit('later', jsonb_build_object('n', n), key => 'k')) FROM generate_series(1, 20) n");
shows('later', "state = 'backing_off' AND reason ~ '^SQS: (QueueDoesNotExist|AWS.SimpleQueueService.NonExistentQueue): '", 'a missing queue is named');
client('queue later');
shows('later', 'delivered = 20 AND failed_attempts = 0', 'and gets its events when it is there');
is(scalar @{ client('read later') }, 20, 'each once');

# Keys of a role, in the words of another implementation
ok(client('queue roles'), 'a queue');
my %delivered = (imds => 1, web_identity => 2);
foreach my $source (qw(imds web_identity))
{
	ask("ALTER SYSTEM SET outbox.aws_role = $source");
	ask('SELECT pg_reload_conf()');
	ask("SELECT outbox.create_endpoint('roles', 'arn:aws:sqs:$region:$account:roles', '{roles}', config => '{\"credentials\": \"role\", \"endpoint_url\": \"http://127.0.0.1:$port\"}')")
	  if $source eq 'imds' && wait_sql($node, "SELECT current_setting('outbox.aws_role') = 'imds'");
	shows('roles', "state = 'active'", "there are keys: $source");
	emit($node, 'roles', '{}');
	shows('roles', "delivered = $delivered{$source} AND failed_attempts = 0", "an event is delivered with the keys of a role: $source");
	ask('ALTER SYSTEM RESET outbox.aws_role');
	ask('SELECT pg_reload_conf()');
	shows('roles', "state = 'backing_off' AND reason = 'SQS: outbox.aws_role is none'", 'and not without them');
}
is(scalar @{ client('read roles') }, 2, 'both are there');

# Signatures: what our own stand-in records, botocore judges
my $journal = "$dir/journal";
my $fake = open2(my $fake_out, my $fake_in, 'python3', "$top/test/aws/fake.py", $journal);
push @OutboxTest::Receiver::started, $fake;
chomp(my $fake_port = <$fake_out>);
print $fake_in qq({"secrets": {"AKIDEXAMPLE": ["secret", null], "AKIDTOKEN": ["s/e+c=r", "t/o+k=en"]}}\n);
$fake_in->flush;
is(scalar <$fake_out>, "ok\n", 'the stand-in knows the keys');
create('sign_sqs', "sqs:$region:$account:orders", 'sign', port => $fake_port);
create('sign_sns', "sns:$region:$account:news", 'sign', port => $fake_port);
create('sign_events', "events:$region:$account:event-bus/bus", 'sign', port => $fake_port);
create('sign_kinesis', "kinesis:$region:$account:stream/stream", 'sign', port => $fake_port);
emit($node, 'sign', '{"n": "ü&=+ %"}', q{key => 'ключ'});
shows($_, 'delivered = 1', "$_: delivered") foreach qw(sign_sqs sign_sns sign_events sign_kinesis);
ask(q(SELECT outbox.alter_endpoint(name, credentials => '{"access_key_id": "AKIDTOKEN", "secret_access_key": "s/e+c=r", "session_token": "t/o+k=en"}') FROM outbox.endpoints WHERE name ~ '^sign'));
emit($node, 'sign', '{"n": 2}');
shows($_, 'delivered = 2', "$_: delivered with a token") foreach qw(sign_sqs sign_sns sign_events sign_kinesis);
is(qx{/usr/bin/python3 $top/test/aws/judge.py $journal AKIDEXAMPLE secret}, "4 0\n", 'botocore computes the same signatures');
is(qx{/usr/bin/python3 $top/test/aws/judge.py $journal AKIDTOKEN s/e+c=r t/o+k=en}, "4 0\n", 'and the same with a session token');

$node->stop;
done_testing();
