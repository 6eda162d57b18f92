# Behind an endpoint whose link goes down, the others of its limited tenant go on.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The sink null, installed where only this test's PostgreSQL finds it
my $dir = PostgreSQL::Test::Utils::tempdir('sinks');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);

# Nothing else is due meanwhile that would have the worker examine all endpoints.
my $node = outbox_node('main', build => $build, conf => "outbox.sinks = 'webhook, null'\noutbox.wakeup_interval = '60s'\n");
my $receiver = OutboxTest::Receiver->new('main');

# Every 20 s the tenant may send one request.
endpoint($node, $receiver, 'web', '/ok/web', "topics => '{web}', tenant => 't'");
ask("SELECT outbox.create_endpoint('link', 'null://h/link', '{link}', tenant => 't')");
ask("SELECT outbox.set_tenant_limits('t', rate_limit => 0.05)");
ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.stats WHERE state = 'active' AND pending_exact"), 'known to the worker');
ask("SELECT count(outbox.emit('link', '{}', tenant => 't')) FROM generate_series(1, 2)");
ok(wait_sql($node, "SELECT delivered = 1 AND pending = 1 FROM outbox.stats WHERE endpoint = 'link'"), 'one waits for the limit');
my $id = ask("SELECT outbox.emit('web', '{}', tenant => 't')");
ok(wait_sql($node, "SELECT pending = 1 FROM outbox.stats WHERE endpoint = 'web'"), 'another one waits behind it');

# What was stored meanwhile is stored, and the worker waits for nothing but the limit.
sleep 5;
append_to_file("$journal.down", '');
ok(wait_sql($node, "SELECT state = 'backing_off' FROM outbox.stats WHERE endpoint = 'link'"), 'the link of the first one goes down');
wait_status($node, $id, 'delivered', 'the other one is sent to');
my $after = ask("SELECT extract(epoch FROM max(started_at) - min(started_at)) FROM outbox.attempts");
cmp_ok($after, '>', 19, 'as late as the limit says');
cmp_ok($after, '<', 30, 'and no later');

unlink "$journal.down";
ok(wait_sql($node, "SELECT delivered = 2 FROM outbox.stats WHERE endpoint = 'link'"), 'and so is the first one, when its link is up again');

$node->stop;
done_testing();
