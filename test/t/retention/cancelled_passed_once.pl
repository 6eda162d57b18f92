# A look at what is kept for a tenant does not pass over all that was discarded before.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 3000;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# How often the rows of outbox.parked were looked for, and how many were read
sub looks
{
	return split /\|/, ask("SELECT sum(idx_scan), sum(idx_tup_read) FROM pg_stat_all_indexes WHERE relid = 'outbox.parked'::regclass");
}

sub expired
{
	my ($n) = @_;
	return ask("SELECT count(outbox.emit('old.n', '{}', tenant => 't', expires_at => clock_timestamp() - interval '1 s')) FROM generate_series(1, $n)");
}

endpoint($node, $receiver, 'old', '/hold/old', "topics => '{old.*}', tenant => 't', ordering => 'none'");
expired($rows);
ok(wait_sql($node, "SELECT dead = $rows FROM outbox.stats"), 'many dead letters');
ask("SELECT outbox.discard('old')");
ok(wait_sql($node, 'SELECT dead = 0 FROM outbox.stats'), 'are discarded');
expired(1);
ok(wait_sql($node, 'SELECT dead = 1 FROM outbox.stats'), 'and one more is kept');

ask("SELECT outbox.set_tenant_limits('t', max_kept_age => '1 day')");
my ($scans, $read) = looks();
ok(wait_sql($node, "SELECT sum(idx_scan) > $scans + 20 FROM pg_stat_all_indexes WHERE relid = 'outbox.parked'::regclass"), 'the tenant is looked at');
my ($more, $now) = looks();
cmp_ok($now - $read, '<', 3 * $rows, sprintf '%d looks read few rows', $more - $scans);
is(ask('SELECT dead FROM outbox.stats'), '1', 'and nothing is given up');

# A row that comes with a lower number than the first one that was found is the oldest
ask("SELECT outbox.discard('old')");
ok(wait_sql($node, 'SELECT dead = 0 FROM outbox.stats'), 'all are discarded');
ask("SELECT outbox.alter_endpoint('old', max_attempts => 1, timeout => '5 min')");
my $slow = emit($node, 'old.n', '{}', "tenant => 't'");
$receiver->wait_for(1, path => '/hold/old');
expired(1);
ok(wait_sql($node, 'SELECT dead = 1 FROM outbox.stats'), 'a later one dies first');
($scans) = looks();
ok(wait_sql($node, "SELECT sum(idx_scan) > $scans + 10 FROM pg_stat_all_indexes WHERE relid = 'outbox.parked'::regclass"), 'and is looked at');
ask("SELECT outbox.set_tenant_limits('t', max_kept => 1)");
$receiver->control(path => '/hold/old', behave => '/status/500');
ok(wait_sql($node, "SELECT status || reason = 'cancelledbacklog' FROM outbox.parked WHERE event_id = '$slow'"), 'the older one is given up');
ok(wait_sql($node, 'SELECT dead = 1 FROM outbox.stats'), 'it is shown as dead no more');
is(ask("SELECT count(*) FROM outbox.parked WHERE status = 'dead'"), '1', 'and the later one stays');
$node->stop;
done_testing();
