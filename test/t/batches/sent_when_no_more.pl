# Events that were read are sent at once, in a batch that is not full, if no more can be read.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# More events than it reads ahead.  What it reads ahead is no multiple of its batches.
endpoint($node, $receiver, 'batch', '/hold/batch', "tenant => 't', batch_size => 100, max_in_flight => 1, timeout => '60 s'");
emit_at_once($node, 'batch', 3000, 'NULL', ", tenant => 't'");
ok(wait_sql($node, "SELECT processing = 100 FROM outbox.stats WHERE endpoint = 'batch'"), 'a full batch is on its way');

# Its page is read by the index on (tenant, seq).
my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
ask("ALTER INDEX outbox.events_${piece}_tenant_seq_idx RENAME TO hidden");
$receiver->control(path => '/hold/batch', behave => '/ok');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'read' AND endpoint = 'batch' AND failures > 2"),
	'it cannot read more, again and again');
ok( wait_sql($node, "SELECT delivered > 400 AND delivered < 3000 AND delivered % 100 > 0 AND processing = 0"
		  . " FROM outbox.stats WHERE endpoint = 'batch'"),
	'and has got what it had read');
is(ask("SELECT count(*) FROM outbox.held_steps WHERE step = 'read' AND endpoint = 'batch'"), 1, 'meanwhile');

ask("ALTER INDEX outbox.hidden RENAME TO events_${piece}_tenant_seq_idx");
$node->reload;
ok(wait_sql($node, "SELECT delivered = 3000 AND pending = 0 FROM outbox.stats WHERE endpoint = 'batch'"), 'it gets the rest when it can read again');
my $got = join "\n", map { $_->{id} } $receiver->events(path => '/hold/batch', delivered => 1);
ok($got eq ask('SELECT id FROM outbox.events ORDER BY seq'), 'each once, in order');
is(ask('SELECT count(*) FROM outbox.held_steps'), 0, 'nothing is on hold');

$node->stop;
done_testing();
