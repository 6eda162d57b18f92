# Endpoints of a sink that have nothing to send cost nothing while others get events.
# A link that is down, or could not be opened, is noticed soon when it may be used.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $count = 40;
my $dir = PostgreSQL::Test::Utils::tempdir('sinks');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);
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

# One that is paused or disabled has no link, until it is resumed.
ask("SELECT count(outbox.pause_endpoint('look' || n)) FROM generate_series(1, $count) n");
wait_sql($node, "SELECT bool_and(state = 'paused') FROM outbox.stats WHERE endpoint LIKE 'look%'");
$id = emit($node, 'web', '{}');
$receiver->wait_delivered(1, id => $id);
$before = looks();
ask('SELECT pg_sleep(3)');
is(looks() - $before, 0, 'a paused endpoint is not asked for its link');
ask("SELECT count(outbox.resume_endpoint('look' || n)) FROM generate_series(1, $count) n");
ask(q[SELECT outbox.emit('look', '{}')]);
ok(wait_sql($node, "SELECT sum(delivered) = 3 * $count FROM outbox.stats WHERE endpoint LIKE 'look%'"), 'and is sent to when it is resumed');

# Memory lacks to open a link, and then no more.
append_to_file("$journal.down", '');
ask(q[SELECT outbox.create_endpoint('lack', 'null://h/lack', '{lack}')]);
ask(q[SELECT outbox.emit('lack', '{}')]);
ok(wait_sql($node, q[SELECT state = 'backing_off' AND reason = 'out of memory' FROM outbox.stats WHERE endpoint = 'lack']), 'a link that cannot be opened');
unlink "$journal.down" or die "$journal.down: $!";
ok(wait_sql($node, q[SELECT delivered = 1 FROM outbox.stats WHERE endpoint = 'lack']), 'is opened again after a while');

# The number of those that are up does not matter to those that are down.  Of some tries the best one counts.
ask(q[SELECT count(outbox.create_endpoint('up' || n, 'null://h/', '{up}')) FROM generate_series(1, 6000) n]);
append_to_file("$journal.down", '');
ask(q[SELECT count(outbox.create_endpoint('down' || n, 'null://h/link', '{down}')) FROM generate_series(1, 10) n]);
my $took;
foreach my $try (1 .. 5)
{
	append_to_file("$journal.down", '');
	ok(wait_sql($node, q[SELECT count(*) = 10 FROM outbox.stats WHERE endpoint LIKE 'down%' AND reason LIKE '%told to be down']), 'ten links are down');
	ask(q[SELECT outbox.emit('down', '{}')]);
	ok(wait_sql($node, q[SELECT count(*) = 6010 AND sum(pending) = 10 FROM outbox.stats WHERE endpoint ~ '^(up|down)']), 'among thousands');
	ask('SELECT pg_sleep(5)');
	$began = time;
	unlink "$journal.down" or die "$journal.down: $!";
	ok(wait_sql($node, "SELECT sum(delivered) = 10 * $try FROM outbox.stats WHERE endpoint LIKE 'down%'"), 'they are up');
	$took = time - $began;
	note(sprintf 'after %.2f s', $took);
	last if $took < 1;
}
cmp_ok($took, '<', 1, 'which is noticed soon');
$node->stop;
done_testing();
