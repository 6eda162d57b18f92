# While commands of operators wait for a table that is locked, the worker reads and sends events.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $commands = 100_000;

endpoint($node, $receiver, 'well', '/ok/well', "topics => '{well.*}'");
$receiver->wait_delivered(1, id => emit($node, 'well.first', '{}'));
ask("INSERT INTO outbox.commands (endpoint_id, action, seq) SELECT endpoint_id, 'discard', n"
	  . " FROM outbox.endpoint_settings, generate_series(1, $commands) n WHERE name = 'well'");
ask("SELECT outbox.retry('well')");
ok(wait_sql($node, "SELECT count(*) < $commands FROM outbox.commands"), 'commands are being carried out');

my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE outbox.positions IN SHARE MODE');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'settle'"), 'a settle is on hold');
my $left = ask('SELECT count(*) FROM outbox.commands');
cmp_ok($left, '>', 0, "$left commands are left");
$receiver->wait_delivered(1, id => emit($node, 'well.second', '{}'));
pass('an event is read and sent');
is(ask('SELECT count(*) FROM outbox.commands'), $left, 'meanwhile commands wait');
$locker->query_safe('COMMIT');
$locker->quit;
ok(wait_sql($node, "SELECT count(*) < $left FROM outbox.commands"), 'and then they go on');
$node->stop;
done_testing();
