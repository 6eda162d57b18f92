# Delivered events are in Apache Kafka, also where their topic is deleted and made again meanwhile.
# The topic has as many partitions as before, fewer or more, or is away for a while, with records under
# way.  "make clients" fetches Kafka, and runs this.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

my $kafka = OutboxTest::Kafka->new(jars => OutboxTest::Kafka::needed(), conf => "log.segment.delete.delay.ms=1000\nauthorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=User:ANONYMOUS\n");
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");

# Those of the topic, by what they were emitted with
sub there
{
	my %seen = map { ($_->{n} => 1) } $kafka->records('bus');
	return \%seen;
}

# Events $from to $to, whose keys are in all partitions
sub send_events
{
	my ($from, $to) = @_;
	return ask("SELECT count(outbox.emit('bus', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series($from, $to) n");
}

$kafka->topic('bus', 3);
$kafka->topic('other', 1);
ask("SELECT outbox.create_endpoint('$_', 'kafka://@{[$kafka->address]}/$_', '{$_}', format => 'raw', timeout => '60 s')") foreach qw(bus other);
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');
my $sent = 0;
foreach my $partitions (3, 1, 5, 2)
{
	my $name = "deleted, and made again with $partitions partitions";
	my $busy = $partitions != 5;

	send_events($sent + 1, $sent += 200);
	endpoint_shows($node, 'bus', "delivered = $sent", "$name: events before");
	emit($node, 'other', '{}');

	# with records under way, and without
	send_events($sent + 1, $sent += 5000) if $busy;
	ok($kafka->command(1, 'delete', 'bus'), "$name: it is deleted");
	endpoint_shows($node, 'bus', "state = 'backing_off'", "$name: it is missed", 60) if $busy && send_events($sent + 1, $sent += 1);
	my $before = stat_of($node, 'bus', 'delivered');
	$kafka->topic('bus', $partitions);
	send_events($sent + 1, $sent += 200);
	endpoint_shows($node, 'bus', "delivered = $sent AND pending = 0", "$name: all are delivered");
	my $there = there();
	my @first = grep { !$there->{$_} } $sent - 199 .. $sent;
	is("@first", '', "$name: those that were emitted afterwards are there");
	is(scalar(grep { $there->{$_} } 1 .. $sent) >= $sent - $before, 1, "$name: and all that were not delivered before");
}
is(stat_of($node, 'bus', 'dead'), 0, 'no event is dead');
is($node->safe_psql('postgres', 'SELECT restarts FROM outbox.workers'), '0', 'in one worker');
$kafka->stop('TERM');
$node->stop;
done_testing();
