# A standby of the source that is promoted with the slot is followed on, and no event is lost.
# PostgreSQL has such slots from 17 on; the follower may be older.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $own = $ENV{PG_CONFIG} || 'pg_config';
my ($version) = qx{$own --version} =~ /PostgreSQL (\d+)/;
my $pg_config = $version >= 17 ? $own : undef;
foreach my $other (18, 17)
{
	chomp($pg_config //= qx{"$top/test/bin/postgresql" --cached $other 2>/dev/null});
	$pg_config = undef if $pg_config eq '';
}
if (!$pg_config)
{
	diag('NOT TESTED with a failover slot: the cache has no PostgreSQL 17 or 18 (test/bin/postgresql)');
	plan(skip_all => 'no PostgreSQL with failover slots');
}

my $servers = OutboxTest::Followed->new(pg_config => $pg_config, source => "hot_standby_feedback = on\nsync_replication_slots = on\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

sub ask { return $servers->ask(@_) }

# --- A standby that has the slot

$servers->provider("SELECT pg_create_physical_replication_slot('standby')");
$source->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby', $source->{_install_path} ? (install_path => $source->{_install_path}) : ());
$standby->init_from_backup($source, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "primary_slot_name = 'standby'\nprimary_conninfo = '" . ($source->connstr('postgres') =~ s/'/''/gr) . " application_name=standby'\n");
$standby->start;
# Nothing is sent to the follower that the standby does not have.
$servers->provider("ALTER SYSTEM SET synchronized_standby_slots = 'standby'");
$source->reload;

endpoint($follower, $receiver, 'all', '/ok/all');
$servers->announce(5);
# The first that is there takes writes
$servers->{conninfo} = 'host=' . join(',', map { $_->host } $source, $standby) . ' port=' . join(',', map { $_->port } $source, $standby) . ' dbname=shop user=outbox_follower target_session_attrs=read-write';
$servers->follow;
$servers->announce(5);
$servers->all_are_taken('it is followed');
is($servers->provider("SELECT failover FROM pg_replication_slots WHERE slot_name ~ '^outbox_'"), 't', 'the slot is one that standbys may have');
# It has the slot when that has moved on past what the standby began with.
ok((wait_until { $servers->announce(1); $servers->provider('SELECT pg_log_standby_snapshot()'); $standby->safe_psql('postgres', "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '^outbox_' AND synced AND NOT temporary") } 'the slot'),
	'the standby has it');
$servers->all_are_taken('with a standby');
ask('SELECT outbox.keep_sources()') foreach 1 .. 3;

# --- While the standby is away, the follower gets nothing that could be lost

$standby->stop;
$servers->announce(5);
is(ask('SELECT count(*) FROM outbox.all_events'), @{ $servers->{told} } - 5, 'what the standby lacks is not sent');
$standby->start;
$servers->all_are_taken('the standby is back');

# --- The source dies, and the standby is promoted

$servers->announce(5);
$source->wait_for_catchup('standby');
$source->stop('immediate');
$standby->promote;
$servers->{source} = $standby;
$servers->provider("ALTER SYSTEM RESET synchronized_standby_slots");
$standby->reload;
$servers->announce(5);
$servers->all_are_taken('the standby is promoted');
ok(wait_sql($follower, "SELECT state = 'streaming' AND reason IS NULL FROM outbox.sources"), 'it has noticed by itself');
$servers->announce(5);
$servers->all_are_taken('after it');
is($servers->provider("SELECT failover FROM pg_replication_slots WHERE slot_name ~ '^outbox_'"), 't', 'the next standby may have the slot');
ask("UPDATE outbox.followed SET keep = '0'");
ok((wait_until { ask('SELECT outbox.keep_sources()'); $servers->at_source('SELECT count(*) FROM outbox.events') == 0 } 'emptied'), 'what was taken leaves the new source');
done_testing();
