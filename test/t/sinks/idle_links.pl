# Endpoints of a sink that have nothing to send cost nothing while others get events.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $count = 40;
my $dir = PostgreSQL::Test::Utils::tempdir('sinks');
my $build = OutboxTest::Build->new("$dir/build");
OutboxTest::Build::run('cp', '-R', "$top/test/sinks", "$dir/");
OutboxTest::Build::run('make', '-s', '-C', "$dir/sinks", "PG_CONFIG=$build->{pg_config}", 'with_llvm=no', 'install');
my $journal = $ENV{OUTBOX_NULL_JOURNAL} = "$dir/journal";
my $node = outbox_node('main', build => $build, conf => "outbox.sinks = 'webhook, null'\n");
my $receiver = OutboxTest::Receiver->new('main');

sub looks { return scalar(() = slurp_file($journal) =~ /^look\tstate$/mg) }

endpoint($node, $receiver, 'web', '/ok/web', "topics => '{web}'");
ask("SELECT count(outbox.create_endpoint('look' || n, 'null://h/look', '{look}')) FROM generate_series(1, $count) n");
my $id = emit($node, 'look', '{}');
ok(wait_sql($node, "SELECT sum(delivered) = $count AND sum(pending) = 0 FROM outbox.stats WHERE endpoint LIKE 'look%'"), 'each has had an event');

# The worker has some rounds for each event.
my ($before, $began) = (looks(), time);
foreach (1 .. 200)
{
	$id = emit($node, 'web', '{}');
	$receiver->wait_delivered(1, id => $id);
}
cmp_ok(looks() - $before, '<=', $count * 2 * (time - $began + 2), 'each is asked for its link twice a second at most');
ask(q[SELECT outbox.emit('look', '{}')]);
ok(wait_sql($node, "SELECT sum(delivered) = 2 * $count FROM outbox.stats WHERE endpoint LIKE 'look%'"), 'and is sent to as before');
$node->stop;
done_testing();
