# A source that was moved to another server by pg_dump is followed there, and no event is lost.
# Numbers of transactions and places in the WAL begin anew there.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new;
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

endpoint($follower, $receiver, 'all', '/ok/all');
# Numbers that the other server reaches much later
$servers->provider('DO $$ BEGIN FOR i IN 1 .. 5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');
$servers->follow;
$servers->announce(5);
$servers->all_are_taken('before it is moved');
wait_until { $servers->ask('SELECT outbox.keep_sources()'); $servers->ask('SELECT seen IS NOT NULL AND taken_lsn = seen_lsn OR round > 3 FROM outbox.followed') eq 't' } 'rounds';
$servers->ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
$servers->announce(3);
at_both();
$servers->announce(4);
$servers->ask('ALTER SUBSCRIPTION outbox_shop CONNECTION ' . OutboxTest::Followed::quoted($servers->{conninfo}) . '; ALTER SUBSCRIPTION outbox_shop ENABLE');
ok((wait_until { $servers->ask('SELECT outbox.keep_sources()'); $servers->ask('SELECT state FROM outbox.sources') eq 'slot_lost' } 'slot_lost'), 'the other server has no slot');
$servers->follow;
$servers->announce(4);
$servers->all_are_taken('after it was moved');
is($servers->ask('SELECT missed FROM outbox.sources'), 0, 'and none is missed');
$servers->announce(2);
$servers->ask("UPDATE outbox.followed SET keep = '0'");
ok((wait_until { $servers->ask('SELECT outbox.keep_sources()'); $servers->at_source('SELECT count(*) FROM outbox.events') == 0 } 'emptied'), 'what was taken leaves the other server');
$servers->all_are_taken('and nothing untaken does');
done_testing();

# The database, in another server of the same roles
sub at_both
{
	my $other = $servers->make_source('other');
	my $dump = "$PostgreSQL::Test::Utils::tmp_check/shop.dump";

	$other->start;
	$other->safe_psql('postgres', 'CREATE ROLE provided LOGIN; CREATE ROLE outbox_follower LOGIN REPLICATION; CREATE ROLE shop_app LOGIN');
	$other->safe_psql('postgres', 'CREATE DATABASE shop OWNER provided');
	PostgreSQL::Test::Utils::system_or_bail('pg_dump', '-Fc', '-f', $dump, '-d', $source->connstr('shop'));
	PostgreSQL::Test::Utils::system_or_bail('pg_restore', '-d', $other->connstr('shop'), $dump);
	$source->stop;
	$servers->{source} = $other;
	$servers->{conninfo} = $other->connstr('shop') . ' user=outbox_follower';
	return;
}
