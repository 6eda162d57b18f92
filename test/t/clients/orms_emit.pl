# The programs of doc/orm.md emit with the real ORMs and drivers, as a role that may only emit.
# "make clients" fetches what they need, and runs them.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Clients;
use PostgreSQL::Test::Utils;
use Test::More;

my %wanted = map { $_ => 1 } split ' ', $ENV{OUTBOX_TEST_CLIENTS} // '';
my @names = grep { $wanted{ $OutboxTest::Clients::programs{$_}{language} } } sort keys %OutboxTest::Clients::programs;
plan skip_all => 'takes a minute and what registries have: "make clients" runs it' unless @names;

my $doc = slurp_file("$top/doc/orm.md");
my $node = OutboxTest::Clients::server();
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'all', '/ok/all');
my $ran = 0;

foreach my $name (@names)
{
	my $program = $OutboxTest::Clients::programs{$name};
	my $missing = OutboxTest::Clients::missing($program->{language});
	if ($missing)
	{
		diag("NOT TESTED: $name: $missing");
		next;
	}
	my $said = OutboxTest::Clients::run_shop($node, $name, $node->port);
	my ($version) = $doc =~ /^\| \Q$name\E \| ([\d.]+\d)/m;
	is(($said->{version} // $version) =~ s/^v|\.Final$//gr, $version, "$name: the version of doc/orm.md");
	is($said->{$_}, $program->{prints}{$_}, "$name: $_") foreach sort keys %{ $program->{prints} // {} };
	$ran++;
}

wait_settled($node);
is( $node->safe_psql('postgres', "SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered'"),
	$node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'),
	'all of it is delivered');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'), '>=', 7 * $ran, 'which is something');

$node->stop;
done_testing();
