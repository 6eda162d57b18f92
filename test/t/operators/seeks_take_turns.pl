# An endpoint that is moved does not wait for the rows of another one that is moved.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 40_000;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# One has a row for each of many events, and the other one has a single row.
endpoint($node, $receiver, 'large', '/ok/large', "topics => '{none}'");
endpoint($node, $receiver, 'small', '/ok/small', "topics => '{small.*}'");
ask("SELECT count(outbox.emit('large.n', '{}')) FROM generate_series(1, $rows)");
my $first = emit($node, 'small.one', '{}');
$receiver->wait_delivered(1, path => '/ok/small', id => $first);
ok(wait_settled($node), 'settled');
ask(park_as_dead("s.name = 'large' AND e.topic = 'large.n'"));
ask(park_as_dead("s.name = 'small' AND e.topic = 'small.one'"));
my $left = "SELECT count(*) FROM outbox.parked JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'large'";
is(ask($left), $rows, 'many rows');

# To delete all of them takes longer than this test needs to look.
ask(<<'SQL');
CREATE FUNCTION public.take_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$;
CREATE TRIGGER take_long AFTER DELETE ON outbox.parked FOR EACH STATEMENT EXECUTE FUNCTION public.take_long();
SQL

ask("BEGIN; SELECT outbox.seek_endpoint('large', 'beginning'); SELECT outbox.seek_endpoint('small', 'beginning'); COMMIT");
$receiver->wait_delivered(2, path => '/ok/small', id => $first);
cmp_ok(ask($left), '>', $rows / 4, 'the other one gets its event while most of these rows are there');
ok(wait_sql($node, "SELECT ($left) = 0"), 'they are all deleted');
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');
$node->stop;
done_testing();
