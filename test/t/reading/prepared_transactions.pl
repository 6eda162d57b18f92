# The events of a prepared transaction are delivered after COMMIT PREPARED, also after a restart.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_prepared_transactions = 10\n");
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/a');

sub prepare
{
	my ($name) = @_;
	my $out = $node->safe_psql('postgres', <<"SQL");
BEGIN;
SELECT outbox.emit('prepared.$name', '{}'::jsonb, key => 'k');
PREPARE TRANSACTION '$name';
SQL
	return $out;
}

my $committed = prepare('yes');
my $rolled_back = prepare('no');
my $id = emit($node, 'plain.one', '{}', "key => 'k'");
$receiver->wait_delivered(1, id => $id);
is(scalar(() = $receiver->requests(id => $committed)),
	0, 'a prepared transaction is not sent');

# It may take a restart until it is committed or rolled back
$node->restart;
$id = emit($node, 'plain.two', '{}');
$receiver->wait_delivered(1, id => $id);
is(scalar(() = $receiver->requests(id => $committed)), 0, 'nor after a restart');

$node->safe_psql('postgres', "COMMIT PREPARED 'yes'");
$receiver->wait_delivered(1, id => $committed);
pass('COMMIT PREPARED: delivered');

$node->safe_psql('postgres', "ROLLBACK PREPARED 'no'");
$id = emit($node, 'plain.three', '{}');
$receiver->wait_delivered(1, id => $id);
nothing_arrives($receiver, 'ROLLBACK PREPARED: never', 1.5, id => $rolled_back);
is(scalar(() = $receiver->requests(id => $rolled_back)), 0, 'and it was not sent in the meantime');

# Committed after a crash
$committed = prepare('later');
$receiver->wait_delivered(1, id => emit($node, 'plain.four', '{}'));
kill_everything($node);
start_again($node);
$receiver->wait_delivered(1, id => emit($node, 'plain.five', '{}'));
is(scalar(() = $receiver->requests(id => $committed)), 0, 'still in doubt');
$node->safe_psql('postgres', "COMMIT PREPARED 'later'");
$receiver->wait_delivered(1, id => $committed);
pass('decided after a crash: delivered');

# An endpoint that a prepared transaction created
my $url = $receiver->url('/ok/b');
$node->safe_psql('postgres', <<"SQL");
BEGIN;
SELECT outbox.create_endpoint('b', '$url');
SELECT outbox.emit('prepared.endpoint', '{}'::jsonb);
PREPARE TRANSACTION 'endpoint';
SQL
$receiver->wait_delivered(1, id => emit($node, 'plain.six', '{}'));
$node->safe_psql('postgres', "COMMIT PREPARED 'endpoint'");
$receiver->wait_delivered(1, path => '/ok/b');
pass('an endpoint of a prepared transaction comes into effect');

$node->stop;
done_testing();
