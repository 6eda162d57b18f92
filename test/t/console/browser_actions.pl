# In the console, a browser takes each action from the click to the journal of the receiver.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_if_missing();

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

my %env = (
	JOURNAL => $receiver->{journal},
	RECEIVER => $receiver->url(''),
	$ENV{PICTURES} ? (PICTURES => $ENV{PICTURES}) : ());

OutboxTest::Console::roles($node);
endpoint($node, $receiver, 'billing', '/ok/billing', "topics => '{order.*}'");

my $console = OutboxTest::Console->new($node);

$console->browse('pause', %env);

# Endpoints in trouble, a customer whose event died
endpoint($node, $receiver, 'crm', '/status/422/crm?body=unknown+customer', "topics => '{crm.*}', max_attempts => 2, backoff_base => '20 ms'");
$node->safe_psql('postgres', "SELECT outbox.set_event_type('order.created', 'An order was placed.', example => '{\"order\": 4711}')");
emit($node, 'crm.changed', qq({"order": $_, "note": "<b>\x{e2}\x{80}\x{ae}</b>"}), "key => 'customer-$_'") foreach 1 .. 3;
endpoint_shows($node, 'crm', 'dead = 3', 'three deliveries die');
endpoint($node, $receiver, 'acme.orders', '/status/422/acme?body=unknown+article', "topics => '{order.*}', tenant => 'acme', max_attempts => 1");
emit($node, 'order.created', '{"order": 4711}', "key => 'order-4711', tenant => 'acme'");
endpoint_shows($node, 'acme.orders', 'dead = 1', 'and one of a customer');

endpoint($node, $receiver, 'warehouse', '/status/503', "topics => '{crm.*,stock.*}', label => 'Warehouse, Hamburg'");
endpoint($node, $receiver, 'globex.hooks', '/status/410', "topics => '{stock.*}', tenant => 'globex'");
endpoint($node, $receiver, 'archive.all', '/ok/archive', "topics => '{stock.*}'");
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('archive.all')");
$node->safe_psql('postgres',
	q(SELECT count(outbox.emit('stock.moved', jsonb_build_object('article', n), key => 'shelf-' || n, tenant => 'globex')) FROM generate_series(1, 12) n));
endpoint_shows($node, 'warehouse', "state = 'backing_off'", 'an endpoint backs off');
endpoint_shows($node, 'globex.hooks', "state = 'disabled'", 'one is disabled');

# Other customers, each with another cause
my %cause = (filtered => q(filter => '$.total > 100'), held => q(backoff_base => '10 min', backoff_max => '1 h'));
endpoint($node, $receiver, "$_.hooks", ($_ eq 'held' ? '/status/400/held' : "/ok/$_"), join(', ', "topics => '{basket.*}', tenant => '$_'", $cause{$_} // ()))
  foreach qw(paused filtered held expired);
$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('billing', topics => '{order.*,basket.*}')");
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('$_.hooks')") foreach qw(paused expired);
emit($node, 'basket.left', '{"total": 50}', "key => 'order-$_', tenant => '$_'") foreach qw(paused filtered late held held);
emit($node, 'basket.left', '{}', "key => 'order-typo', tenant => 'acmee'");
emit($node, 'basket.left', '{}', "key => 'order-later', deliver_at => now() + interval '1 day'");
emit($node, 'basket.left', '{}', "key => 'order-expired', tenant => 'expired', expires_at => now() + interval '100 ms'");
endpoint($node, $receiver, 'late.hooks', '/ok/late', "topics => '{basket.*}', tenant => 'late'");
endpoint_shows($node, 'held.hooks', 'retrying = 1 AND blocked = 1', 'an event waits behind one that fails');
ok(wait_sql($node, "SELECT now() > max(expires_at) FROM outbox.all_events"), 'and one has expired');
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('expired.hooks')");
endpoint_shows($node, 'expired.hooks', 'dead = 1', 'which is dead');

# Figures of the last hours, from those that the worker writes when it ends, each in the piece of its day
$node->safe_psql('postgres', q(SELECT count(outbox.emit('order.created', '{"order": 1}', key => 'k' || n)) FROM generate_series(1, 40) n));
endpoint_shows($node, 'billing', 'pending + processing = 0', 'forty more are delivered');
replace_worker($node);
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION before(OUT at timestamptz, OUT piece int, OUT n int) RETURNS SETOF record LANGUAGE sql AS $$
SELECT a, (extract(epoch FROM a - '2000-01-01Z'::timestamptz)::int8 / 86400 % 3)::int, n::int
FROM generate_series(1, 72) n, LATERAL (SELECT date_bin('5 min', now(), '2000-01-01Z') - n * interval '5 min' AS a) t $$;
INSERT INTO outbox.figures
SELECT b.at, f.written, f.block, b.piece,
	outbox.figures_sum(decode(repeat(encode(f.entries, 'hex'), (22 + 14 * sin(b.n / 9.0) + 2 * sin(b.n * 1.7))::int), 'hex'), NULL, true)
FROM outbox.figures f, before() b WHERE f.piece IN (0, 1, 2) ON CONFLICT DO NOTHING;
INSERT INTO outbox.figures
SELECT at, now(), 0, piece, set_byte(set_byte(set_byte('\x000008fd01fe00ff808001', 6, (40 + 30 * sin(n / 5.0))::int),
	8, 128 + memory % 128), 9, 128 + memory / 128 % 128)
FROM before(), LATERAL (SELECT (21000 + 900 * sin(n / 14.0))::int AS memory) m
SQL
endpoint_shows($node, 'warehouse', "state = 'backing_off'", 'the next worker knows of all this');

# Its charts are of a minute ago.
$console->stop;
$console->start;
$console->browse($_, %env) foreach qw(looks customer actions);

unlike($console->log, qr/Traceback/, 'no fault of the console is in its log');
done_testing();
