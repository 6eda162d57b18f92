# A command is not looked for among those of other endpoints for the same event.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $many = 400;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/status/500/e');

ask("SELECT count(outbox.create_endpoint('e' || n, '$url', topics => '{a}', max_attempts => 1)) FROM generate_series(1, $many) n");
emit($node, 'a', '{}');
ok(wait_sql($node, "SELECT sum(dead) = $many FROM outbox.stats"), 'one event is dead for each of many endpoints');
$receiver->control(path => '/status/500/e', behave => '/ok/e');
my $read = q{SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'commands_delivery_idx'};
my $before = ask($read);
ask('SELECT sum(outbox.retry(name)) FROM outbox.endpoints');
ok(wait_sql($node, "SELECT sum(delivered) = $many FROM outbox.stats"), 'it is tried again for all');
replace_worker($node);    # a process that ends reports its counts
ok(wait_sql($node, "$read" =~ s/idx_tup_read/idx_tup_read > $before/r), 'the counts are there');
cmp_ok(ask($read) - $before, '<=', 8 * $many, 'few commands were read for each');

# Nor is it passed over in the index.  These endpoints are gone, so each command ends at once.
$many = 4_000;
my $pages = q{SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'commands_delivery_idx'};
$before = ask($pages);
ask("INSERT INTO outbox.commands (endpoint_id, action, seq) SELECT n, 'retry', 1 FROM generate_series(100001, 100000 + $many) n;"
	  . ' SELECT outbox.wake_workers()');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'commands for many endpoints and one event are carried out');
replace_worker($node);
ok(wait_sql($node, "$pages" =~ s/(SELECT )(.*)( FROM)/$1$2 > $before + $many$3/r), 'the counts are there');
cmp_ok(ask($pages) - $before, '<=', 6 * $many, 'few pages of the index were read for each');
$node->stop;
done_testing();
