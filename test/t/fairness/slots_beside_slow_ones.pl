# Slow endpoints, however many, take no part of the slots that is a fast one's.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($slow, $each) = (40, 5);
my $slots = ($slow + 1) * $each;
my $node = outbox_node('main', conf => "outbox.worker_max_in_flight = $slots\noutbox.worker_memory = '1GB'\noutbox.max_payload_size = '4MB'\n");
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

sub drop_all
{
	ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");
	return;
}

# Slow endpoints have all slots, each its part or more, and most want more.  A fast one comes: it has one at once.  Those
# that want no more answer.  What they give back goes to the fast one, up to its part.
sub newcomer
{
	my ($what, %how) = @_;
	my $settings = ", timeout => '5 min'" . ($how{settings} // '');
	my $per = $how{per_request} // 1;
	my $part = $how{part} // $each;
	my $done = $how{done} // 2;
	my @paths = map { "/hold/$what/$_" } 1 .. $slow;
	my $tenant = sub { $how{tenants} ? ", tenant => '$_[0]'" : '' };
	my $emit = sub
	{
		my ($topic, $requests, $payload) = @_;
		ask("SELECT count(outbox.emit('$topic', " . ($payload // "'{}'") . $tenant->($topic eq 'fast' ? 'fast' : 'slow')
			  . ")) FROM generate_series(1, $requests * $per)");
	};
	my $held = sub
	{
		my ($path) = @_;
		return scalar grep { $_->{path} =~ m{^/hold/$what/$path$} && !defined $_->{status} } $receiver->requests;
	};

	endpoint($node, $receiver, "slow.$_", "/hold/$what/$_", "topics => '{slow" . ($_ > $done ? ',more' : '') . "}'$settings" . $tenant->('slow'))
	  foreach 1 .. $slow;
	endpoint($node, $receiver, 'fast', "/hold/$what/fast", "topics => '{fast}'$settings" . $tenant->('fast'));
	$receiver->control(path => $_, behave => '/status/500') foreach $how{retries} ? @paths : ();
	$emit->('slow', $each);
	if ($how{retries})
	{
		ok(wait_sql($node, "SELECT sum(failed_attempts) >= $slow * $each FROM outbox.stats"), "$what: all have failed");
		$receiver->control(path => $_, behave => '/hold') foreach @paths;
	}
	wait_until { $held->('\d+') == $slow * $each } "$what: each slow one has its part";
	$emit->('more', 20);
	wait_until { $held->('\d+') >= $slots } "$what: all slots are taken";
	$emit->('fast', 40);
	wait_until { $held->('fast') > 0 } "$what: a newcomer has one at once";
	$receiver->control(path => $_, behave => '/ok') foreach @paths[ 0 .. $done - 1 ];
	wait_until { $held->('fast') >= $part } "$what: its part";
	$receiver->control(path => $_, behave => '/ok') foreach @paths, "/hold/$what/fast";
	ok(wait_settled($node), "$what: all is delivered");
	drop_all();
	return;
}

newcomer('plain');
newcomer('tenants', tenants => 1, part => 32, done => 10);
newcomer('batches', settings => ', batch_size => 10', per_request => 10);
newcomer('retries', settings => ", backoff_base => '1 s', backoff_max => '1 s'", retries => 1);

# So does memory, of which large requests may use up all.
# The worker has read the setting when it says that it is disabled.
sub reset_memory
{
	my ($mb) = @_;
	ask("ALTER SYSTEM SET outbox.worker_memory = '${mb}MB'");
	ask('ALTER SYSTEM SET outbox.enabled = off');
	$node->reload;
	ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.workers"), "the worker has $mb MB");
	ask('ALTER SYSTEM RESET outbox.enabled');
	$node->reload;
	return;
}
reset_memory(32);
sub held_at { my ($path) = @_; return scalar grep { $_->{path} =~ m{^/hold/$path$} && !defined $_->{status} } $receiver->requests }
endpoint($node, $receiver, "large.$_", "/hold/large/$_", "topics => '{large}', timeout => '5 min'") foreach 1 .. $slow;
endpoint($node, $receiver, 'small', '/hold/small', "topics => '{small}', timeout => '5 min'");
ask("SELECT count(outbox.emit('large', jsonb_build_object('x', repeat('x', 500000)))) FROM generate_series(1, 5)");
wait_until { held_at('large/\d+') >= $slow } 'large requests: each has one';
ask("SELECT count(outbox.emit('small', '{}')) FROM generate_series(1, 40)");
wait_until { held_at('small') > 0 } 'a small one has a slot at once';
$receiver->control(path => "/hold/large/$_", behave => '/ok') foreach 1 .. $slow / 2;
wait_until { held_at('small') >= $each } 'and more, of what large ones give back';
$receiver->control(path => $_, behave => '/ok') foreach '/hold/small', map { "/hold/large/$_" } 1 .. $slow;
ok(wait_settled($node), 'all is delivered');
drop_all();

# Nor does a tenant use it up with one request of each of its endpoints.
reset_memory(16);
ask("SELECT count(outbox.create_endpoint('many.' || n, '" . $receiver->url('/hold/many') . "/' || n, topics => '{many}', tenant => 'many', timeout => '5 min'))"
	  . ' FROM generate_series(1, 400) n');
endpoint($node, $receiver, 'one', '/hold/one', "topics => '{one}', tenant => 'one', timeout => '5 min'");
ask("SELECT count(outbox.emit('many', '{}', tenant => 'many')) FROM generate_series(1, 3)");
ok(wait_sql($node, "SELECT bool_or(reason ~ 'worker_memory is used up') AND sum(processing) < 400 FROM outbox.stats"), 'one tenant has all memory');
ask("SELECT count(outbox.emit('one', '{}', tenant => 'one')) FROM generate_series(1, 40)");
wait_until { held_at('one') > 0 } 'another one has a slot at once';
my @held = map { $_->{path} } grep { $_->{path} =~ m{^/hold/many/} && !defined $_->{status} } $receiver->requests;
$receiver->control(path => $_, behave => '/ok') foreach @held[ 0 .. 79 ];
wait_until { held_at('one') >= 20 } 'and more, of what the first one gives back';
$receiver->control(path => '/hold/one', behave => '/ok');
$receiver->control(path => "/hold/many/$_", behave => '/ok') foreach 1 .. 400;
ok(wait_settled($node), 'all is delivered');
drop_all();

# The limit of a tenant is shared in the same way.
endpoint($node, $receiver, $_, "/hold/$_", "topics => '{few}', tenant => 't', timeout => '5 min'") foreach qw(long short);
ask("SELECT outbox.set_tenant_limits('t', max_in_flight => 6)");
ok(pause($node, 'short'), 'one endpoint of a tenant is paused');
ask("SELECT count(outbox.emit('few', '{}', tenant => 't')) FROM generate_series(1, 200)");
wait_until { held_at('long') == 6 } 'another one has all that the tenant may have';
ask("SELECT outbox.resume_endpoint('short')");
ok(wait_sql($node, "SELECT bool_and(state = 'active') FROM outbox.stats"), 'resumed');
$receiver->control(path => '/hold/short', behave => '/ok');
$receiver->control(path => '/hold/long', behave => '/ok');
$receiver->wait_delivered(200, path => '/hold/short');
my ($short, $long) = (0, 0);
foreach my $request ($receiver->requests)
{
	$short++ if $request->{path} eq '/hold/short';
	$long++ if $request->{path} eq '/hold/long' && $short == 0;
}
cmp_ok($long, '<', 6 + 20, "the first one gives slots back at once: $long");
ok(wait_settled($node), 'all is delivered');

$node->stop;
done_testing();
