# Apache Kafka that is made anew at the same address loses no record.
# Another client has taken the number of the former producer by then.  "make clients" fetches Kafka,
# and runs this.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

my $kafka = OutboxTest::Kafka->new(jars => OutboxTest::Kafka::needed());
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");

$kafka->topic('bus', 1);
$node->safe_psql('postgres', "SELECT outbox.create_endpoint('bus', 'kafka://@{[$kafka->address]}/bus', '{bus}', format => 'raw', timeout => '5 min')");
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');
emit($node, 'bus', qq({"n": $_}), "key => 'k'") foreach 1 .. 5;
endpoint_shows($node, 'bus', 'delivered = 5', 'the first records are stored');

# The worker's connections are held up, so that the other client is the first one in the new cluster
my $worker = worker_pid($node);
kill STOP => $worker;
$kafka->renew('QW5vdGhlckNsdXN0ZXJYWA');
$kafka->topic('bus', 1);
my $file = PostgreSQL::Test::Utils::tempdir() . '/lines';
append_to_file($file, join '', map { "other $_\n" } 1 .. 10);
is(system("kcat -P -b @{[$kafka->address]} -t bus -X enable.idempotence=true -X batch.num.messages=1 -l $file"), 0, 'another producer has written');
kill CONT => $worker;
emit($node, 'bus', qq({"n": $_}), "key => 'k'") foreach 6 .. 9;
endpoint_shows($node, 'bus', 'delivered = 9', 'records are delivered to the new cluster');
is(join(' ', map { $_->{n} } grep { defined $_->{n} } $kafka->records('bus')), '6 7 8 9', 'and are in it, in their order');
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'no attempt has failed');

$kafka->stop('TERM');
$node->stop;
done_testing();
