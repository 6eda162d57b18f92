# The programs of doc/orm.md emit through PgBouncer, which gives out connections by transaction.
# "make clients" fetches what they need, and runs them.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Clients;
use OutboxTest::PgBouncer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %wanted = map { $_ => 1 } split ' ', $ENV{OUTBOX_TEST_CLIENTS} // '';
plan skip_all => 'takes a minute and what registries have: "make clients" runs it' unless $wanted{pgbouncer};
unless (OutboxTest::PgBouncer::installed())
{
	diag('NOT TESTED: emitting through PgBouncer: it is not installed');
	plan skip_all => 'PgBouncer is not installed';
}

my $node = OutboxTest::Clients::server();
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'all', '/ok/all');

my $port = OutboxTest::PgBouncer::start($node, 'app');

# Twice, because a name of a prepared statement that is left over would be in the way then
my $ran = 0;
foreach my $name (sort keys %OutboxTest::Clients::programs)
{
	next if $OutboxTest::Clients::programs{$name}{prepares};
	my $missing = OutboxTest::Clients::missing($OutboxTest::Clients::programs{$name}{language});
	if ($missing)
	{
		diag("NOT TESTED: $name through PgBouncer: $missing");
		next;
	}
	OutboxTest::Clients::run_shop($node, $name, $port, PGBOUNCER => 1) foreach 1 .. 2;
	$ran++;
}
cmp_ok($ran, '>', 0, 'some program was run');
wait_settled($node);
is( $node->safe_psql('postgres', "SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered'"),
	$node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'),
	'all of it is delivered');

$node->stop;
done_testing();
