# 10,000 events of one endpoint are under way at a time, and a crash in the middle loses none of them.
# What was delivered is not sent again, and each key stays in order.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Utils;
use Test::More;

use constant MOST => 10000;
use constant EVENTS => 20000;

my $dir = PostgreSQL::Test::Utils::tempdir('many');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);
my $pending = 'outbox.pending_seqs(pending)';
my $first;
my $node = outbox_node('main', build => $build, conf => "outbox.sinks = 'webhook, null'\noutbox.worker_max_in_flight = 16384\n");

# The numbers of the events that were sent, as often as they were
sub sent
{
	return map { m/"n": (\d+)\}/ } split /\n/, slurp_file($journal);
}

sub emit_range
{
	my ($from, $to) = @_;
	ask("SELECT count(outbox.emit('t', jsonb_build_object('n', n), key => 'k' || n - (n % 8 = 0)::int)) FROM generate_series($from, $to) n");
	return;
}

# True if so many wait for their answer, which nothing else does then
sub hold
{
	my ($n) = @_;
	my @sent = -e $journal ? sent() : ();
	return $n == grep { ($_ + $first) % 3 != 0 } @sent;
}

sub refused
{
	my ($call, $hint) = @_;
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.$call");
	like($err, qr/ERROR:  22023: invalid max_in_flight \d+\nHINT:  \Q$hint\E/, $call);
}

refused("create_endpoint('none', 'null://h/hold', max_in_flight => 10001)", 'Use 1 to 10000 events.');
refused("create_endpoint('none', 'https://example.com/', max_in_flight => 1025)", 'Use 1 to 1024 requests.');
ask("SELECT outbox.create_endpoint('many', 'null://h/hold', format => 'raw', max_in_flight => " . MOST . ')');
refused("alter_endpoint('many', url => 'https://example.com/')", 'Use 1 to 1024 requests.');

# Two of three wait for their answer. Each eighth event has the key of the one before it, and
# many of these wait for that one before there are 10,000 others.
append_to_file("$journal.down", '');
my $late = $node->background_psql('postgres');
$late->query_safe("BEGIN; SELECT outbox.emit('t', '{\"n\": 0}', key => 'late')");
emit_range(1, 100);
$first = ask('SELECT min(seq) FROM outbox.events') - 1; # an event has the number n + $first
ok(wait_sql($node, "SELECT cardinality($pending) > 50 FROM outbox.endpoint_positions"), 'some are under way');
$late->query_safe('COMMIT');
$late->quit;
wait_until { grep { $_ == 0 } sent() } 'one with a lower number, which was committed later';
emit_range(101, EVENTS - 1);
wait_until { hold(MOST) } 'so many are under way';
my $others = sent() - MOST;
endpoint_shows($node, 'many', 'processing = ' . MOST . " AND delivered = $others", 'the others are delivered');
ok(wait_sql($node, "SELECT delivered = $others FROM outbox.endpoint_positions"), 'and stored');
is(ask('SELECT count(*) FROM outbox.parked'), 0, 'those that wait for another take no row');
ok(wait_sql($node, "SELECT cardinality($pending) >= " . MOST . ' FROM outbox.endpoint_positions'), 'the position names them');
my $size = ask('SELECT octet_length(pending) FROM outbox.endpoint_positions');
cmp_ok($size, '<', EVENTS / 4 + 20, 'in two bytes for eight neighbours');
is(ask('SELECT count(*) FROM outbox.positions WHERE pg_column_compression(pending) IS NOT NULL'), 0, 'which are stored as they are');

# What is delivered, and safely stored: this commit waits until all before it are on disk.
my $under_way = ask("SELECT count(*) FROM outbox.deliveries WHERE status = 'processing'");
is($under_way, ask("SELECT cardinality($pending) FROM outbox.endpoint_positions"), 'the views show the others as under way');
ask('CREATE TABLE on_disk ()');
my %delivered = map { $_ => 1 } split /\n/, ask("SELECT e.payload->>'n' FROM outbox.events e JOIN outbox.deliveries d ON d.event_id = e.id WHERE d.status = 'delivered'");
is(scalar(keys %delivered), $others, 'those are shown as delivered');

$node->stop('immediate');
unlink $journal;
$node->start;
wait_until { hold(MOST) } 'after a crash as many are under way';
my @again = sent();
is(scalar(grep { $delivered{$_} } @again), 0, 'none that was delivered is sent again');
unlink "$journal.down";
endpoint_shows($node, 'many', 'delivered = ' . EVENTS . ' AND pending = 0 AND processing = 0', 'all are delivered');

@again = sent();
my %all = (%delivered, map { $_ => 1 } @again);
is(scalar(keys %all), EVENTS, 'each was sent');
is(scalar(@again), EVENTS - $others, 'and once after the crash, if it had not been delivered before');
my %at;
$at{ $again[$_] } = $_ foreach 0 .. $#again;
is(scalar(grep { exists $at{ $_ - 1 } && exists $at{$_} && $at{ $_ - 1 } > $at{$_} } map { 8 * $_ } 1 .. EVENTS / 8 - 1),
	0, 'no event is sent before the one of its key that comes before it');
is(ask('SELECT pending IS NULL FROM outbox.endpoint_positions'), 't', 'the position names none any more');

# More events than a webhook may have wait for the one before them, and all that were sent fail:
# a new one is tried all the same.
ask("SELECT outbox.create_endpoint('poison', 'null://h/poison', topics => '{p}', format => 'raw',"
	  . " backoff_base => '50 ms', backoff_max => '100 ms', max_in_flight => " . MOST . ')');
ask("SELECT count(outbox.emit('p', jsonb_build_object('poison', n), key => CASE WHEN n > 30 THEN 'k' END)) FROM generate_series(1, 630) n");
endpoint_shows($node, 'poison', "state = 'backing_off'", 'backing off');
wait_status($node, emit($node, 'p', '{"good": 1}'), 'delivered', 'what does not fail is delivered behind 600 that wait');
$node->stop;
done_testing();
