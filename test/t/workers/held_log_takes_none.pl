# A database whose log is held takes no process from one that delivers.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use Test::More;

my $node = outbox_node('main', conf => "max_worker_processes = 8\n");
my $receiver = OutboxTest::Receiver->new('main');
my $copies = 10;

sub ask
{
	my ($sql, $database) = @_;
	return $node->safe_psql($database // 'postgres', $sql);
}

ask('CREATE DATABASE shop');
ask('CREATE EXTENSION outbox', 'shop');
my $url = $receiver->url('/ok/shop');
my $first = ask("SELECT outbox.create_endpoint('all', '$url'); SELECT outbox.emit('shop.first', '{}')", 'shop');
$receiver->wait_delivered(1);
ask("CREATE DATABASE copy$_ TEMPLATE shop") foreach 1 .. $copies;
$node->restart;

my $held = "SELECT count(*) = $copies FROM outbox.workers WHERE datname LIKE 'copy%' AND state = 'held'";
ok(wait_sql($node, "$held AND pid IS NULL"), "$copies copies are held, and none has a process");
like(ask("SELECT state, reason FROM outbox.status", 'copy1'), qr/^held\|this log was written by another system or database/,
	'the status of a copy says so');
my ($id) = ask("SELECT outbox.emit('shop.second', '{}')", 'shop');
$receiver->wait_delivered(1, id => $id);
pass('the database that is no copy delivers');

# What ends the rest
my $copy = ask("SELECT outbox.emit('copy.first', '{}')", 'copy1');
ask('SELECT outbox.adopt()', 'copy1');
$receiver->wait_delivered(1, id => $copy);
is(ask('SELECT state FROM outbox.status', 'copy1'), 'running', 'a copy that is adopted delivers');
ask('DROP DATABASE copy2');
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.workers WHERE datname = 'copy2'"), 'one that rests is dropped');
ask('DROP EXTENSION outbox CASCADE', 'copy3');
$node->reload;
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.workers WHERE datname = 'copy3'"), 'one without the extension is forgotten');
$node->append_conf('postgresql.conf', "outbox.instance_name = 'other'\n");
$node->reload;
ok(wait_sql($node, "SELECT state = 'held' AND pid IS NULL FROM outbox.workers WHERE datname = 'shop'"), 'another instance name: held');
$node->append_conf('postgresql.conf', "outbox.instance_name = ''\n");
$node->reload;
($id) = ask("SELECT outbox.emit('shop.third', '{}')", 'shop');
$receiver->wait_delivered(1, id => $id);
pass('a reload lets it look again at once');
$node->stop;
done_testing();
