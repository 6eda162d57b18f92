# An endpoint of a tenant that is behind reads its tenant's events, not the whole log.
# It gets each of them, in order, also those of a transaction that commits late.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $others = 40_000;
my $bulk = 3_000;

# The numbers in the events that a path has got, in the order of arrival
sub got
{
	my ($path) = @_;
	return join ' ', map { $_->{body} =~ /"n": ?(\d+)/ } $receiver->delivered(path => $path);
}

endpoint($node, $receiver, 'marker', '/ok/marker', "topics => '{marker}'");
endpoint($node, $receiver, 'acme', '/ok/acme', "tenant => 'acme', batch_size => 1, max_in_flight => 1");
endpoint($node, $receiver, 'globex', '/ok/globex', "tenant => 'globex', topics => '{a.b}', filter => '\$.n > 3', max_in_flight => 1");
endpoint($node, $receiver, 'bulk', '/ok/bulk', "tenant => 'bulk', batch_size => 100");
# Their positions are behind the first event, and before what a transaction has emitted that is still open
my $late = $node->background_psql('postgres', on_error_stop => 1);
$late->query_safe("BEGIN; SELECT outbox.emit('a.b', '{\"n\": 1}', tenant => 'acme'), outbox.emit('a.b', '{\"n\": 4}', tenant => 'globex')");
# The same of a transaction with many events of another tenant.
my $crowd = $node->background_psql('postgres', on_error_stop => 1);
$crowd->query_safe("BEGIN; SELECT count(outbox.emit('other', '{}', tenant => 'crowd')) FROM generate_series(1, $others)");
$crowd->query_safe("SELECT count(outbox.emit('other', '{}', tenant => 'bulk')) FROM generate_series(1, $bulk)");
ask("SELECT outbox.emit('a.b', '{\"n\": 0}', tenant => 'acme')");
ok(wait_settled($node), 'settled');

# What is emitted while they are paused
ask("SELECT outbox.pause_endpoint(e) FROM unnest('{acme,globex,bulk}'::text[]) e");
ask("SELECT outbox.emit('a.b', '{\"n\": 2}', tenant => 'acme'), outbox.emit('a.b', '{\"n\": 3}', tenant => 'globex'),"
	  . " outbox.emit('a.b', '{\"n\": 5}')");
ask("SELECT count(outbox.emit('other', '{}', tenant => 'other.' || i % 100)) FROM generate_series(1, $others) i");
ask("SELECT outbox.emit('a.b', '{\"n\": 6}', tenant => 'globex'), outbox.emit('a.b', '{\"n\": 7}', tenant => 'acme')");
ok(wait_sql($node, "SELECT pending >= 2 FROM outbox.stats WHERE endpoint = 'acme'"), 'read at the head');
$crowd->query_safe('COMMIT');
$crowd->quit;
$late->query_safe('COMMIT');
$late->quit;

# After a restart they are behind, and do not know by how much
$node->restart;
my $begun = log_rows_read($node, $receiver);
ok(wait_sql($node, "SELECT bool_and(pending_exact) FROM outbox.stats WHERE endpoint IN ('acme', 'globex')"), 'counted');
is(ask("SELECT pending FROM outbox.stats WHERE endpoint IN ('acme', 'globex') ORDER BY endpoint"), "3\n2", 'their backlogs');
ask("SELECT outbox.resume_endpoint(e) FROM unnest('{acme,globex}'::text[]) e");
ok($receiver->wait_delivered(4, path => '/ok/acme'), 'the one gets its events');
ok($receiver->wait_delivered(2, path => '/ok/globex'), 'the other, too');
my $read = log_rows_read($node, $receiver) - $begun;
note("$read rows read for 5 events");
cmp_ok($read, '<', $others / 2, 'rows of the log that were read');
is(got('/ok/acme'), '0 1 2 7', 'each of its events');
is(join(' ', sort split / /, got('/ok/globex')), '4 6', 'its topics and its filter apply');    # they have no key

ask("SELECT outbox.resume_endpoint('bulk')");
ok(wait_sql($node, "SELECT pending = 0 AND pending_exact AND delivered = $bulk FROM outbox.stats WHERE endpoint = 'bulk'"),
	'one with more of them than fit into its window gets all of them');

# An endpoint without a tenant gets all of them
endpoint($node, $receiver, 'archive', '/ok/archive', "topics => '{a.b}', max_in_flight => 1");
ask("SELECT outbox.seek_endpoint('archive', 'beginning')");
ok($receiver->wait_delivered(8, path => '/ok/archive'), 'an endpoint without a tenant reads everything');
is(join(' ', sort split / /, got('/ok/archive')), '0 1 2 3 4 5 6 7', 'each event once');
ok(wait_sql($node, "SELECT pending_exact FROM outbox.stats WHERE endpoint = 'archive'"), 'and counts it');

# A replay reads what is its tenant's, too
$begun = log_rows_read($node, $receiver);
ask("SELECT outbox.replay('acme', now() - interval '1 hour')");
ok($receiver->wait_delivered(8, path => '/ok/acme'), 'a replay');
$read = log_rows_read($node, $receiver) - $begun;
note("$read rows read for a replay of 4 events");
cmp_ok($read, '<', $others / 2, 'rows of the log that were read');
is(join(' ', sort split / /, got('/ok/acme')), '0 0 1 1 2 2 7 7', 'each of its events again');

# The index may be rebuilt
ask("SELECT outbox.pause_endpoint('acme')");
ask("SELECT outbox.emit('a.b', '{\"n\": 8}', tenant => 'acme')");
$node->restart;
ask("REINDEX INDEX CONCURRENTLY outbox.events_${_}_tenant_seq_idx") foreach 0 .. 2;
ask("SELECT outbox.resume_endpoint('acme')");
ok($receiver->wait_delivered(9, path => '/ok/acme'), 'read by the new index');

$receiver->stop;
$node->stop;
done_testing();
