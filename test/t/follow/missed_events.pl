# A follower says how many events its source had removed before it took them, and of what time.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Database postgres follows all the time, and has the source emptied.  Database half is the one that misses events.
my $servers = OutboxTest::Followed->new(source => "wal_keep_size = 0\nmin_wal_size = 32MB\nmax_wal_size = 64MB\nmax_prepared_transactions = 5\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};
my $n = 0;
# Keys of the first half and of the other
my ($mine, $others) = map { my $h = $_; (grep { $source->safe_psql('shop', "SELECT (hashtext('$_') & 2147483647) % 2") == $h } 'a' .. 'z')[0] } 0, 1;

sub at_source { return $servers->at_source(@_) }
sub ask { return $servers->ask(@_) }
sub half { return $follower->safe_psql('half', $_[0]) }

# So many events, each in a transaction of its own; some more are rolled back, and take numbers.
sub announce
{
	my ($count, $key) = @_;
	at_source(join(";\n", map { $n++; "SELECT outbox.emit('order.n', '{\"n\": $n}'" . ($key ? ", key => '$key'" : '') . ')' } 1 .. $count)
		. "; BEGIN; SELECT count(outbox.emit('order.undone', '{}')) FROM generate_series(1, 5) i; ROLLBACK", 'shop_app');
	return;
}

sub taken_by
{
	my ($db) = @_;
	my $id = at_source("SELECT outbox.emit('order.last', '{}', key => '$mine')", 'shop_app');
	return wait_until { $follower->safe_psql($db, "SELECT count(*) FROM outbox.all_events WHERE id = '$id'") } "$db has taken all";
}

# A mark behind what was emitted until now, and before what comes.
sub mark
{
	my $last = at_source('BEGIN; LOCK TABLE outbox.marks IN SHARE UPDATE EXCLUSIVE MODE; SELECT max(mark) FROM outbox.marks; COMMIT');
	return wait_until { ask($OutboxTest::Followed::round); half($OutboxTest::Followed::round); at_source('SELECT max(mark) FROM outbox.marks') > $last } 'a mark';
}

# A round of half has seen that it has taken all.
sub mark_taken
{
	taken_by('half');
	my $taken = $servers->provider('SELECT pg_current_wal_insert_lsn()');
	wait_until { mark(); half("SELECT taken_lsn >= '$taken' FROM outbox.followed") eq 't' } 'a round has seen that all is taken';
	return mark();
}

# All that is in the source leaves it.
sub empty
{
	return wait_until { ask('SELECT outbox.keep_sources()'); half('SELECT outbox.keep_sources()'); at_source('SELECT count(*) FROM outbox.events') == 0 } 'the source is emptied';
}

# Follows again, and returns what was said.
sub followed_again
{
	my ($more) = @_;
	my (undef, undef, $said) = $follower->psql('half', $servers->follow_sql("keep => '0'" . ($more // '')));
	return $said;
}

sub missed
{
	my ($at_least, $at_most, $said, $name) = @_;
	my $number = $at_least == $at_most ? $at_least : "$at_least to $at_most";

	like($said, qr/WARNING:  source "shop" had removed $number events before they were taken here\nDETAIL:  They were committed between \d.* and \d.*\nHINT:  /m, "$name: said");
	is(half('SELECT at_least, at_most FROM outbox.missed_events ORDER BY missed_id DESC LIMIT 1'), "$at_least|$at_most", "$name: and stored");
	return;
}

sub drop_slot
{
	half('ALTER SUBSCRIPTION outbox_shop DISABLE');
	my $slot = half('SELECT slot FROM outbox.followed');
	wait_until { $servers->provider("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$slot' AND active") == 0 } 'nothing is sent';
	return $servers->provider("SELECT pg_drop_replication_slot('$slot')");
}

$follower->safe_psql('postgres', 'CREATE DATABASE half');
$follower->safe_psql('half', 'CREATE EXTENSION outbox');
announce(3);
ask($servers->follow_sql("keep => '0'"));
my (undef, undef, $err) = $follower->psql('half', $servers->follow_sql("keep => '0'"));
unlike($err, qr/WARNING/, 'nothing is missed at first');

# --- The slot is dropped

announce(7);
mark_taken();
drop_slot();
my $begun = at_source('SELECT clock_timestamp()');
announce(13);
at_source("SELECT outbox.emit('order.later', '{}', deliver_at => clock_timestamp() + interval '1 ms')", 'shop_app');
mark();
my $ended = at_source('SELECT clock_timestamp()');
is(half('SELECT state FROM outbox.sources'), 'slot_lost', 'a slot that was dropped is seen');
empty();
missed(14, 14, followed_again(), 'the slot was dropped');
is(half("SELECT first_at <= '$begun' AND first_at > timestamptz '$begun' - interval '10 min' AND last_at BETWEEN '$begun' AND '$ended' FROM outbox.missed_events"), 't', 'with the time of their commits');
is(half("SELECT state || ' ' || missed FROM outbox.sources"), 'streaming 14', 'the view has it');
is(half("SELECT value FROM outbox.metrics() WHERE name = 'outbox_source_missed_events'"), 14, 'and the figures');
is(ask('SELECT count(*) FROM outbox.missed_events'), 0, 'the other follower has missed none');

# --- What the source still has is none that is missed

announce(4);
mark_taken();
drop_slot();
announce(6);
mark();
unlike(followed_again(), qr/WARNING/, 'nothing was removed: nothing is missed');
taken_by('half');
is(half("SELECT count(*) FROM outbox.all_events WHERE topic = 'order.n' AND (payload ->> 'n')::int > $n - 10"), 10, 'and all is here');

# --- It was not followed for a while

announce(2);
mark_taken();
half("SELECT outbox.unfollow('shop')");
announce(9);
mark();
empty();
missed(9, 9, followed_again(), 'it was not followed');

# --- Between two marks it is not known to which side an event belongs

mark_taken();
# No other round makes a mark while a session has this lock.
my $lock = $source->background_psql('shop', on_error_stop => 1);
$lock->query_safe('BEGIN; LOCK TABLE outbox.marks IN SHARE UPDATE EXCLUSIVE MODE');
announce(3);
taken_by('half');
drop_slot();
announce(5);
$lock->quit;
mark();
empty();
my $unsure = followed_again();
missed(0, 9, $unsure, 'no mark between the last one taken and the first one missed');

# --- A transaction that is open while marks are made belongs to the one that sees it

taken_by('half');
at_source("BEGIN; SELECT outbox.emit('order.prepared', '{}'); PREPARE TRANSACTION 'p'", 'shop_app');
mark();
announce(1);
mark_taken();
drop_slot();
mark();
at_source("COMMIT PREPARED 'p'", 'shop_app');
mark();
empty();
missed(1, 1, followed_again(), 'a transaction was open when the slot was lost');

# --- The subscription was dropped by hand: how far it had come is not known

mark_taken();
half('ALTER SUBSCRIPTION outbox_shop DISABLE; ALTER SUBSCRIPTION outbox_shop SET (slot_name = NONE); DROP SUBSCRIPTION outbox_shop');
$servers->provider("SELECT pg_drop_replication_slot('" . half('SELECT slot FROM outbox.followed') . "')");
announce(4);
mark();
empty();
missed(0, 4, followed_again(), 'the subscription was dropped by hand');

# --- The source gives the slot up

mark_taken();
half('ALTER SUBSCRIPTION outbox_shop DISABLE');
my $slot = half('SELECT slot FROM outbox.followed');
my $lasts = "SELECT count(*) FROM outbox.events WHERE topic = 'order.last'";
my $had = at_source($lasts);    # the source may have some still that half has taken
announce(8);
$servers->provider('CREATE TABLE filler (t text); INSERT INTO filler SELECT repeat(md5(i::text), 30) FROM generate_series(1, 60000) i');
my $behind = $servers->provider('SELECT pg_current_wal_insert_lsn()');
wait_until
{
	# The other slot must not be lost with it. It moves on by what a checkpoint writes about running transactions.
	$servers->provider('CHECKPOINT');
	taken_by('postgres');
	$servers->provider("SELECT bool_and(restart_lsn >= '$behind') FROM pg_replication_slots WHERE slot_name <> '$slot'") eq 't'
} 'the other follower has taken all';
$servers->provider("ALTER SYSTEM SET max_slot_wal_keep_size = '1 MB'; SELECT pg_reload_conf()");
wait_until
{
	$servers->provider('CHECKPOINT');
	$servers->provider("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '$slot'") eq 'lost'
} 'the slot is lost';
$servers->provider('ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()');
my $last = at_source($lasts) - $had;
mark();
empty();
like(followed_again(), qr/source "shop" had removed \d+ events/, 'the source has given the slot up: said');
is(half("SELECT at_least = at_most AND at_most >= 8 + $last FROM outbox.missed_events ORDER BY missed_id DESC LIMIT 1"), 't', 'and counted');

# --- A follower with a share counts events of its share

half("SELECT outbox.unfollow('shop')");
at_source('SELECT outbox.divide(2)');
followed_again(", publication => 'outbox_1_of_2'");
mark();
announce(2, $mine);
mark_taken();
drop_slot();
announce(6, $mine);
announce(4, $others);
mark();
empty();
missed(6, 6, followed_again(", publication => 'outbox_1_of_2'"), 'a share');

# --- A source that is followed anew keeps events that are not here yet, though the other follower has it

mark_taken();
half('ALTER SUBSCRIPTION outbox_shop DISABLE');
announce(20, $mine);
my $twenty = "WHERE key = '$mine' AND (payload ->> 'n')::int > $n - 20";
wait_until { ask($OutboxTest::Followed::round); at_source("SELECT count(*) FROM outbox.events e JOIN outbox.pieces p ON e.piece IN (p.piece, p.piece + 10) $twenty AND p.done_lsn IS NOT NULL") == 20 } 'their piece is closed';
my $reads = $follower->background_psql('half', on_error_stop => 1);
$reads->query_safe('BEGIN; LOCK TABLE outbox.refused_events');
half('UPDATE outbox.followed SET round = round - 5');
half('ALTER SUBSCRIPTION outbox_shop ENABLE');
my $anew = $follower->background_psql('half', on_error_stop => 1);
$anew->query_until(qr/begun/, "\\echo begun\nSELECT outbox.keep_sources(), outbox.follow_anew();\n");
ok(wait_sql($follower, "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'outbox.refused_events'::regclass AND NOT granted", 't', 'half'), 'it is followed anew');
ask($OutboxTest::Followed::round) foreach 1 .. 5;
is(at_source("SELECT count(*) FROM outbox.events $twenty"), 20, 'they do not leave the source meanwhile');
at_source("INSERT INTO outbox.followers (slot, round, taken) VALUES ('outbox_other', -1, '0/1')");
$reads->quit;
$anew->quit;
ok(wait_sql($follower, "SELECT count(*) = 20 FROM outbox.all_events $twenty", 't', 'half'), 'and come');
wait_until { half('SELECT outbox.keep_sources(), outbox.follow_anew()'); half('SELECT state FROM outbox.sources') eq 'streaming' } 'it streams';
ask($OutboxTest::Followed::round) foreach 1 .. 5;
is(at_source("SELECT count(*) FROM outbox.events $twenty"), 20, 'nor while another one that begins anew has no slot yet');
at_source("DELETE FROM outbox.followers WHERE slot = 'outbox_other'");
wait_until { ask($OutboxTest::Followed::round); half($OutboxTest::Followed::round); at_source("SELECT count(*) FROM outbox.events $twenty") == 0 } 'then they do';

# --- The other share is followed when its events have left the source

$follower->safe_psql('postgres', 'CREATE DATABASE late');
$follower->safe_psql('late', 'CREATE EXTENSION outbox');
my (undef, undef, $late) = $follower->psql('late', $servers->follow_sql("publication => 'outbox_2_of_2'"));
like($late, qr/WARNING:  source "shop" had removed 0 to 4 events before they were taken here/, 'a share that is followed late: said');
is($follower->safe_psql('late', 'SELECT missed FROM outbox.sources'), 4, 'and stored');
$follower->safe_psql('late', "SELECT outbox.unfollow('shop')");
$follower->safe_psql('postgres', 'DROP DATABASE late WITH (FORCE)');

# --- A follower that was restored from a backup which is older than what the source keeps

mark_taken();
$follower->stop;
my $copy = $follower->data_dir . '.copy';
system('cp', '-R', $follower->data_dir, $copy) == 0 or die "cp failed\n";
$follower->start;
announce(11, $mine);
wait_until { half("SELECT count(*) FROM outbox.all_events WHERE key = '$mine' AND (payload ->> 'n')::int = $n") } 'they are taken';
empty();
$follower->safe_psql($_, $OutboxTest::Followed::round) foreach qw(postgres half);
$follower->stop('immediate');
system('rm', '-rf', $follower->data_dir) == 0 && rename $copy, $follower->data_dir or die "rename: $!";
$follower->start;
wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); half('SELECT outbox.keep_sources(), outbox.follow_anew()'); $follower->safe_psql($_, 'SELECT state FROM outbox.sources') eq 'streaming' || return 0 foreach qw(postgres half); 1 } 'they are followed anew';
is($follower->safe_psql($_, 'SELECT at_least, at_most FROM outbox.missed_events ORDER BY missed_id DESC LIMIT 1'), '11|11', "$_ was restored: stored") foreach qw(postgres half);
like(slurp_file($follower->logfile), qr/WARNING:  source "shop" had removed 11 events before they were taken here/, 'and in the log');

# --- It follows another share: what it has is known by its ids

ask("UPDATE outbox.followed SET keep = '1 day'");
half("UPDATE outbox.followed SET keep = '1 day'");
announce(5, $others);
mark_taken();
at_source('DROP PUBLICATION outbox_1_of_2, outbox_2_of_2');
wait_until { half('SELECT outbox.keep_sources()'); half('SELECT state FROM outbox.sources') eq 'publication_lost' } 'its share is gone';
followed_again();
is(half("SELECT count(*) FROM outbox.all_events WHERE key = '$others' AND (payload ->> 'n')::int > $n - 5"), 5, 'another share: its earlier events are taken');
is(half("SELECT count(*) - count(DISTINCT id) FROM outbox.all_events"), 0, 'and none twice');

# --- Who sees it

ask("CREATE ROLE watcher LOGIN; SELECT outbox.grant_to('watcher', 'watch'); CREATE ROLE oncall LOGIN; SELECT outbox.grant_to('oncall', 'operate')");
is($follower->safe_psql('postgres', 'SELECT missed FROM outbox.sources', extra_params => [ '-U', 'watcher' ]), 11, 'a watcher sees the number');
is($follower->safe_psql('postgres', 'SELECT at_most FROM outbox.missed_events', extra_params => [ '-U', 'oncall' ]), 11, 'an operator all of it');
ask('DELETE FROM outbox.missed_events');
is(ask('SELECT missed FROM outbox.sources'), 0, 'and when it was looked at, it is removed');
done_testing();
