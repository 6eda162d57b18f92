# Delivered events are there, also where a queue, topic or stream of AWS was deleted and made again.
# Events wait while it is away.  Against moto; "make clients" fetches it and boto3, and runs this.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::StandIn;
use PostgreSQL::Test::Utils;
use Test::More;

my $libraries = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/aws';
plan skip_all => 'needs what pip fetches: "make clients" runs it' unless $ENV{OUTBOX_TEST_CLIENTS};
plan skip_all => 'outbox_aws was not built: it needs libcurl 7.87' unless is_installed('outbox_aws');
plan skip_all => "no moto in $libraries: pip could not fetch it" unless -e "$libraries/complete";

local $ENV{PYTHONPATH} = $libraries;
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
my $dir = PostgreSQL::Test::Utils::tempdir('aws');

my $port = start_moto($dir);
my $client = start_client($port);

sub client { return $client->(@_) }

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");
my ($region, $account) = qw(eu-central-1 123456789012);
my %arn = ('orders' => "sqs:$region:$account:orders", 'orders.fifo' => "sqs:$region:$account:orders.fifo", 'news' => "sns:$region:$account:news",
	'news.fifo' => "sns:$region:$account:news.fifo", 'stream' => "kinesis:$region:$account:stream/stream");
my @names = sort keys %arn;

sub send_events
{
	my ($from, $to) = @_;
	return $node->safe_psql('postgres', "SELECT count(outbox.emit('load', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series($from, $to) n");
}

# The numbers that are there, in each of them
sub are_there
{
	my ($from, $to, $name) = @_;

	foreach my $of (@names)
	{
		my %seen = map { my ($n) = $_->{body} =~ /"n": (\d+)/; ($n => 1) } @{ client("read $of") };
		is(join(' ', grep { !$seen{$_} } $from .. $to), '', "$of: all are there, $name");
	}
	return;
}

ok(client('make') && client('make_more'), 'queues, topics and a stream are made');
foreach (@names)
{
	my $name = $_ =~ tr/./_/r;
	$node->safe_psql('postgres', qq(SELECT outbox.create_endpoint('$name', 'arn:aws:$arn{$_}', '{load}', config => '{"endpoint_url": "http://127.0.0.1:$port"}',
		credentials => '{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "secret"}', format => 'raw')));
}
send_events(1, 100);
endpoint_shows($node, $_ =~ tr/./_/r, 'delivered = 100', "$_: events before") foreach @names;
are_there(1, 100, 'before');
ok(client('away'), 'they are deleted');
send_events(101, 200);
endpoint_shows($node, $_ =~ tr/./_/r, "state = 'backing_off' AND delivered = 100 AND dead = 0", "$_: it is missed") foreach @names;
ok(client('make') && client('make_more'), 'they are made again');
send_events(201, 300);
endpoint_shows($node, $_ =~ tr/./_/r, 'delivered = 300 AND failed_attempts = 0', "$_: all are delivered") foreach @names;
are_there(101, 300, 'also those of the meantime');
is($node->safe_psql('postgres', 'SELECT restarts FROM outbox.workers'), '0', 'in one worker');
$node->stop;
done_testing();
