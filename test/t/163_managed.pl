# Rows of a server without the extension become events of a subscriber that has it.
# The examples of doc/limits.md set that up.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($limits) = slurp_file("$top/doc/limits.md") =~ /^## Where it can run\n(.*?)^## /ms;
my %example = $limits =~ /^```sql (publisher|subscriber)\n(.*?)^```$/msg;
is(join(' ', sort keys %example), 'publisher subscriber', 'doc/limits.md has both sides');

my $managed = PostgreSQL::Test::Cluster->new('managed');
$managed->init(allows_streaming => 'logical');
$managed->start;
my $own = outbox_node('own', extension => 0);
my $receiver = OutboxTest::Receiver->new('main');

$managed->safe_psql('postgres', $example{publisher});
my $connection = $managed->connstr('postgres');
$example{subscriber} =~ s/host=managed\.example dbname=shop user=replicator/@{[ $connection =~ s{'}{''}gr ]}/;

sub announce
{
	my ($n) = @_;
	return $managed->safe_psql('postgres', "INSERT INTO announcements (topic, key, payload)"
		  . " VALUES ('order.created', 'customer-7', jsonb_build_object('n', $n)) RETURNING id");
}

my @ids = announce(1);
$own->safe_psql('postgres', $example{subscriber});
endpoint($own, $receiver, 'billing', '/ok/billing', "topics => '{order.*}', start_at => 'beginning'");
$managed->safe_psql('postgres', <<'SQL');
BEGIN;
INSERT INTO announcements (topic, payload) VALUES ('order.undone', '{}');
ROLLBACK;
SQL
$receiver->wait_delivered(1, id => $ids[0]);
push @ids, map { announce($_) } 2 .. 5;
$receiver->wait_delivered(1, id => $_) foreach @ids;
is_deeply([ map { $_->{id} } $receiver->requests(path => '/ok/billing') ],
	\@ids, 'each row is delivered under its id, in order, and what was rolled back is not');

# While its subscriber is away, rows wait.
$own->stop('immediate');
push @ids, map { announce($_) } 6 .. 10;
$own->start;
$receiver->wait_delivered(1, id => $_) foreach @ids;
is($own->safe_psql('postgres', "SELECT string_agg(payload ->> 'n', ' ' ORDER BY seq) FROM outbox.events WHERE topic LIKE 'order.%'"),
	'1 2 3 4 5 6 7 8 9 10', 'each became one event');

# What outbox refuses stops the subscription, and the log says why.
my $begin = -s $own->logfile;
$managed->safe_psql('postgres', "INSERT INTO announcements (topic, payload) VALUES ('no topic', '{}')");
my $said = wait_until { slurp_file($own->logfile, $begin) =~ /invalid topic "no topic"/ } 'the log';
ok($said, 'the log says what is refused');
done_testing();
