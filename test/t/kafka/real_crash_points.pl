# A worker that dies between two steps of the sink for Kafka loses no event, nor the order of a key.
# It dies after it has given a record to Kafka, and before it has noted the answer, three
# times each, and at each step around these.  "make clients" fetches Kafka, and runs this.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::CrashPoints;
use OutboxTest::Kafka;
use Test::More;

my $kafka = OutboxTest::Kafka->new(jars => OutboxTest::Kafka::needed());
$kafka->topic('bus', 4);

# The sink for Kafka opens headers of the one for AWS.
my $build = OutboxTest::CrashPoints::build('aws', 'kafka');
my $test = OutboxTest::CrashPoints->new($build, $kafka);
my @points = map { $_->[0] } OutboxTest::CrashPoints::points($build);
my @of_sink = grep { /^kafka\./ } @points;
is(join(' ', sort @of_sink), 'kafka.answered kafka.sent', 'the points of the sink');
$test->die_at($_, 'kill') foreach (@of_sink) x 3, grep { /^(?:send|answer|flush|settle)\./ } @points;
$test->judge;

# What Kafka had stored when the worker died before it noted that is sent again.
my @records = $kafka->records('bus');
my %ids = map { $_->{id} => 1 } @records;
cmp_ok(@records - keys %ids, '>=', 3, 'what was answered and not noted comes twice, so it died there');
note($test->table);
$kafka->stop('KILL');
done_testing();
