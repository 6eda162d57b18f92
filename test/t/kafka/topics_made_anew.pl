# No record is taken for a repetition because its topic was away, or was made anew.
# A broker says of a topic that it does not exist, may not be used or has fewer partitions, while
# nothing is sent to it.  When it is back, what is delivered is there.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $dir = PostgreSQL::Test::Utils::tempdir('topics');
OutboxTest::Network::start("$dir/ready", 'python3', "$top/test/kafka/remade.py", '--ready', "$dir/ready", '--journal', "$dir/journal", 'broker');
my ($port) = slurp_file("$dir/ready") =~ /^(\d+)/;
my %sent;

# What the broker says of the topic "a" from now on.  The other topic is there all the time.
sub say_of_a
{
	my ($line) = @_;

	append_to_file("$dir/new", "a $line\nb 0 1 1\n");
	rename "$dir/new", "$dir/journal.topics" or die $!;
	return;
}

sub deliver
{
	my ($endpoint, $name) = @_;

	$node->safe_psql('postgres', "SELECT count(outbox.emit('$endpoint', '{}', key => n::text)) FROM generate_series(1, 3) n");
	$sent{$endpoint} += 3;
	return endpoint_shows($node, $endpoint, "delivered = $sent{$endpoint}", "$name: events for $endpoint are delivered");
}

# The broker has said so, and the topic has no handle that is used.
sub said
{
	my ($line, $name) = @_;
	my $before = () = lines_of("$dir/journal", qr/\ttopic\ta\t$line$/);

	say_of_a($line);
	return wait_until { my $now = () = lines_of("$dir/journal", qr/\ttopic\ta\t$line$/); $now > $before } "the broker is asked for a: $name";
}

append_to_file("$dir/journal.cluster", 'clust-1 0');
say_of_a('0 2 1');
$node->safe_psql('postgres', "SELECT outbox.create_endpoint('$_', 'kafka://127.0.0.1:$port/$_', '{$_}', timeout => '60 s')") foreach qw(a b);
foreach (['3 0 1', 'it does not exist'], ['29 0 1', 'it may not be used'], ['0 1 1', 'it has fewer partitions'], ['0 2 2', 'it was made anew'], ['0 5 2', 'it has more partitions'])
{
	my ($line, $name) = @$_;

	deliver($_, "before: $name") foreach qw(a b);
	ok(said($line, $name), "the broker says: $name");
	deliver('b', $name);
	say_of_a('0 2 ' . ($line =~ / 2$/ ? 2 : 1)) if $line !~ /5/;
	deliver('a', "after: $name");
}
my @records = map { [ (split /\t/)[ 4, 5, 6, 8 ] ] } lines_of("$dir/journal", qr/\trecords\t/);
my %stored;
$stored{ $_->[0] } += $_->[3] foreach grep { $_->[2] eq 'stored' } @records;
is(join(', ', map { "$_->[0]:$_->[1] $_->[2]" } grep { $_->[2] ne 'stored' } @records), '', 'each request is stored');
is($stored{$_}, $sent{$_}, "the topic $_ has all events that are delivered") foreach qw(a b);
is($node->safe_psql('postgres', 'SELECT restarts FROM outbox.workers'), '0', 'in one worker');
$node->stop;
done_testing();
