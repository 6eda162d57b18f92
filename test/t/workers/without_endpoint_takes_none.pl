# A database without an endpoint takes no process from one that delivers.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $copies = 12;
my $node = outbox_node('main', conf => "max_worker_processes = 6\n");
my $receiver = OutboxTest::Receiver->new('main');
my @delivering = qw(postgres shop till);

sub deliver
{
	my ($what) = @_;
	my %id = map { $_ => ask("SELECT outbox.emit('shop.event', '{}')", $_) } @delivering;
	$receiver->wait_delivered(1, path => "/ok/$_", id => $id{$_}) foreach @delivering;
	pass($what);
	return;
}

# What a template with the extension makes of each new database
ask("CREATE DATABASE $_ TEMPLATE postgres") foreach 'shop', (map { "empty$_" } 1 .. $copies), 'till';
$node->restart;
endpoint($node, $receiver, $_, "/ok/$_", undef, $_) foreach @delivering;
deliver('each database with an endpoint delivers');
$node->restart;
deliver('also after a restart');
is(ask('SELECT state FROM outbox.status', 'empty1'), 'running', 'the status of another one is as with a process');
endpoint($node, $receiver, 'late', '/ok/late', undef, 'empty1');
$receiver->wait_delivered(1, path => '/ok/late', id => ask("SELECT outbox.emit('shop.event', '{}')", 'empty1'));
pass('it has a process when it has an endpoint, and one is free');
$node->stop;
done_testing();
