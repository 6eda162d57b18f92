# Requests in flight follow the files that the process may open, and none fails for lack of one.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($files, $many) = (440, 260);
my $most = $files / 2;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

sub held { return scalar grep { $_->{path} =~ m{^/hold/} && !defined $_->{status} } $receiver->requests }

# What the postmaster may open holds for the workers that it starts from now on.
system('prlimit', '--pid', $node->{_pid}, "--nofile=$files:$files") == 0 or die "prlimit failed\n";
replace_worker($node);
$node->safe_psql('postgres', "SELECT count(outbox.create_endpoint('slow.' || n, '" . $receiver->url('/hold/')
	  . "' || n, topics => '{slow}', max_attempts => 1, timeout => '5 min', tenant => CASE WHEN n <= 10 THEN 'small' ELSE 'large' END))"
	  . " FROM generate_series(1, $many) n");
ask("SELECT outbox.emit('slow', '{}', tenant => 'large')");
wait_until { held() == $most } 'as many requests as descriptors allow';

# A tenant that comes is the next.
ask("SELECT outbox.emit('slow', '{}', tenant => 'small')");
ok(wait_sql($node, "SELECT sum(pending) = 10 FROM outbox.stats WHERE tenant = 'small'"), 'another tenant waits');
is(held(), $most, 'no more than that');
my @first = map { $_->{path} } $receiver->requests;
$receiver->control(path => $_, behave => '/ok') foreach @first[ 0 .. 9 ];
wait_until { 10 == grep { $_->{path} =~ m{^/hold/([1-9]|10)$} } $receiver->requests } 'it has what is given back';
is(scalar(() = $receiver->requests), $most + 10, 'before all others');

# One endpoint has all that is its tenant's, and does not begin with one request: no connection is idle.
my $closes = '/raw?then=close&hex=' . unpack 'H*', "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
endpoint($node, $receiver, 'one', '/hold/one', "topics => '{one}', timeout => '5 min', tenant => 'one'");
ask("SELECT count(outbox.emit('slow', '{}', tenant => 'large')) FROM generate_series(1, 3)");
ask("SELECT count(outbox.emit('one', '{}', tenant => 'one')) FROM generate_series(1, 40)");
ok(wait_sql($node, "SELECT pending >= 32 FROM outbox.stats WHERE tenant = 'one'"), 'another one waits');
$receiver->control(path => "/hold/$_", behave => $closes) foreach 11 .. 80;
wait_until { 20 <= grep { $_->{path} eq '/hold/one' } $receiver->requests } 'it has its part of what is given back';
$receiver->control(path => "/hold/$_", behave => '/ok') foreach 1 .. $many, 'one';
ok(wait_settled($node), 'all is delivered');
is(ask('SELECT sum(failed_attempts) FROM outbox.stats'), 0, 'and none has failed');

$node->stop;
done_testing();
