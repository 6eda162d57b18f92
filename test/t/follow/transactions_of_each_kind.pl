# Events of a source come from transactions of each kind: replica, with an origin, prepared, streamed.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(source => "max_prepared_transactions = 5\nlogical_decoding_work_mem = '64 kB'\n", follower => "max_prepared_transactions = 5\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

# The id of the event comes last.
sub emits { my ($sql) = @_; return (split /\n/, $servers->provider($sql))[-1] }

sub arrives
{
	my ($id, $name) = @_;
	$receiver->wait_delivered(1, path => '/ok/all', id => $id);
	return is($servers->ask("SELECT count(*) FROM outbox.all_events WHERE id = '$id'"), 1, $name);
}

endpoint($follower, $receiver, 'all', '/ok/all');
$servers->follow;

# Triggers do not fire there: that of the view, which would emit, neither.
arrives(emits("SET session_replication_role = replica; SELECT outbox.emit('order.n', '{}')"), 'session_replication_role = replica');
is(emits("SET session_replication_role = replica; INSERT INTO outbox.outgoing (topic, payload) VALUES ('order.n', '{}'); SELECT count(*) FROM outbox.events"), 1, 'there an INSERT into the view emits nothing');

# A source may be a subscriber of another server, and emit what that changes.
my $with_origin = "SELECT pg_replication_origin_create('elsewhere'); SELECT pg_replication_origin_session_setup('elsewhere'); ";
arrives(emits("$with_origin BEGIN; SELECT pg_replication_origin_xact_setup('0/1', now()); SELECT outbox.emit('order.n', '{}'); COMMIT; SELECT id FROM outbox.events ORDER BY seq DESC LIMIT 1"), 'with the origin of another server');

# A subscription of 18 and newer may be given prepared transactions before they commit.
my @ways = ([ 'streaming' => $follower->pg_version >= 16 ? 'parallel' : 'on' ], $follower->pg_version >= 18 ? [ two_phase => 'true' ] : ());
foreach my $way (@ways)
{
	my ($option, $value) = @$way;

	$servers->ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
	wait_until { $servers->provider('SELECT count(*) FROM pg_replication_slots WHERE active') == 0 } 'it is disabled';
	$servers->ask("ALTER SUBSCRIPTION outbox_shop SET ($option = $value)");
	$servers->ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
	my $id = emits("BEGIN; SELECT count(outbox.emit('order.many', '{}')) FROM generate_series(1, 2000) i; SELECT outbox.emit('order.n', '{}') AS id \\gset\nPREPARE TRANSACTION 'p'; SELECT :'id'");
	emits("BEGIN; SELECT outbox.emit('order.undone', '{}'); PREPARE TRANSACTION 'q'");
	arrives(emits("SELECT outbox.emit('order.n', '{}')"), "$option: while others are prepared");
	is($servers->ask("SELECT count(*) FROM outbox.all_events WHERE id = '$id'"), 0, "$option: what is prepared is not there");
	$servers->provider($_) foreach "COMMIT PREPARED 'p'", "ROLLBACK PREPARED 'q'";
	arrives($id, "$option: it comes when it commits");
}
is($servers->ask("SELECT count(*) FILTER (WHERE topic = 'order.many') || ' ' || count(*) FILTER (WHERE topic = 'order.undone') FROM outbox.all_events"), 2000 * @ways . ' 0', 'all of each transaction, and nothing that was rolled back');

# Rows that come once more meet no key of a table: nothing is a conflict.
$servers->ask("SELECT outbox.unfollow('shop')");
my $id = emits("SELECT outbox.emit('order.n', '{}')");
$servers->follow;
arrives($id, 'followed again');
is($servers->ask('SELECT sum(apply_error_count) FROM pg_stat_subscription_stats'), 0, 'no row was an error');
is($servers->ask('SELECT sum((to_jsonb(s) ->> k)::int8) FROM pg_stat_subscription_stats s, jsonb_object_keys(to_jsonb(s)) k WHERE k ~ \'^confl_\''), $follower->pg_version >= 18 ? 0 : '', 'and none a conflict');
is($servers->ask('SELECT count(*) - count(DISTINCT id) FROM outbox.all_events'), 0, 'none is twice in the log');
done_testing();
