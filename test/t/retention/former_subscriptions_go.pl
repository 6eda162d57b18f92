# Former subscriptions of an endpoint go with its events, however many dead letters it has.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my ($former, $dead) = (50, 3000);
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $scans = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname = 'kept_events'";
my $rows = "SELECT count(*) FROM outbox.subscriptions JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'a'";
my $piece = "SELECT piece FROM outbox.pieces WHERE log = 'events'";

endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{fine}'");
emit($node, 'old', '{}');
endpoint($node, $receiver, 'a', '/ok/a', "topics => '{none}'");
ask('INSERT INTO outbox.subscriptions (endpoint_id, version, topics, read, last_seq)'
	  . " SELECT endpoint_id, -n, '{none}', pg_current_snapshot(), 0 FROM outbox.endpoint_settings, generate_series(1, $former) n WHERE name = 'a'");

# As after a log of another system was adopted, whose events are gone
ask("INSERT INTO outbox.origins (epoch, system_identifier, database_oid, adopted_by, first, instance_name) SELECT 1, 1, 1, epoch, true, '' FROM outbox.origins");
my $first = ask($piece);
ask("SELECT outbox.set_retention(events => '6 s')");
ok(wait_sql($node, "SELECT ($piece) <> $first"), 'the log goes on in another piece');
ask("SELECT outbox.set_retention(events => '1 h')");
ask("SELECT count(outbox.emit('many', '{}')) FROM generate_series(1, $dead)");
ask(park_as_dead("e.topic = 'many' AND s.name = 'a'"));
is(ask($rows), $former + 1, 'while the log has older events, it has been subscribed to something');
my $before = ask($scans);
ask("SELECT outbox.set_retention(events => '6 s')");
ok(wait_sql($node, $rows, 1), 'then only to its topics');
wait_until { emit($node, 'fine', '{}'); ask($scans) > $before } 'the counts are there';
cmp_ok(ask($scans) - $before, '<', 3 * $dead, 'its dead letters are not looked up for each');
$node->stop;
done_testing();
