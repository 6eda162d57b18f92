# Scheduled events that an open transaction cancels are passed over a few times.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 2000;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub entries_read
{
	replace_worker($node);
	return ask("SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelname = 'scheduled_due_idx'");
}

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{other.*}'");
endpoint($node, $receiver, 'b', '/ok/b', "topics => '{many.*}'");
my ($due, $ids) = split /\n/, ask(<<"SQL");
SELECT clock_timestamp() + interval '6 s' AS due \\gset
SELECT :'due';
SELECT count(outbox.emit('many.n', '{}', deliver_at => :'due')) FROM generate_series(1, $rows);
SQL
my $session = $node->background_psql('postgres', on_error_stop => 1);
$session->query_safe("BEGIN; SELECT count(outbox.cancel(id)) FROM outbox.scheduled");
my $read = entries_read();
my @others = split /\n/,
  ask("SELECT outbox.emit('other.n', '{}', deliver_at => '$due'::timestamptz + n * interval '200 ms') FROM generate_series(1, 15) n");
$receiver->wait_delivered(1, path => '/ok/a', id => $_) foreach @others;
pass('those of others come at their time');
my $now = entries_read();
cmp_ok($now - $read, '<', 40 * $rows, 'and the locked ones are passed over a few times');
diag $now - $read . ' entries';
is($receiver->delivered(path => '/ok/b'), 0, 'none of these is sent');
$session->query_safe('ROLLBACK');
$session->quit;
ok($receiver->wait_delivered($rows, path => '/ok/b'), 'all are when they are not cancelled after all');
is(ask('SELECT count(*) FROM outbox.scheduled'), '0', 'and are scheduled no more');
$node->stop;
done_testing();
