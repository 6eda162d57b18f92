# An event that cannot be read, and has a dead letter, does not keep its piece of the log.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.retention = '1 h'\n");
plan skip_all => 'pg_surgery is not there'
  unless ask("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_surgery'");
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'all', '/status/500', "topics => '{kept.*}', max_attempts => 1, disable_after => '1 d'");
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");
ask('CREATE EXTENSION pg_surgery');

# Payloads beside the table, and a part of two of them is missing
my @ids = split /\n/, ask(<<'SQL');
BEGIN;
CREATE TEMP TABLE made AS SELECT outbox.emit('kept.large', jsonb_build_object('n', n, 'x',
	(SELECT string_agg(md5(n || '.' || i), '') FROM generate_series(1, 500) i))) AS id FROM generate_series(1, 9) n;
SELECT reltoastrelid::regclass AS toast FROM outbox.events e JOIN pg_class c ON c.oid = e.tableoid LIMIT 1 \gset
SELECT array_agg(ctid) AS tids FROM :toast WHERE chunk_id IN
	(SELECT chunk_id FROM (SELECT chunk_id, dense_rank() OVER (ORDER BY chunk_id) FROM :toast) d WHERE dense_rank IN (3, 6)) \gset
SELECT heap_force_kill(:'toast'::regclass, :'tids'::tid[]) \g /dev/null
COMMIT;
SELECT id FROM made;
SQL
my @damaged = splice @ids, 5, 1;
push @damaged, splice @ids, 2, 1;
my $damaged = "event_id IN ('$damaged[0]', '$damaged[1]')";
my $dead = "SELECT string_agg(reason, ' ' ORDER BY reason) FROM outbox.parked WHERE status = 'dead'";
ok(wait_sql($node, "SELECT ($dead) = '" . ('max_attempts ' x 7) . "unreadable unreadable'"), 'nine dead letters, two of which are unreadable');

ask("SELECT outbox.set_retention(events => '1 s')");
my $all = "'" . join("', '", @ids, @damaged) . "'";
ok( (   wait_until
		{
			ask("SELECT count(outbox.emit('other.n', '{}')) FROM generate_series(1, 100)");
			ask("SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id IN ($all))") eq 't'
		}
		'the piece is emptied'),
	'the piece is emptied');
is(ask('SELECT count(*) FROM outbox.kept_events'), '7', 'the others are kept');
is(ask("SELECT count(*) FROM outbox.parked WHERE status = 'dead' AND reason = 'unreadable' AND $damaged"), '2', 'and what is known of the two');
like(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/WARNING:  outbox event with seq \d+ cannot be kept: missing chunk/, 'the log says why');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'no step stays on hold');

# All are tried again
ask("SELECT outbox.alter_endpoint('all', url => '" . $receiver->url('/ok/all') . "')");
is(ask("SELECT outbox.retry('all')"), '9', 'they are tried again');
$receiver->wait_delivered(1, id => $_, path => '/ok/all') foreach @ids;
ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.parked WHERE status = 'dead' AND reason = 'event is gone' AND $damaged"),
	'the two are dead, and gone');
is(scalar(() = $receiver->delivered(path => '/ok/all')), 7, 'nothing is sent for them');
$node->stop;
done_testing();
