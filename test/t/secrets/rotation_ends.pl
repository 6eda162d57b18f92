# When a rotation of secrets ends, the settings of its endpoint alone are read.
# Many that end together, and all after a reload of the configuration, are read in parts.
use strict;
use warnings;

use OutboxTest;
use List::Util qw(max sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $others = 1200;
my $node = outbox_node('main', conf => "log_min_messages = debug1\n");
my $receiver = OutboxTest::Receiver->new('main');

# How many signatures the endpoint's next event has
sub signatures
{
	my $id = emit($node, 'a.b', '{}');
	my ($request) = $receiver->wait_delivered(1, path => '/ok/turned', id => $id);
	my @signatures = split / /, $request->{headers}{'webhook-signature'};
	return scalar @signatures;
}

endpoint($node, $receiver, 'turned', '/ok/turned', "topics => '{a.*}'");
my $url = $receiver->url('/ok/other');
ask("SELECT count(outbox.create_endpoint('e' || n, '$url', topics => '{none}')) FROM generate_series(1, $others) n");
ok(wait_sql($node, "SELECT endpoints = $others + 1 FROM outbox.workers"), 'all are read');
my $before = () = settings_read($node);

ask("SELECT outbox.rotate_secret('turned', grace => '10 s')");
$receiver->control(path => '/ok/turned', secret => ask("SELECT outbox.endpoint_secret('turned')"));
is(signatures(), 2, 'two signatures while the former secret holds');
my $ended = 'SELECT count(*) = 0 FROM outbox.endpoint_secrets WHERE previous IS NOT NULL';
ok(wait_sql($node, $ended), 'and then it is forgotten');
ok((wait_until { signatures() == 1 } 'one signature'), 'and signs no more');
my @steps = settings_read($node);
splice @steps, 0, $before;
cmp_ok(max(@steps), '<=', 1, "no other settings are read (@steps)");

# Many that end at one time are read in parts
$before += @steps;
ask("SELECT count(outbox.rotate_secret(name, grace => '20 s')) FROM outbox.endpoints");
ok( (wait_until { @steps = settings_read($node); splice @steps, 0, $before; sum0(@steps) >= $others } 'read'), 'all are rotated');
ok(wait_sql($node, $ended), 'all of these rotations end');
$receiver->control(path => '/ok/turned', secret => ask("SELECT outbox.endpoint_secret('turned')"));
ok((wait_until { signatures() == 1 } 'one signature'), 'one signature again');
@steps = settings_read($node);
splice @steps, 0, $before;
cmp_ok(max(@steps), '<=', 500, "and no step reads all of them (@steps)");

# A reload of the configuration, after which each may have another key
$before += @steps;
$node->reload;
ok( (wait_until { @steps = settings_read($node); splice @steps, 0, $before; sum0(@steps) > $others } 'reloaded'), 'a reload of the configuration has all of them read');
cmp_ok(max(@steps), '<=', 500, "and no step reads all of them (@steps)");
is(signatures(), 1, 'and events go on');
$node->stop;
done_testing();
