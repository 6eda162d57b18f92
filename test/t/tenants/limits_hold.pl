# A tenant's limits hold over all its endpoints, and scarce slots are shared by tenants first.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main', conf => "outbox.worker_max_in_flight = 12\n");
my $receiver = OutboxTest::Receiver->new('main');

sub refused
{
	my ($sql, $state, $what) = @_;
	like(($node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql"))[2], qr/ERROR:  $state/, $what);
	return;
}

# Requests of a tenant's endpoints that are under way
sub processing
{
	my ($tenant) = @_;
	return "SELECT sum(processing) FROM outbox.stats WHERE tenant = '$tenant'";
}

sub behave
{
	my ($path, $how) = @_;
	$receiver->control(path => $path, behave => $how);
	return;
}

# What is refused
refused("SELECT outbox.set_tenant_limits('a', max_in_flight => 0)", '22023', 'no slot at all');
refused("SELECT outbox.set_tenant_limits('a', rate_limit => 0)", '22023', 'no request at all');
refused("SELECT outbox.set_tenant_limits('a', rate_limit => 'nan')", '22023', 'no number');
refused("SELECT outbox.set_tenant_limits('a', max_kept => 0)", '22023', 'no delivery at all');
refused("SELECT outbox.set_tenant_limits('a', max_kept_bytes => 0)", '22023', 'no byte at all');
refused("SELECT outbox.set_tenant_limits('a', max_kept_age => '$_')", '22023', "an age of $_") foreach '0', '-1 day', '100 years';
refused("SELECT outbox.set_tenant_limits('')", '22023', 'no tenant');
is(ask("SELECT num_nonnulls(max_in_flight, rate_limit, max_kept, max_kept_bytes, max_kept_age) FROM outbox.tenant_limits('a')"), 0, 'no limits by default');

# Each limit that is set is in the audit
ask("SELECT outbox.set_tenant_limits('noted', max_in_flight => 1, rate_limit => 2, max_kept => 3, max_kept_age => '4 s', max_kept_bytes => 5)");
is(ask("SELECT after FROM outbox.endpoint_audit WHERE tenant = 'noted'"),
	'{"tenant": "noted", "max_kept": 3, "rate_limit": 2, "max_kept_age": "00:00:04", "max_in_flight": 1, "max_kept_bytes": 5}', 'all limits are noted');

# max_in_flight, over three endpoints
endpoint($node, $receiver, "few.$_", "/hold/few.$_", "topics => '{few}', tenant => 'few', timeout => '5 min'") foreach 1 .. 3;
endpoint($node, $receiver, 'free', '/ok/free', "topics => '{few}', tenant => 'free'");
ask("SELECT outbox.set_tenant_limits('few', max_in_flight => 4)");
ask("SELECT count(outbox.emit('few', '{}', tenant => t)) FROM generate_series(1, 20), (VALUES ('few'), ('free')) t(t)");
ok(wait_sql($node, "SELECT (" . processing('few') . ") = 4"), 'as many requests as the limit allows');
ok($receiver->wait_delivered(20, path => '/ok/free'), 'another tenant is not held up');
is(ask(processing('few')), 4, 'and no more than that');

# More are allowed at once, without an answer
ask("SELECT outbox.set_tenant_limits('few', max_in_flight => 7)");
ok(wait_sql($node, "SELECT (" . processing('few') . ") = 7"), 'a higher limit is used at once');
is(ask("SELECT max_in_flight FROM outbox.tenant_limits('few')"), 7, 'and shown');

# The endpoints of the tenant get what is given back, in turn
behave("/hold/few.$_", '/ok') foreach 1 .. 3;
ok($receiver->wait_delivered(20, path => "/hold/few.$_"), "all of endpoint $_") foreach 1 .. 3;
my ($now, $most) = (0, 0);
ok(wait_sql($node, "SELECT sum(delivered) = 80 FROM outbox.stats"), 'all is counted');

# One that hangs does not take its tenant's only slot for ever: the others go on after it
endpoint($node, $receiver, "one.$_", $_ == 1 ? '/status/500' : "/ok/one.$_", "topics => '{one}', tenant => 'one', timeout => '5 min',"
	  . " backoff_base => '1 h'") foreach 1 .. 3;
ask("SELECT outbox.set_tenant_limits('one', max_in_flight => 1)");
ask("SELECT count(outbox.emit('one', '{}', tenant => 'one')) FROM generate_series(1, 5)");
ok($receiver->wait_delivered(5, path => "/ok/one.$_"), "endpoint $_ behind one that fails") foreach 2 .. 3;

# An endpoint that waits for its turn, and is dropped, lets the others go on
behave('/ok/one.2', '/hold');
ask("SELECT count(outbox.emit('one', '{}', tenant => 'one')) FROM generate_series(1, 5)");
ok(wait_sql($node, "SELECT (" . processing('one') . ") = 1"), 'one is held');
ask("SELECT outbox.drop_endpoint('one.1', discard => true)");
ok(pause($node, 'one.3'), 'paused');
behave('/ok/one.2', '/ok');
ok($receiver->wait_delivered(10, path => '/ok/one.2'), 'goes on where others of the tenant were dropped and paused');
ask("SELECT outbox.resume_endpoint('one.3')");
ok($receiver->wait_delivered(10, path => '/ok/one.3'), 'and the paused one after it is resumed');

# rate_limit, over three endpoints
endpoint($node, $receiver, "rate.$_", "/ok/rate.$_", "topics => '{rate}', tenant => 'rate'") foreach 1 .. 3;
ask("SELECT outbox.set_tenant_limits('rate', rate_limit => 30)");
ok(wait_sql($node, "SELECT count(*) = 3 FROM outbox.stats WHERE tenant = 'rate' AND pending_exact"), 'known to the worker');
my $begun = time;
ask("SELECT count(outbox.emit('rate', '{}', tenant => 'rate')) FROM generate_series(1, 30)");
ok($receiver->wait_delivered(30, path => "/ok/rate.$_"), "all of endpoint $_") foreach 1 .. 3;
cmp_ok(time - $begun, '>', (90 - 1 - 3) / 30, '90 requests at 30 a second');

# One that has to wait for its own reasons does not hold up the others
endpoint($node, $receiver, "wait.$_", $_ == 1 ? '/status/429?retry_after=3600' : "/ok/wait.$_",
	"topics => '{wait}', tenant => 'wait', backoff_max => '1 h'") foreach 1 .. 3;
ask("SELECT outbox.set_tenant_limits('wait', rate_limit => 10)");
ask("SELECT count(outbox.emit('wait', '{}', tenant => 'wait')) FROM generate_series(1, 12)");
ok($receiver->wait_delivered(12, path => "/ok/wait.$_"), "endpoint $_ beside one that was told to wait") foreach 2 .. 3;
ask("SELECT outbox.drop_endpoint('wait.1', discard => true)");

# Limits of all tenants, and of one that has its own
ask("SELECT outbox.set_tenant_limits(max_in_flight => 2)");
is(ask("SELECT max_in_flight FROM outbox.tenant_limits('new')"), 2, 'a tenant without limits of its own');
is(ask("SELECT max_in_flight FROM outbox.tenant_limits('few')"), 7, 'and one with');
endpoint($node, $receiver, 'new', '/hold/new', "topics => '{new}', tenant => 'new', timeout => '5 min'");
endpoint($node, $receiver, 'own', '/hold/own', "topics => '{new}', timeout => '5 min'");
ask("SELECT count(outbox.emit('new', '{}', tenant => 'new')) FROM generate_series(1, 5)");
ok(wait_sql($node, "SELECT processing = 5 AND (" . processing('new') . ") >= 2 FROM outbox.stats WHERE endpoint = 'own'"), 'an endpoint without a tenant has no such limit');
is(ask(processing('new')), 2, 'the limit of all tenants');
ask("SELECT outbox.set_tenant_limits(reset => true)");
ok(wait_sql($node, "SELECT (" . processing('new') . ") = 5"), 'it is gone');
behave("/hold/$_", '/ok') foreach qw(new own);
ok(wait_settled($node), 'settled');

# An endpoint that is made while the limits are set, and known to the worker before they hold
my ($makes, $limits) = map { $node->background_psql('postgres') } 1 .. 2;
$makes->query_safe("BEGIN; SELECT outbox.create_endpoint('unseen', '" . $receiver->url('/hold/unseen') . "', topics => '{unseen}', tenant => 'unseen', timeout => '5 min')");
$limits->query_safe("BEGIN; SELECT outbox.set_tenant_limits('unseen', max_in_flight => 1)");
$makes->query_safe('COMMIT');
ok(wait_sql($node, "SELECT pending_exact FROM outbox.stats WHERE endpoint = 'unseen'"), 'known to the worker');
$limits->query_safe('COMMIT');
$_->quit foreach $makes, $limits;
endpoint($node, $receiver, 'beside', '/hold/beside', "topics => '{unseen}', timeout => '5 min'");
ask("SELECT count(outbox.emit('unseen', '{}', tenant => 'unseen')) FROM generate_series(1, 5)");
ok(wait_sql($node, "SELECT processing = 5 AND (" . processing('unseen') . ") >= 1 FROM outbox.stats WHERE endpoint = 'beside'"), 'an endpoint without the limit sends all');
is(ask(processing('unseen')), 1, 'the limit of an endpoint that set_tenant_limits() did not see');
behave("/hold/$_", '/ok') foreach qw(unseen beside);
ok(wait_settled($node), 'settled');

# Several workers: their parts add up to the limit.  Nothing is answered, so each uses its part.
sub workers_become
{
	my ($n) = @_;
	ask("ALTER SYSTEM SET outbox.workers_per_database = $n");
	ask('SELECT pg_reload_conf()');
	return ok(wait_sql($node, "SELECT count(*) = $n AND min(endpoints) > 0 FROM outbox.workers WHERE state = 'running'"), "$n workers");
}
foreach (1 .. 12)
{
	endpoint($node, $receiver, "parts.$_", "/hold/parts.$_", "topics => '{parts}', tenant => 'parts', timeout => '5 min'");
	endpoint($node, $receiver, "beside.$_", "/ok/beside.$_", "topics => '{parts}'");
}
ask("SELECT outbox.set_tenant_limits('parts', max_in_flight => 4)");
workers_become(3);
ask("SELECT count(outbox.emit('parts', '{}', tenant => 'parts')) FROM generate_series(1, 20)");
ok(wait_sql($node, "SELECT (" . processing('parts') . ") >= 4"), 'three workers use a limit of four');
ok($receiver->wait_delivered(20, path => "/ok/beside.$_"), "endpoint $_ without a tenant goes on") foreach 1 .. 12;
is(ask(processing('parts')), 4, 'and no more than that');
behave("/hold/parts.$_", '/ok') foreach 1 .. 12;
ok($receiver->wait_delivered(20, path => "/hold/parts.$_"), "all of endpoint $_") foreach 1 .. 12;
workers_become(1);
behave("/hold/parts.$_", '/hold') foreach 1 .. 12;
ask("SELECT count(outbox.emit('parts', '{}', tenant => 'parts')) FROM generate_series(1, 20)");
ok(wait_sql($node, "SELECT (" . processing('parts') . ") = 4"), 'one worker alone uses all of it');
behave("/hold/parts.$_", '/ok') foreach 1 .. 12;
ok(wait_settled($node), 'settled');

# Scarce slots: a tenant with many endpoints has as much as one with a single endpoint
endpoint($node, $receiver, "many.$_", "/hold/many.$_", "topics => '{scarce}', tenant => 'many', timeout => '5 min'") foreach 1 .. 6;
endpoint($node, $receiver, 'single', '/slow/single?ms=50', "topics => '{scarce}', tenant => 'single'");
ask("SELECT count(outbox.emit('scarce', '{}', tenant => 'many')) FROM generate_series(1, 100)");
ok(wait_sql($node, "SELECT (" . processing('many') . ") >= 12"), 'one tenant has all slots');
ask("SELECT count(outbox.emit('scarce', '{}', tenant => 'single')) FROM generate_series(1, 300)");
ok(wait_sql($node, "SELECT processing >= 1 FROM outbox.stats WHERE endpoint = 'single'"), 'the other one has one at once');
behave("/hold/many.$_", '/slow?ms=50') foreach 1 .. 6;
ok(wait_settled($node), 'all is delivered');
my ($single, $many) = (0, 0);
foreach ($receiver->requests)
{
	last if $_->{path} eq '/slow/single' && ++$single == 200;
	$many++ if $_->{path} =~ m{^/hold/many\.};
}
is($single, 200, 'and goes on');
cmp_ok($many, '<', 400, 'as fast as all six of the other tenant together');
done_testing();
