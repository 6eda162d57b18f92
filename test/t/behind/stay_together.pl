# Many endpoints that are behind read the log together, wherever they begin.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

my $read = "SELECT sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname ~ '^events_[0-9]\$'";

# A worker reports all that it has read when it ends.
sub rows_read
{
	replace_worker($node);
	return ask($read);
}

sub enable
{
	my ($on, $state) = @_;

	ask("ALTER SYSTEM SET outbox.enabled = $on");
	$node->reload;
	return ok(wait_sql($node, 'SELECT state FROM outbox.workers', $state), "the worker is $state");
}

sub create
{
	my ($name, $from, $to) = @_;

	return "SELECT count(outbox.create_endpoint('$name' || i, '" . $receiver->url("/ok/$name") . "' || i, topics => ARRAY['$name.' || i]))"
	  . " FROM generate_series($from, $to) i;";
}

sub events_for
{
	my ($name, $endpoints, $events) = @_;

	return "SELECT count(outbox.emit('$name.' || i % $endpoints + 1, '{}')) FROM generate_series(1, $events) i;";
}

# All are paused at the head, of which no place is stored yet in which they have read.
my ($endpoints, $events) = (1000, 5000);
ask(create('e', 1, $endpoints));
ask('SELECT count(outbox.pause_endpoint(name)) FROM outbox.endpoints');
ok(wait_sql($node, "SELECT count(*) = $endpoints FROM outbox.stats WHERE state = 'paused'"), 'all are paused');
ask(events_for('e', $endpoints, $events));
ok(wait_sql($node, "SELECT sum(pending) = $events AND bool_and(pending_exact) FROM outbox.stats"), 'all are behind');
my $before = rows_read();
ask('SELECT count(outbox.resume_endpoint(name)) FROM outbox.endpoints');
ok(wait_sql($node, "SELECT sum(pending) = 0 AND sum(delivered) = $events FROM outbox.stats"), 'all is delivered');
my $times = (rows_read() - $before) / $events;
cmp_ok($times, '>=', 1, sprintf 'each row was read: %.1f times', $times);
cmp_ok($times, '<', 3.2, 'but not by each endpoint for itself');

# Each gets on: the first of its five events comes before the others have had most of theirs.
my ($n, $until, %had) = (0, 0);
foreach my $request ($receiver->requests)
{
	$n++;
	$until = $n unless $had{ $request->{path} }++;
}
is(scalar(keys %had), $endpoints, 'each has got events');
cmp_ok($until, '<', 0.6 * $events, "and its first one early: $until");
ask("SELECT count(outbox.drop_endpoint('e' || i)) FROM generate_series(1, $endpoints) i");

# They begin one by one, where a session has created them, while transactions are open and others commit.  So each has another
# start, and events of two transactions are late for some.
($endpoints, $events) = (300, 6000);
enable('off', 'disabled');
my @late = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 2;
my $rows = $events;
foreach my $i (1 .. $endpoints)
{
	$late[0]->query_safe('BEGIN;' . events_for('n', $endpoints, 600)) if $i == 100;
	$late[1]->query_safe('BEGIN;' . events_for('n', $endpoints, 600)) if $i == 200;
	ask(create('n', $i, $i) . "SELECT outbox.emit('n.$i', '{}')");
}
$late[0]->query_safe('COMMIT');
ask(events_for('n', $endpoints, $events / 2));
$late[1]->query_safe('COMMIT');
ask(events_for('n', $endpoints, $events / 2));
$_->quit foreach @late;
$before = rows_read();
enable('on', 'running');
my $count = $events + $endpoints + 4 * $endpoints;
ok(wait_sql($node, "SELECT sum(pending) = 0 AND bool_and(pending_exact) AND sum(delivered) = $count FROM outbox.stats"), 'all is delivered')
  or diag(ask('SELECT sum(pending), sum(delivered) FROM outbox.stats'));
$times = (rows_read() - $before) / $count;
cmp_ok($times, '>=', 1, sprintf 'each row was read: %.1f times', $times);
cmp_ok($times, '<', 6, 'but not by each endpoint for itself');

# They stop one by one, the one that is read for first at the last place.  Half of them stop before a transaction begins that commits
# late.  The others have had events meanwhile, so what is read for them alone lacks these.
($endpoints, $events) = (20, 5000);
ask("SELECT count(outbox.drop_endpoint('n' || i)) FROM generate_series(1, 300) i; " . create('p', 1, $endpoints));
$count = 0;
my $late = $node->background_psql('postgres', on_error_stop => 1);
foreach my $i (reverse 1 .. $endpoints)
{
	my $more = $i == $endpoints / 2 ? 4000 : $endpoints;

	$late->query_safe('BEGIN;' . events_for('p', $endpoints, 100)) if $i == $endpoints / 2;
	ask(events_for('p', $endpoints, $more));
	$count += $more;
	ok(wait_sql($node, "SELECT bool_and(pending = 0) FROM outbox.stats WHERE state = 'active'"), "before $i is paused");
	ask("SELECT outbox.pause_endpoint('p$i')");
	ok(wait_sql($node, "SELECT count(*) = $endpoints - $i + 1 FROM outbox.stats WHERE state = 'paused'"), "$i is paused");
}
$late->query_safe('COMMIT');
$late->quit;
ask(events_for('p', $endpoints, $events));
$before = rows_read();
ask('SELECT count(outbox.resume_endpoint(name)) FROM outbox.endpoints');
$count += $events + 100;
ok(wait_sql($node, "SELECT sum(pending) = 0 AND bool_and(pending_exact) AND sum(delivered) = $count FROM outbox.stats"), 'all is delivered');
$times = (rows_read() - $before) / ($events + 4000);
cmp_ok($times, '>=', 1, sprintf 'each row was read: %.1f times', $times);
cmp_ok($times, '<', 6, 'but not by each endpoint for itself');

# Each has a place of its own, and there is memory for a few events of each.  Endpoints that are ahead of others get on meanwhile,
# and that costs the rows between them, once a second.
($endpoints, $events) = (500, 30_000);
ask("SELECT count(outbox.drop_endpoint('p' || i)) FROM generate_series(1, 20) i");
enable('off', 'disabled');
ask("ALTER SYSTEM SET outbox.worker_memory = '16MB'");
$node->restart;
my $text = "jsonb_build_object('text', repeat('x', 1000))";
ask(join "\n", map {
	"SELECT outbox.create_endpoint('q' || $_, '" . $receiver->url('/ok/q') . "' || $_, topics => ARRAY['q.' || $_]);"
	  . " SELECT count(outbox.emit('q.' || ($_ * 60 + i) % $endpoints + 1, $text)) FROM generate_series(1, 60) i;"
} 1 .. $endpoints);
ask("SELECT count(outbox.emit('q.' || i % $endpoints + 1, $text)) FROM generate_series(1, $events) i");
$rows = 60 * $endpoints + $events;
$before = rows_read();
my $begun = time;
enable('on', 'running');
ok(wait_sql($node, "SELECT min(delivered) > 0 FROM outbox.stats WHERE endpoint ~ '^q'"), 'each has got something');
cmp_ok(ask('SELECT sum(pending) FROM outbox.stats'), '>', $events / 10, 'while others are behind');
ok(wait_sql($node, "SELECT sum(pending) = 0 AND bool_and(pending_exact) FROM outbox.stats WHERE endpoint ~ '^q'"), 'all is delivered');
my $seconds = time - $begun;
$times = (rows_read() - $before) / $rows;
cmp_ok($times, '>=', 1, sprintf 'each row was read: %.1f times in %.1f s', $times, $seconds);
cmp_ok($times, '<', 3 + 3 * $seconds, 'but not once for a few events of each');
done_testing();
