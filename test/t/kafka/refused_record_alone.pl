# A record that is refused by itself holds up no other record.
# Brokers and services refuse many records for their size or their content, and others of the same
# endpoint are delivered meanwhile, without a wait.
use strict;
use warnings;

use IPC::Open2;
use JSON::PP;
use OutboxTest;
use OutboxTest::Aws;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

my @sinks = grep { is_installed("outbox_$_") } qw(kafka aws);
plan skip_all => 'neither outbox_kafka nor outbox_aws was built' unless @sinks;

my $node = outbox_node('main', conf => "outbox.sinks = '" . join(', ', 'webhook', @sinks) . "'\n");

SKIP:
{
	skip 'outbox_kafka was not built', 1 unless grep { $_ eq 'kafka' } @sinks;
	my $dir = PostgreSQL::Test::Utils::tempdir('mock');
	system("gcc -o $dir/mock $top/test/kafka/mock.c \$(pkg-config --cflags --libs rdkafka)") == 0 or die "no mock\n";
	push @OutboxTest::Receiver::started, open2(my $out, my $in, "$dir/mock");
	my ($address) = readline($out) =~ /(127\.0\.0\.1:\d+)/;

	# A topic that Kafka cannot have, which is known before anything is sent
	$node->safe_psql('postgres', "SELECT outbox.create_endpoint('names', 'kafka://$address/t.{key}', '{names}', max_in_flight => 20)");
	$node->safe_psql('postgres', q{SELECT count(outbox.emit('names', '{}', key => CASE WHEN n > 60 THEN 'good' ELSE 'no topic ' || n END)) FROM generate_series(1, 70) n});
	endpoint_shows($node, 'names', 'delivered = 10 AND dead = 60', 'names: events whose topic Kafka can have are delivered');
	unlike(slurp_file($node->logfile), qr/endpoint "names" is backing off/, 'names: it has never backed off');

	# A broker that throttles is named, first as the reason why records wait, and then with those that have failed
	my ($throttling) = values %{ start_hostile('kafka', 'throttles after the first records')->{port} };
	$node->safe_psql('postgres', "SELECT outbox.create_endpoint('slow', 'kafka://127.0.0.1:$throttling/t', '{slow}', timeout => '4 s', max_in_flight => 16)");
	$node->safe_psql('postgres', q{SELECT count(outbox.emit('slow', '{}', key => 'k' || n)) FROM generate_series(1, 60) n});
	endpoint_shows($node, 'slow', "reason = 'throttled by its brokers' AND delivered > 0", 'slow: a broker that throttles is the reason');
	endpoint_shows($node, 'slow', "last_error ~ '^Kafka: throttled by its brokers: '", 'slow: and the words of an attempt that has failed for it');
	endpoint_shows($node, 'slow', 'failed_attempts >= 10 AND processing BETWEEN 1 AND 8', 'slow: then fewer records are in flight than there may be');

	# Batches that are too large, and then more records than open a breaker that are too large by themselves
	foreach my $line ('topic large 1', 'error 0' . ' 10' x 60)
	{
		print $in "$line\n";
		$in->flush;
		readline $out;
	}
	$node->safe_psql('postgres', "SELECT outbox.create_endpoint('large', 'kafka://$address/large', '{large}', format => 'raw')");
	$node->safe_psql('postgres', q{SELECT count(outbox.emit('large', '{}', key => 'k' || n)) FROM generate_series(1, 100) n});
	endpoint_shows($node, 'large', 'delivered + dead = 100 AND dead BETWEEN 30 AND 59', 'large: records that are not refused are delivered');
	unlike(slurp_file($node->logfile), qr/endpoint "large" is backing off/, 'large: it has never backed off');
}

SKIP:
{
	skip 'outbox_aws was not built', 1 unless grep { $_ eq 'aws' } @sinks;
	my $aws = OutboxTest::Aws->new;

	# 50 that the service refuses by the fault of the sender, and 10 that it does not
	$aws->tell(rules => [ { fail => { with => 'poison', code => 'InvalidParameterValue', sender_fault => JSON::PP::true } } ]);
	$node->safe_psql('postgres', 'SELECT ' . $aws->create_endpoint('queue', 'sqs', 'orders', "topics => '{queue}', max_in_flight => 20"));
	$node->safe_psql('postgres', q{SELECT count(outbox.emit('queue', jsonb_build_object('n', CASE WHEN n > 50 THEN 'good' ELSE 'poison' END), key => 'k' || n)) FROM generate_series(1, 60) n});
	endpoint_shows($node, 'queue', 'delivered = 10 AND dead = 50', 'queue: messages that are not refused are delivered');
	unlike(slurp_file($node->logfile), qr/endpoint "queue" is backing off/, 'queue: it has never backed off');

	# The same of what is known before anything is sent: more than SQS takes
	$node->safe_psql('postgres', 'SELECT ' . $aws->create_endpoint('sizes', 'sqs', 'orders', "topics => '{sizes}', max_in_flight => 20"));
	$node->safe_psql('postgres', q{SELECT count(outbox.emit('sizes', jsonb_build_object('n', n, 'text', repeat('x', CASE WHEN n > 30 THEN 1 ELSE 1048500 END)), key => 'k' || n)) FROM generate_series(1, 40) n});
	endpoint_shows($node, 'sizes', 'delivered = 10 AND dead = 30', 'sizes: messages that are not too large are delivered');
	unlike(slurp_file($node->logfile), qr/endpoint "sizes" is backing off/, 'sizes: it has never backed off');
}

$node->stop;
done_testing();
