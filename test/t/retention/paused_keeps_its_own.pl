# An endpoint that does not read keeps its own events only, and gets them later, in order.
# What it lacks has rows when its piece of the log goes.  The order of a key stays, and an
# endpoint that lacks most of the log keeps it as before.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.retention = '2 s'\noutbox.attempts_retention = '2 s'\n");
my $receiver = OutboxTest::Receiver->new('main');

# Events of the others
sub others
{
	my ($n) = @_;
	return ask("SELECT count(outbox.emit('other.n', jsonb_build_object('n', n), tenant => 't' || n % 20)) FROM generate_series(1, $n) n");
}

# The log has changed pieces so often, with events of others in each.
sub rounds
{
	my ($n, $name) = @_;
	my $changes = 0;
	my $piece = '';

	return wait_until
	{
		others(20);
		my $now = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
		$changes++ if $now ne $piece && $piece ne '';
		$piece = $now;
		$changes >= $n
	}
	$name;
}

sub gone
{
	my ($name, @ids) = @_;
	my $list = "'" . join("', '", @ids) . "'";

	my $result = wait_until
	{
		others(20);
		ask("SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id IN ($list))") eq 't'
	}
	$name;
	diag ask("SELECT s, (SELECT piece FROM outbox.pieces WHERE log = 'events') FROM outbox.stats s WHERE state <> 'active'")
	  unless $result;
	return $result;
}

# The numbers in the order in which they arrived, a list for each key
sub got
{
	my ($path) = @_;
	my %got;

	foreach my $r ($receiver->delivered(path => $path))
	{
		my $data = JSON::PP::decode_json($r->{body})->{data};
		push @{ $got{ $data->{k} } }, $data->{n};
	}
	return join(' ', map { "$_: @{$got{$_}}" } sort keys %got);
}

endpoint($node, $receiver, 'all', '/ok/all', "topics => '{other.*}'");
endpoint($node, $receiver, 'idle', '/ok/idle', "topics => '{idle.*}'");
endpoint($node, $receiver, 'customer', '/ok/customer', "topics => '{mine.*}', tenant => 'acme'");
endpoint($node, $receiver, 'twin', '/ok/twin', "topics => '{mine.*}', tenant => 'acme', ordering => 'strict'");
endpoint($node, $receiver, 'down', '/status/500/down', "topics => '{mine.*}', backoff_base => '1 h', backoff_max => '1 h', max_attempts => 100");
endpoint($node, $receiver, 'gone', '/ok/gone', "topics => '{mine.*,last.*}', filter => '\$.n > 0'");

sub mine
{
	my ($k, @n) = @_;
	my $key = $k eq 'none' ? 'NULL' : "'$k'";
	return split /\n/,
	  ask("SELECT outbox.emit('mine.n', jsonb_build_object('k', '$k', 'n', n), key => $key, tenant => 'acme')"
		  . " FROM unnest(ARRAY[" . join(',', @n) . "]) n");
}

# Nothing of its own
ask("SELECT outbox.pause_endpoint('idle')");
rounds(5, 'an endpoint that is paused and lacks nothing retains nothing');

# Its own events
$receiver->control(path => '/ok/gone', behave => '/status/410');
ask("SELECT outbox.emit('last.n', '{\"n\": 1}')");
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'gone'"), 'an endpoint is disabled');
ask("SELECT outbox.pause_endpoint('$_')") foreach qw(customer twin);
my $cancelled;
my @ids;
foreach my $part (0 .. 2)
{
	push @ids, mine('a', map { $part * 10 + $_ } 1 .. 4), mine('b', map { $part * 10 + $_ } 1 .. 2), mine('none', $part * 10 + 1);
	($cancelled) = mine('a', 5) if $part == 0;
	is(ask("SELECT outbox.cancel('$cancelled', '$_')"), 't', 'one is cancelled') foreach $part == 0 ? qw(customer twin) : ();
	others(200);
	gone("part $part: its piece goes", @ids);
}
is(ask("SELECT string_agg(DISTINCT status, ',' ORDER BY status) FROM outbox.deliveries WHERE endpoint IN ('customer', 'twin', 'gone')"
		  . " AND event_id IN ('" . join("', '", @ids) . "')"),
	'blocked,retrying', 'what it lacks waits in rows');
is(ask("SELECT sum(dead) FROM outbox.stats"), '0', 'nothing is dead');
is(ask("SELECT count(*) FROM outbox.kept_events WHERE topic = 'mine.n'"), scalar(@ids) + 1, 'each event is kept once');

# A worker that starts knows as much
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);

# Newer ones wait behind them
push @ids, mine('a', 41, 42);
$receiver->control(path => $_, behave => '/ok') foreach qw(/ok/gone /status/500/down);
ask("SELECT outbox.resume_endpoint('$_')") foreach qw(customer twin gone);
ask("SELECT outbox.retry('down')");
my $wanted = 'a: 1 2 3 4 11 12 13 14 21 22 23 24 41 42 b: 1 2 11 12 21 22 none: 1 11 21';
my %path = (customer => '/ok/customer', twin => '/ok/twin', gone => '/ok/gone');
foreach my $name (sort keys %path)
{
	my $n = () = $wanted =~ /\d+/g;
	my $extra = $name eq 'gone' ? 2 : 0;    # what disabled it, and what the others cancelled
	$receiver->wait_delivered($n + $extra, path => $path{$name});
	ok(wait_sql($node, "SELECT pending + processing + retrying + blocked = 0 FROM outbox.stats WHERE endpoint = '$name'"), "$name: all is done");
	my $got = got($path{$name});
	$got =~ s/a: 1 2 3 4 5/a: 1 2 3 4/ if $extra;
	$got =~ s/^ ?: ?1? ?// if $extra;
	is($got, $wanted, "$name: exactly its own, each once, in order");
}
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.kept_events) AND NOT EXISTS (SELECT FROM outbox.parked WHERE status <> 'cancelled')"),
	'then nothing is kept')
  or diag ask('SELECT * FROM outbox.parked LIMIT 5');


# Otherwise all that follows would wait in vain
die 'what an endpoint lacks is lost' unless Test::More->builder->is_passing;

# A transaction that commits into a piece after the endpoints have passed it, and topics
# that change while the endpoint is paused
sub parked
{
	my ($name, @ids) = @_;
	return wait_sql($node, "SELECT count(*) = @{[scalar @ids]} FROM outbox.log_deliveries WHERE endpoint = '$name'"
		  . " AND status IN ('retrying', 'blocked') AND event_id IN ('" . join("', '", @ids) . "')");
}

endpoint($node, $receiver, $_, "/ok/$_", "topics => '{mine.*}'") foreach qw(late changed back again dropped);
ask("SELECT outbox.pause_endpoint('$_')") foreach qw(late changed back again dropped customer twin);
my @late = mine('late', 1);
my $open = $node->background_psql('postgres');
push @late, $open->query_safe("BEGIN; SELECT outbox.emit('mine.n', '{\"k\": \"late\", \"n\": 2}', key => 'late', tenant => 'acme')");
others(200);
wait_until { others(20); parked('late', $late[0]) } 'it waits in a row while a transaction in its piece is open';
ask("SELECT outbox.alter_endpoint('changed', topics => '{changed.*}')");
my $from = ask('SELECT clock_timestamp()');
push @late, mine('late', 3);
$open->query_safe('COMMIT');
$open->quit;
gone('the piece goes with what was committed late', @late);
ok(parked('late', @late), 'which has rows');
is(ask("SELECT string_agg(DISTINCT COALESCE(payload->>'n', 'none'), ' ') FROM outbox.all_events e JOIN outbox.log_deliveries d ON d.event_id = e.id"
		  . " WHERE d.endpoint = 'changed'"), '1', 'what came after the change of topics has none');

# Back to the beginning, a replay, and a drop, while rows wait
my ($newest) = mine('late', 4);
ask("SELECT outbox.seek_endpoint('back', 'beginning'), outbox.replay('again', '$from', now()), outbox.drop_endpoint('dropped', discard => true)");
ask("SELECT outbox.resume_endpoint('$_')") foreach qw(late changed back again customer twin);
foreach my $name (qw(late back again customer twin))
{
	$receiver->wait_delivered(1, path => "/ok/$name", id => $_) foreach @late, $newest;
	is(scalar(() = $receiver->delivered(path => "/ok/$name", id => $_)), 1, "$name: gets each once") foreach @late, $newest;
}
$receiver->wait_delivered(1, path => '/ok/changed', id => $late[0]);
ok(wait_settled($node), 'all is done');
is(scalar(() = $receiver->delivered(path => '/ok/changed')), 1, 'a new subscription holds from its place on');

# What is kept is forgotten with its tenant
ask("SELECT outbox.pause_endpoint('late')");
my @secret = mine('secret', 1, 2);
others(200);
gone('what is to be forgotten is kept', @secret);
ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forgotten WHERE tenant = 'acme'"), 'a tenant is forgotten');
is(ask("SELECT count(*) FROM outbox.kept_events WHERE tenant = 'acme' AND (payload IS NOT NULL OR key IS NOT NULL)"), '0', 'nothing of it is kept');
ask("SELECT outbox.resume_endpoint('late')");

# An endpoint that lacks most of the log keeps it, and those that lack little do not add to it
endpoint($node, $receiver, 'archive', '/ok/archive', "topics => '{other.*,mine.*}'");
ask("SELECT outbox.pause_endpoint('$_')") foreach qw(archive late);
my ($few) = mine('few', 1);
my $first = ask("SELECT outbox.emit('other.n', '{}')");
wait_until
{
	others(20);
	ask("SELECT since < clock_timestamp() - interval '6 s' FROM outbox.pieces WHERE log = 'events'") eq 't'
}
'the log stays for three times the retention';
is(ask("SELECT count(*) FROM outbox.events WHERE id IN ('$first', '$few')"), '2', 'an endpoint that lacks most of it keeps it');
is(ask("SELECT count(*) FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'archive'"), '0', 'without a row');
ask("SELECT outbox.resume_endpoint('$_')") foreach qw(archive late);
$receiver->wait_delivered(1, path => '/ok/archive', id => $_) foreach $first, $few;
gone('and no longer than that', $first, $few);

# A replay of one that is paused, with more than may be due at a time
ask("ALTER SYSTEM SET outbox.retention = '1 h'");
$node->reload;
$from = ask('SELECT clock_timestamp()');
my @again = split /\n/, ask("SELECT outbox.emit('mine.n', '{}', tenant => 'beta') FROM generate_series(1, 400)");
$receiver->wait_delivered(1, path => '/ok/late', id => $again[-1]);
ok(wait_settled($node), 'all is done');
ask("SELECT outbox.pause_endpoint('late')");
others(2500);
ask("SELECT outbox.replay('late', '$from')");
my $retrying = "SELECT retrying FROM outbox.stats WHERE endpoint = 'late'";
ok(wait_sql($node, "SELECT retrying >= 256 FROM outbox.stats WHERE endpoint = 'late'"), 'a replay waits, because enough is due');
ask("ALTER SYSTEM SET outbox.retention = '2 s'");
$node->reload;
gone('it does not keep its piece', @again);
is(ask($retrying), 400, 'and has read on');
ask("SELECT outbox.resume_endpoint('late')");
$receiver->wait_delivered(2, path => '/ok/late', id => $again[-1]);
ok(wait_settled($node), 'all is done');
is(scalar(grep { 2 != (() = $receiver->delivered(path => '/ok/late', id => $_)) } @again), 0, 'each event once more');

# A limit of what is kept for a tenant.  Beyond it the oldest are given up, and nothing without it
sub kept
{
	my ($tenant) = @_;
	return "SELECT COALESCE(sum(retrying + blocked + dead), 0) FROM outbox.stats WHERE tenant = '$tenant'";
}

sub died
{
	my ($n, $what) = @_;
	return ok(wait_sql($node, "SELECT sum(value) = $n FROM outbox.metrics() WHERE name = 'outbox_died_total' AND labels->>'reason' = 'backlog'"), $what);
}

sub of_tenant
{
	my ($tenant, $n, $more) = @_;
	$more //= '';
	return split /\n/, ask("SELECT outbox.emit('kept.n', jsonb_build_object('k', 'a', 'n', n), key => 'a', tenant => '$tenant'$more) FROM generate_series(1, $n) n");
}

endpoint($node, $receiver, $_, "/ok/$_", "topics => '{kept.*}', tenant => 'limited'") foreach qw(limited limited.too);
endpoint($node, $receiver, 'unlimited', '/ok/unlimited', "topics => '{kept.*}', tenant => 'unlimited'");
endpoint($node, $receiver, 'letters', '/ok/letters', "topics => '{kept.*}', tenant => 'letters'");
ask("SELECT outbox.pause_endpoint('$_')") foreach qw(limited limited.too unlimited);
my @events = (of_tenant('limited', 50), of_tenant('unlimited', 50), of_tenant('letters', 50, ", expires_at => clock_timestamp() - interval '1 s'"));
others(2500);
gone('what they have yet to get is kept', @events);
ok(wait_sql($node, "SELECT (" . kept('limited') . ") = 100 AND (SELECT dead FROM outbox.stats WHERE endpoint = 'letters') = 50"), 'all of it');
ask("SELECT outbox.set_tenant_limits('limited', max_kept => 30), outbox.set_tenant_limits('letters', max_kept => 20),"
	  . " outbox.set_tenant_limits(max_kept_age => '1 h')");
ok(wait_sql($node, "SELECT (" . kept('limited') . ") = 30 AND (" . kept('letters') . ") = 20"), 'no more than the limit');
is(ask(kept('unlimited')), 50, 'and all of another tenant');
ok(wait_sql($node, "SELECT count(*) <= 30 FROM outbox.kept_events WHERE tenant = 'limited'"), 'no copy of them is left');
died(70, 'they are counted as dead, and dead letters not again');

# A worker that starts knows as much, and one whose endpoint lacks most of the log gives up its oldest
ask('SELECT outbox.set_tenant_limits(reset => true)');
endpoint($node, $receiver, 'most', '/ok/most', "topics => '{kept.*}', tenant => 'most'");
ask("SELECT outbox.pause_endpoint('most')");
my @most = of_tenant('most', 3000);
$pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
wait_until { ask("SELECT since < clock_timestamp() - interval '6 s' FROM outbox.pieces WHERE log = 'events'") eq 't' } 'the log stays';
is(ask("SELECT count(*) FROM outbox.events WHERE id IN ('$most[0]', '$most[-1]')"), 2, 'an endpoint that lacks most of the log keeps it');
ask("SELECT outbox.set_tenant_limits('most', max_kept => 100)");
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.deliveries WHERE endpoint = 'most' AND status = 'cancelled' AND reason = 'backlog'"
		  . " OR NOT EXISTS (SELECT FROM outbox.events WHERE id = '$most[0]')"), 'and with a limit gives up its oldest events');
gone('so that the piece goes', @most[0, -1]);
ok(wait_sql($node, 'SELECT (' . kept('most') . ') = 100'), 'but keeps as much as that allows');
ask("SELECT outbox.resume_endpoint('$_')") foreach qw(limited limited.too unlimited most);
$receiver->wait_delivered(1, path => '/ok/most', id => $most[-1]);
$receiver->wait_delivered(50, path => '/ok/unlimited');
ok(wait_sql($node, "SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats WHERE tenant IS NOT NULL"), 'all is done');

# What memory had of the oldest may have stayed in place of others
my @got = map { [ got($_) =~ /(\d+)/g ] } qw(/ok/limited /ok/limited.too /ok/most);
is(scalar(map { @$_ } @got[0, 1]), 30, 'as many are sent as the limit allows');
is(scalar(@{ $got[2] }), 100, 'and to the one that lacked most');
foreach my $numbers (@got)
{
	is("@$numbers", join(' ', sort { $a <=> $b } @$numbers), 'in order');
	is($numbers->[-1], $numbers == $got[2] ? 3000 : 50, 'with the newest');
}
cmp_ok($got[2][50], '>', 2900, 'most of them are the newest');
is(got('/ok/unlimited'), 'a: ' . join(' ', 1 .. 50), 'the one without a limit gets all');
died(70 + 2900, 'and all that were given up are counted');

# By age
ask("SELECT outbox.set_tenant_limits('letters', max_kept_age => '1 s')");
ok(wait_sql($node, 'SELECT (' . kept('letters') . ') = 0'), 'what is older than the limit goes');

is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');
$node->stop;
done_testing();
