# What paused endpoints lack of a piece of the log that goes is read for all of them together.
# One that lacks nothing costs nothing when a piece goes.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($endpoints, $events) = (300, 20_000);
my $node = outbox_node('main', conf => "outbox.retention = '2 s'\n");
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $read = "SELECT sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname ~ '^events_[0-9]\$'";

# Half of them have no tenant, and the others have one.  Each has a topic of its own, and one for all.
my $url = $receiver->url('/ok/');
ask("SELECT count(outbox.create_endpoint('e' || n, '$url' || n, topics => ARRAY['own.' || n, CASE WHEN n % 2 = 0 THEN 'all.even' ELSE 'all.odd' END],"
	  . " tenant => CASE WHEN n % 2 = 0 THEN 'even' END)) FROM generate_series(1, $endpoints) n");
ok(wait_sql($node, "SELECT endpoints = $endpoints FROM outbox.workers"), 'all are there');

# They are paused at several places.
sub load
{
	my ($n) = @_;
	ask("SELECT count(outbox.emit('load', '{}', tenant => CASE WHEN n % 2 = 0 THEN 'even' END)) FROM generate_series(1, $n) n");
	return;
}

# Those that lack nothing
my $positions = 'SELECT count(*) FROM outbox.positions WHERE endpoint_id > 0';
ask("SELECT count(outbox.pause_endpoint('e' || n)) FROM generate_series(1, $endpoints) n");
ok(wait_sql($node, "SELECT count(*) FROM outbox.stats WHERE state = 'paused'", $endpoints), 'all are paused');
my ($changes, $piece, $rows) = (-1, '', 0);
wait_until
{
	load(20);
	my $now = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
	$rows = ask($positions) if $now ne $piece && ++$changes == 1;
	$piece = $now;
	$changes == 5
}
'four pieces go';
cmp_ok(ask($positions) - $rows, '<', $endpoints, 'their places are not written for each piece');
ask("ALTER SYSTEM SET outbox.retention = '1 h'");
$node->reload;
ask("SELECT count(outbox.resume_endpoint('e' || n)) FROM generate_series(1, $endpoints) n");
ok(wait_sql($node, "SELECT count(*) FROM outbox.stats WHERE state = 'active'", $endpoints), 'all are resumed');

# Those that lack something
foreach my $part (0 .. 2)
{
	ask("SELECT count(outbox.pause_endpoint('e' || n)) FROM generate_series(1, $endpoints) n WHERE n % 3 = $part");
	ok(wait_sql($node, "SELECT count(*) = $endpoints / 3 * ($part + 1) FROM outbox.stats WHERE state = 'paused'"), "part $part is paused");
	load($events / 4);
}
ask("SELECT outbox.emit('all.odd', '{}'); SELECT outbox.emit('all.even', '{}', tenant => 'even')");
ask("SELECT count(outbox.emit('own.' || n, '{}', tenant => CASE WHEN n % 2 = 0 THEN 'even' END)) FROM generate_series(1, $endpoints) n");
load($events / 4);
ok(wait_sql($node, "SELECT count(*) FROM outbox.stats WHERE pending = 2 AND pending_exact", $endpoints), 'each lacks two');
replace_worker($node);
my $before = ask($read);
ask("ALTER SYSTEM SET outbox.retention = '10 s'");
$node->reload;
ok(wait_sql($node, 'SELECT count(*) FROM outbox.parked', 2 * $endpoints), 'each has rows for what it lacks');
ok(wait_sql($node, "SELECT NOT EXISTS (SELECT FROM outbox.events WHERE topic ~ '^all')"), 'the piece is gone');
replace_worker($node);
my $times = (ask($read) - $before) / $events;
cmp_ok($times, '<', 8, sprintf 'each row was read: %.1f times', $times);

ask("SELECT count(outbox.resume_endpoint('e' || n)) FROM generate_series(1, $endpoints) n");
ok(wait_sql($node, 'SELECT sum(delivered) = 2 * count(*) AND sum(retrying + blocked + pending + processing) = 0 FROM outbox.stats'), 'all is delivered');
my %got;
$got{ $_->{path} }{ $_->{topic} }++ foreach $receiver->requests;
my $right = grep
{
	my %own = %{ $got{"/ok/$_"} // {} };
	join(' ', map { "$_: $own{$_}" } sort keys %own) eq ($_ % 2 ? 'all.odd: 1' : 'all.even: 1') . " own.$_: 1"
} 1 .. $endpoints;
is($right, $endpoints, 'to each its own, once');
$node->stop;
done_testing();
