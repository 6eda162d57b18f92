# A break between a source and its follower loses no event and changes no order.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(streaming => 1, source => "wal_sender_timeout = '5 s'\nwal_keep_size = 0\nmin_wal_size = 32MB\nmax_wal_size = 64MB\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};
my $n = 0;
my %told;    # id of each event that is committed, and its number

sub at_source { return $servers->at_source(@_) }
sub ask { return $servers->ask(@_) }

# So many events of one key, each in a transaction of its own
sub announce
{
	my ($count) = @_;
	my @sql = map { $n++; "SELECT outbox.emit('order.n', '{\"n\": $n}', key => 'k')" } 1 .. $count;
	my $first = $n - $count;
	foreach my $id (split /\n/, $servers->at_source(join(";\n", @sql), 'shop_app')) { $told{$id} = ++$first }
	return;
}

# All that was announced has come.  By the order of the follower's log, each once; the receiver may have one twice.
sub nothing_is_lost
{
	my ($name, $node) = @_;
	$node //= $follower;
	wait_until { my %got = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/all'); !grep { !$got{$_} } keys %told } "$name: all arrive";
	my ($last, @wrong, %seen) = (0);
	foreach my $request ($receiver->delivered(path => '/ok/all'))
	{
		my $number = $told{ $request->{id} } // next;
		next if $seen{$number}++;
		push @wrong, "$number after $last" if $number < $last;
		$last = $number;
	}
	is("@wrong", '', "$name: each is new in order");
	is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT id) FROM outbox.all_events'), 0, "$name: none is twice in the log");
	return is($node->safe_psql('postgres', "SELECT count(*) FROM outbox.all_events WHERE topic = 'order.n'"), scalar(keys %told), "$name: all of it is in the log");
}

# The source has been told that all of it is here, and does not send it again.
sub wait_confirmed
{
	my $lsn = $servers->provider('SELECT pg_current_wal_insert_lsn()');
	return wait_until { $servers->provider("SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots") eq 't' } 'the source is told';
}

sub wait_state
{
	my ($state, $name, $node) = @_;
	return wait_until { $servers->{follower}->psql('postgres', 'SELECT outbox.keep_sources()'); ($node // $servers->{follower})->safe_psql('postgres', 'SELECT state FROM outbox.sources') eq $state } $name // $state;
}

endpoint($follower, $receiver, 'all', '/ok/all');
announce(5);
$servers->follow;
announce(5);
nothing_is_lost('followed');

# --- The follower's standby is promoted. It lacks what the follower had taken

wait_state('streaming');
ask('SELECT outbox.keep_sources()') foreach 1 .. 3;
$follower->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($follower, 'standby', has_streaming => 1);
$standby->start;
announce(5);
nothing_is_lost('with a standby');
$follower->wait_for_catchup('standby');
$standby->stop;
$receiver->stop;
announce(20);
wait_confirmed();
ask($OutboxTest::Followed::round);
$follower->stop('immediate');
announce(5);
$standby->start;
$standby->promote;
$servers->{follower} = $follower = $standby;
announce(5);
$receiver->start;
nothing_is_lost('the standby is promoted');
ok(wait_sql($follower, "SELECT state = 'streaming' FROM outbox.sources"), 'it has noticed by itself');

# --- A copy of the data directory that is older than what the source has confirmed

ask('SELECT outbox.keep_sources()');
$follower->stop;
my $copy = $follower->data_dir . '.copy';
system('cp', '-R', $follower->data_dir, $copy) == 0 or die "cp failed\n";
$follower->start;
$receiver->stop;
announce(20);
wait_confirmed();
ask($OutboxTest::Followed::round);
announce(5);
$follower->stop('immediate');
system('rm', '-rf', $follower->data_dir) == 0 && rename $copy, $follower->data_dir or die "rename: $!";
$follower->start;
announce(5);
$receiver->start;
nothing_is_lost('the follower is restored');
ok(wait_sql($follower, "SELECT state = 'streaming' FROM outbox.sources"), 'it has noticed by itself');

# --- The connection ends in the middle of a large transaction

ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
at_source("SELECT count(outbox.emit('order.many', '{}', key => 'm' || i)) FROM generate_series(1, 20000) i", 'shop_app');
ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
foreach (1 .. 3)
{
	wait_until { $servers->provider('SELECT count(pg_terminate_backend(pid)) FROM pg_stat_replication') } 'it sends';
}
announce(5);
nothing_is_lost('the connection ends');
ok(wait_sql($follower, "SELECT count(*) = 20000 FROM outbox.all_events WHERE topic = 'order.many'"), 'and a large transaction is whole');

# --- A transaction that is sent before it ends, half of which is undone

ask('ALTER SUBSCRIPTION outbox_shop SET (streaming = ' . ($follower->pg_version >= 16 ? 'parallel' : 'on') . ')');
$servers->provider("ALTER SYSTEM SET logical_decoding_work_mem = '64 kB'; SELECT pg_reload_conf()");
at_source("BEGIN; SELECT count(outbox.emit('order.streamed', '{}')) FROM generate_series(1, 3000) i; SAVEPOINT s;"
	. " SELECT count(outbox.emit('order.undone', '{}')) FROM generate_series(1, 3000) i; ROLLBACK TO s; COMMIT", 'shop_app');
announce(1);
nothing_is_lost('a transaction is streamed');
is(ask("SELECT count(*) FILTER (WHERE topic = 'order.streamed') || ' ' || count(*) FILTER (WHERE topic = 'order.undone') FROM outbox.all_events"), '3000 0', 'what was undone is not there');
if ($source->safe_psql('postgres', 'SHOW max_prepared_transactions') eq '0')
{
	$source->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
	$source->restart;
}
at_source("BEGIN; SELECT outbox.emit('order.prepared', '{}'); PREPARE TRANSACTION 'p'", 'shop_app');
announce(1);
nothing_is_lost('a transaction is prepared');
at_source("COMMIT PREPARED 'p'", 'shop_app');
ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.all_events WHERE topic = 'order.prepared'"), 'and comes when it commits');

# --- A source whose clock is an hour off

announce(1);
my @off = split /\n/, at_source("INSERT INTO outbox.events (created_at, topic, payload) SELECT now() + h * interval '1 hour', 'order.off', '{}' FROM generate_series(-1, 1, 2) h RETURNING id");
$receiver->wait_delivered(1, id => $_) foreach @off;
is(ask("SELECT count(*) FROM outbox.all_events WHERE topic = 'order.off' AND created_at NOT BETWEEN now() - interval '50 min' AND now() + interval '50 min'"), 2, 'a clock that is off: delivered with the time that the source has');

# --- The source is read-only, as services make one whose disk is full

sub disabled
{
	ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
	return wait_until { !$servers->provider('SELECT count(*) FROM pg_replication_slots WHERE active') } 'nothing is sent';
}
disabled();
announce(5);
$source->safe_psql('postgres', 'ALTER DATABASE shop SET default_transaction_read_only = on');
ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
nothing_is_lost('the source is read-only');
wait_confirmed();
ask($OutboxTest::Followed::round);
like(ask('SELECT reason FROM outbox.sources'), qr/read-only/, 'the view says so');
$source->safe_psql('postgres', 'ALTER DATABASE shop RESET default_transaction_read_only');
announce(3);
wait_state('streaming', 'it is not read-only any more');
nothing_is_lost('the source is written again');

# --- follow() is cut off when it has made the slot

ask($OutboxTest::Followed::round) foreach 1 .. 3;
disabled();
$servers->provider('SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots');
ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
wait_state('slot_lost', 'the slot is dropped by hand');
announce(5);
my $lock = $follower->background_psql('postgres', on_error_stop => 1);
$lock->query_safe('BEGIN; LOCK TABLE outbox.refused_events');
my $cut = $follower->background_psql('postgres');
$cut->query_until(qr/begun/, "\\echo begun\n" . $servers->follow_sql . ";\n");
my $copies = "FROM pg_stat_activity WHERE query ~ 'outbox.follow' AND wait_event_type = 'Lock' AND backend_type = 'client backend'";
ok(wait_sql($follower, "SELECT count(*) = 1 $copies"), 'it copies');
is($servers->provider('SELECT count(*) FROM pg_replication_slots'), 1, 'and has made the slot');
ask("SELECT pg_terminate_backend(pid) $copies");
eval { $cut->quit };
$lock->quit;
announce(1);
wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'it is followed anew';
nothing_is_lost('follow() is cut off');

# --- By hand: what is wrong is said, and follow() mends it

sub mended
{
	my ($state, $name) = @_;
	wait_state($state, $name);
	announce(3);
	$servers->follow;
	announce(3);
	nothing_is_lost($name);
	return is(ask('SELECT state FROM outbox.sources'), 'streaming', "$name: it streams again");
}
ask('ALTER SUBSCRIPTION outbox_shop DISABLE; ALTER SUBSCRIPTION outbox_shop SET (slot_name = NONE); DROP SUBSCRIPTION outbox_shop');
mended('gone', 'the subscription is dropped');
at_source('DROP PUBLICATION outbox');
wait_state('publication_lost', 'the publication is dropped');
announce(3);
at_source('SELECT outbox.divide(1)');
announce(3);
wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'it is followed anew';
nothing_is_lost('the publication is made anew');
# PostgreSQL 18 skips what is emitted meanwhile, without an error
at_source('DROP PUBLICATION outbox');
announce(3);
at_source('SELECT outbox.divide(1)');
wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'it is followed anew';
nothing_is_lost('the publication was missing for a moment');
$servers->provider("ALTER SYSTEM SET max_slot_wal_keep_size = '1 MB'; SELECT pg_reload_conf()");
ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
$servers->provider('CREATE TABLE filler AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 60000) i; SELECT pg_switch_wal(); CHECKPOINT');
wait_until { $servers->provider('SELECT count(*) FROM pg_replication_slots WHERE wal_status = \'lost\'') || !$servers->provider('SELECT pg_switch_wal(); CHECKPOINT') } 'the slot is lost';
mended('slot_lost', 'the source gives the slot up');
$servers->provider('ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()');

# --- The password is another one

my $hba = slurp_file($source->data_dir . '/pg_hba.conf');
append_to_file($source->data_dir . '/pg_hba.conf.new', "local all outbox_follower reject\n$hba");
rename $source->data_dir . '/pg_hba.conf.new', $source->data_dir . '/pg_hba.conf';
$source->reload;
$servers->provider('SELECT count(pg_terminate_backend(pid)) FROM pg_stat_replication');
wait_state('refused', 'the source refuses the role');
like(ask('SELECT reason FROM outbox.sources'), qr/could not connect to the source/, 'and the reason is there');
announce(3);
unlink $source->data_dir . '/pg_hba.conf';
append_to_file($source->data_dir . '/pg_hba.conf', $hba);
$source->reload;
nothing_is_lost('it lets the role in again');

# --- The source's standby is promoted. It has no slot

$source->backup('replica');
my $replica = PostgreSQL::Test::Cluster->new('replica', $source->{_install_path} ? (install_path => $source->{_install_path}) : ());
$replica->init_from_backup($source, 'replica', has_streaming => 1);
$replica->start;
announce(3);
$source->wait_for_catchup('replica');
$source->stop('immediate');
$replica->promote;
$servers->{source} = $replica;
wait_state('disconnected', 'the source is gone');
$servers->{conninfo} = $replica->connstr('shop') . ' user=outbox_follower';
ask("ALTER SUBSCRIPTION outbox_shop CONNECTION " . OutboxTest::Followed::quoted($servers->{conninfo}));
mended('slot_lost', 'the standby of the source is promoted');
done_testing();
