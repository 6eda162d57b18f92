# When the disk of a Kafka broker is full, no event is lost, and webhooks go on.
# The disk is a small one in memory, and fills under load.  The broker ends of it.  When there
# is room, and it is started again, everything is delivered, and each key is in order.
# "make clients" fetches Kafka, and runs this.
use strict;
use warnings;

use OutboxTest::Disks (data => 60);    # the first: it runs this again, with these

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

my $in_flight = 50;
my $kafka = OutboxTest::Kafka->new(jars => OutboxTest::Kafka::needed(), data => OutboxTest::Disks::path('data'));
$kafka->topic('bus', 3);
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';

ask("SELECT outbox.create_endpoint('bus', 'kafka://@{[$kafka->address]}/bus', format => 'raw', max_in_flight => $in_flight, timeout => '5 min')");
endpoint($node, $receiver, 'web', '/ok/web');
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');
my $producer = start_producer($node, $log, rate => 100, keys => 10);
endpoint_shows($node, 'bus', 'delivered > 200', 'events flow');

OutboxTest::Disks::fill('data');
endpoint_shows($node, 'bus', "state = 'backing_off' AND reason <> ''", 'a broker that ends, because its disk is full, is shown');
like($kafka->log(1), qr/No space left|unsafe memory access/, 'that is what it ended of');
note(ask("SELECT reason FROM outbox.stats WHERE endpoint = 'bus'"));
my $before = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'web'");
endpoint_shows($node, 'web', "delivered > $before + 200", 'webhooks go on');

$kafka->stop('KILL');
OutboxTest::Disks::free('data');
$kafka->start(1);
endpoint_shows($node, 'bus', "state = 'active' AND reason IS NULL", 'when there is room, and it is started again, the link comes up');
stop_producer($producer);
$kafka->check($node, $log, 'bus', name => 'full', max_duplicates => $in_flight);
endpoint_shows($node, 'bus', 'failed_attempts = 0', 'no attempt has failed');
check_history($node, $receiver, $log, endpoints => ['/ok/web'], name => 'the history of the webhooks is clean');
$kafka->stop('TERM');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
