# Many requests that can be started at once do not keep the worker from those that come meanwhile.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Endpoints with an open connection, in use: each request more opens another one, which takes time
my ($many, $each) = (40, 24);
foreach my $n (1 .. $many)
{
	endpoint($node, $receiver, "crowd$n", "/slow/$n?ms=3000", "topics => '{crowd.*}', tenant => 'crowd'");
}
endpoint($node, $receiver, 'quiet', '/ok/quiet', "topics => '{quiet.*}', tenant => 'quiet'");
ask("SELECT outbox.emit('crowd.first', '{}', tenant => 'crowd')");
my $id = ask("SELECT outbox.emit('quiet.first', '{}', tenant => 'quiet')");
$receiver->wait_delivered(1, id => $id);
ok($receiver->wait_for($many + 1), 'all are connected');

$id = ask("SELECT count(outbox.emit('crowd.n', '{}', tenant => 'crowd')) FROM generate_series(1, $each);"
	  . " SELECT outbox.emit('quiet.second', '{}', tenant => 'quiet')");
$id =~ s/.*\n//;
$receiver->wait_delivered(1, id => $id);
my $all = $many * (1 + $each);
ok(wait_sql($node, "SELECT count(*) >= $all FROM outbox.attempts WHERE endpoint LIKE 'crowd%'"), 'all have ended');

my $before = ask("SELECT count(*) - $many FROM outbox.attempts WHERE endpoint LIKE 'crowd%'"
	  . " AND started_at < (SELECT started_at FROM outbox.attempts WHERE event_id = '$id')");
cmp_ok($before, '<', $many * $each / 2, "requests of the crowd that were begun before that of another tenant: $before");
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint LIKE 'crowd%' AND error IS NOT NULL"), 0, 'none has failed');

$node->stop;
done_testing();
