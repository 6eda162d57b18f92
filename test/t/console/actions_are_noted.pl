# Requests of operators and customers are in outbox.endpoint_audit, with the name of the actor.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The rows since the last call
my $seen = 0;

sub noted
{
	my $rows = ask("SELECT tenant, endpoint, actor, role, action, before, after FROM outbox.endpoint_audit WHERE change_id > $seen ORDER BY change_id");

	$seen = ask('SELECT max(change_id) FROM outbox.endpoint_audit');
	return $rows;
}

sub as
{
	my ($role, $call) = @_;
	return ask("BEGIN; SET LOCAL outbox.actor = 'jane'; SET LOCAL ROLE $role; SELECT $call; COMMIT");
}

ask('CREATE ROLE support; CREATE ROLE portal');
ask("SELECT outbox.grant_to('support', 'operate'), outbox.grant_to('portal', 'portal')");
endpoint($node, $receiver, 'crm', '/status/422', "topics => '{crm.*}', max_attempts => 1");
endpoint($node, $receiver, 'acme', '/status/422', "topics => '{*}', tenant => 'acme', max_attempts => 1");
endpoint($node, $receiver, 'fine', '/ok', "topics => '{crm.*}'");
my @dead = map { emit($node, "crm.$_", '{}') } qw(a b c);
my $hers = emit($node, 'order.a', '{}', "tenant => 'acme'");
ok(wait_sql($node, "SELECT string_agg(endpoint || dead || delivered, ' ' ORDER BY endpoint) = 'acme10 crm30 fine03' FROM outbox.stats"), 'three are dead, and one of a tenant');
noted();

is(as('support', "outbox.discard('crm', '$dead[0]')"), 1, 'one is discarded');
is(noted(), qq(|crm|jane|support|discard|{}|{"event": "$dead[0]", "deliveries": 1}), 'and that is noted');
ok(wait_settled($node), 'settled');
is(as('support', "outbox.discard('crm', topics => '{crm.none}')"), 0, 'of these there is none');
is(noted(), '', 'and nothing is noted');

ask("SELECT outbox.pause_endpoint('crm')");
noted();
is(as('support', "outbox.retry('crm', topics => '{crm.b,crm.c}', since => '2020-01-01 00:00Z')"), 2, 'two are asked for');
like(noted(), qr/^\|crm\|jane\|support\|retry\|\{\}\|\{"since": "2020-01-01T00:00:00\+00:00", "topics": \["crm.b", "crm.c"\], "deliveries": 2\}$/, 'with what was asked for');
ask("SELECT outbox.resume_endpoint('crm')");
ok(wait_sql($node, "SELECT dead = 2 FROM outbox.stats WHERE endpoint = 'crm'"), 'they fail again');
noted();

is(as('support', "outbox.replay('fine', '2020-01-01', '2040-01-01')"), 3, 'a replay');
like(noted(), qr/^\|fine\|jane\|support\|replay\|\{\}\|\{"replay": \d+, "to_time": "2040-01-01T.*", "from_time": "2020-01-01T.*", "deliveries": 3\}$/, 'with its times');
is(as('support', "outbox.replay('fine', '2020-01-01', '2020-01-02')"), 0, 'one of no event');
is(noted(), '', 'is not noted');
ok(wait_settled($node), 'settled');
ask("SELECT outbox.pause_endpoint('acme')");
ask("SELECT outbox.retry('acme')");
ok(wait_sql($node, "SELECT dead = 0 FROM outbox.stats WHERE endpoint = 'acme'"), 'one waits');
noted();
# in one transaction, so that the worker has not come to its end
is(as('support', "outbox.replay('acme', '2020-01-01'); SELECT outbox.cancel_replay('acme', max(replay_id)) FROM outbox.replay_progress"), "1\nt", 'a replay is cancelled');
my $replay = ask('SELECT max(replay_id) FROM outbox.replays');
like(noted(), qr/^acme\|.*\|replay\|.*\nacme\|acme\|jane\|support\|cancel_replay\|\{\}\|\{"replay": $replay\}$/, 'and that is noted');
is(as('support', "outbox.cancel_replay('acme', $replay)"), 'f', 'once');
is(noted(), '', 'and no second time');

is(as('support', "outbox.cancel('$hers')"), 't', 'its event is taken back');
is(noted(), qq(acme|acme|jane|support|cancel|{}|{"event": "$hers"}), 'and that is noted');
ok(wait_sql($node, "SELECT status = 'cancelled' FROM outbox.deliveries WHERE event_id = '$hers'"), 'it is cancelled');
is(as('support', "outbox.cancel('$hers')"), 'f', 'once');
is(noted(), '', 'and no second time');
as('support', "outbox.resend('fine', '$dead[1]')");
is(noted(), qq(|fine|jane|support|resend|{}|{"event": "$dead[1]"}), 'an event that was delivered is asked for');
my $test = as('support', "outbox.send_test('fine')");
is(noted(), qq(|fine|jane|support|test|{}|{"event": "$test"}), 'and a test');

# What a customer asks for in the portal
ask("SELECT outbox.resume_endpoint('acme')");
ok(wait_settled($node), 'settled');
$hers = emit($node, 'order.b', '{}', "tenant => 'acme'");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'acme'"), 'another one of a tenant is dead');
noted();
as('portal', "outbox.portal_retry('acme', 'acme', '$hers')");
is(noted(), qq(acme|acme|jane|portal|retry|{}|{"event": "$hers", "deliveries": 1}), 'a customer retries');

# It does not grow without end, for endpoints without a tenant either
ask("INSERT INTO outbox.endpoint_audit (endpoint, role, action, before, after) SELECT 'crm', 'support', 'retry', '{}', '{}' FROM generate_series(1, 100300)");
ask("SELECT setval('outbox.endpoint_audit_change_id_seq', (SELECT (max(change_id) / 100 + 1) * 100 - 1 FROM outbox.endpoint_audit))");
ask("SELECT outbox.pause_endpoint('crm')");
cmp_ok(ask('SELECT count(*) FROM outbox.endpoint_audit WHERE tenant IS NULL'), '<=', 100_200, 'each hundredth row removes old ones');
done_testing();
