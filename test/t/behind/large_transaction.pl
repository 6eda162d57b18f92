# While the worker reads a large transaction, another tenant gets events that were committed after it.
# The order of its keys holds, and nothing is lost or sent twice.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $events = 2000;

# The numbers in the events that a path has got, in the order of arrival
sub got
{
	my ($path) = @_;
	return join ' ', map { $_->{body} =~ /"n": ?(\d+)/g } $receiver->delivered(path => $path);
}

# The same of those that have a key
sub got_in_order
{
	return join ' ', map { $_->{body} =~ /"n": ?(\d+)/ } grep { defined $_->{headers}{'outbox-key'} } $receiver->delivered(path => '/ok/quiet');
}

# The endpoint has delivered so many, and nothing is left.
sub settled
{
	my ($endpoint, $n) = @_;
	return ok(
		wait_sql($node, "SELECT delivered = $n AND pending = 0 AND pending_exact FROM outbox.stats WHERE endpoint = '$endpoint'"),
		"$endpoint is settled with $n");
}

# The filters take some milliseconds for each event, and none of them more than its share.  That is what makes the tick long.
endpoint($node, $receiver, "noisy$_", '/ok/noisy', "topics => '{crowd}', filter => '" . join(' || ', map { "\$.a[*] == \"$_\"" } 1 .. 4) . "'") foreach 1 .. 60;
endpoint($node, $receiver, 'quiet', '/ok/quiet', "tenant => 'quiet', max_in_flight => 4");
endpoint($node, $receiver, 'batch', '/ok/batch', "tenant => 'batch', batch_size => 10");
endpoint($node, $receiver, 'late', '/ok/late', "tenant => 'late'");
endpoint($node, $receiver, 'picky', '/ok/picky', "tenant => 'picky', filter => '\$.n > 1'");
endpoint($node, $receiver, 'turning', '/ok/turning', "tenant => 'turning', topics => '{a.b}'");
endpoint($node, $receiver, 'archive', '/ok/archive', "topics => '{mark}'");
ask("CREATE TABLE large AS SELECT jsonb_build_object('a', (SELECT jsonb_agg('xyxyxyxyxy ' || i) FROM generate_series(1, 400) i)) AS p");
ask("SELECT outbox.emit('a.b', '{\"n\": 0}', tenant => t) FROM unnest('{quiet,late}'::text[]) t");
settled($_, 1) foreach qw(quiet late);

# A long tick, with events of the quiet tenant at both of its ends
my $open = $node->background_psql('postgres', on_error_stop => 1);
$open->query_safe("BEGIN; SELECT outbox.emit('a.b', '{\"n\": 3}', tenant => 'quiet')");
ask("BEGIN;"
	  . " SELECT outbox.emit('mark', '{\"n\": 1}'), outbox.emit('a.b', '{\"n\": 1}', tenant => 'quiet', key => 'k');"
	  . " SELECT count(outbox.emit('crowd', p, tenant => 'noisy')) FROM large, generate_series(1, $events);"
	  . " SELECT outbox.emit('a.b', '{\"n\": 2}', tenant => 'quiet', key => 'k'), outbox.emit('mark', '{\"n\": 2}');"
	  . " COMMIT");
$receiver->wait_delivered(1, path => '/ok/archive');
my $begun = time;

# While it is being read: of a transaction that had begun before it, and of others that come after it
$open->query_safe('COMMIT');
$open->quit;
ask("SELECT outbox.emit('a.b', '{\"n\": 4}', tenant => 'quiet', key => 'k'), outbox.emit('a.b', '{\"n\": 1}', tenant => 'picky')");
$receiver->wait_delivered(5, path => '/ok/quiet');
ask("SELECT outbox.emit('a.b', '{\"n\": 5}', tenant => 'quiet', key => 'k')");
$receiver->wait_delivered(6, path => '/ok/quiet');
# One that sends batches waits for no more events than there are.
ask("SELECT outbox.emit('a.b', '{\"n\": $_}', tenant => 'batch', key => 'k')")
  && $receiver->wait_delivered($_, path => '/ok/batch') foreach 1 .. 2;
# One that reads from its place, which is before the long tick
ask("SELECT outbox.pause_endpoint('late')");
ask("SELECT outbox.emit('a.b', '{\"n\": 1}', tenant => 'late')");
ask("SELECT outbox.resume_endpoint('late')");
$receiver->wait_delivered(2, path => '/ok/late');
# Settings that change with the events that they concern
foreach my $n (1 .. 5)
{
	ask("BEGIN; SELECT outbox.alter_endpoint('turning', topics => '{a.b,turn.$n}');"
		  . " SELECT outbox.emit(t, '{\"n\": $n}', tenant => 'turning', key => 'k') FROM unnest('{turn.$n,a.b}'::text[]) t; COMMIT");
	$receiver->wait_delivered(2 * $n, path => '/ok/turning');
}
my $shares = "SELECT p.shared IS NOT NULL FROM outbox.positions p JOIN outbox.endpoint_settings USING (endpoint_id)"
  . " WHERE name = 'picky' ORDER BY number DESC LIMIT 1";
ok(wait_sql($node, $shares, 'f'), 'one whose filter wants none of it has read, too');
is(got('/ok/archive'), '1', 'all this while the end of the long tick was not read');
is(got_in_order(), '1 2 4 5', 'in order');

note 'the long tick took ', time - $begun, ' s' if $receiver->wait_delivered(2, path => '/ok/archive');
ok(wait_sql($node, $shares), 'and follows the others again, as nothing comes for it');
for my $n (6 .. 7)
{
	ask("SELECT outbox.emit('a.b', '{\"n\": $n}', tenant => t, key => 'k') FROM unnest('{quiet,late}'::text[]) t");
	settled('quiet', $n + 1);
	settled('late', $n - 3);
}
is(got_in_order(), '1 2 4 5 6 7', 'each once, in order');
is(got('/ok/turning'), '1 1 2 2 3 3 4 4 5 5', 'each event is judged by settings that are as new');
is(got('/ok/batch'), '1 2', 'also in batches');
is(got('/ok/late'), '0 1 6 7', 'of the one that was paused, too');

# What was stored of those that were ahead is good for a new worker.
$node->restart;
ask("SELECT outbox.emit('a.b', '{\"n\": 8}', tenant => 'quiet', key => 'k')");
settled('quiet', 9);
is(got_in_order(), '1 2 4 5 6 7 8', 'nothing is sent again');

done_testing();
