# Endpoints whose outcomes cannot be stored take no time of the worker while they are on hold.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $count = 1500;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/status/500/dead');

ask(<<'SQL');
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'an obstacle'; END $$;
CREATE TRIGGER obstacle BEFORE INSERT ON outbox.parked FOR EACH ROW EXECUTE FUNCTION public.obstacle();
SQL
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{fine}'");
ask("SELECT count(outbox.create_endpoint('dead' || n, '$url', '{dead}', max_attempts => 1)) FROM generate_series(1, $count) n");
emit($node, 'dead', '{}');
ok(wait_until(sub { $receiver->requests(path => '/status/500/dead') >= $count }, 'all are sent'), 'each has an outcome');
ok(wait_sql($node, "SELECT min(failures) >= 4 AND count(*) > 500 FROM outbox.held_steps WHERE step = 'settle'"), 'they are on hold');

# 120 ticks are three tenths of a core in this time.
my $pid = worker_pid($node);
my $before = cpu_ticks($pid);
sleep 4;
cmp_ok(cpu_ticks($pid) - $before, '<', 120, 'the worker does nothing for them');
my $id = emit($node, 'fine', '{}');
$receiver->wait_delivered(1, id => $id);
is(ask("SELECT count(*) FROM outbox.parked"), 0, 'nothing is stored meanwhile');
ask('DROP TRIGGER obstacle ON outbox.parked');
$node->reload;
ok(wait_sql($node, "SELECT count(*) = $count FROM outbox.parked WHERE status = 'dead'"), 'all is stored when it can be');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'and nothing is on hold any more');
is(scalar($receiver->requests(path => '/status/500/dead')), $count, 'none was sent twice');
$node->stop;
done_testing();
