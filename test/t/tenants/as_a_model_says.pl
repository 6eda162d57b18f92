# Each event reaches the endpoints that a model of tenants, topics and filters says, and no other.
# Endpoints come, change, rest and go meanwhile, and workers end.  This takes some
# seconds, or STEPS in make torture; SEED repeats the decisions.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{SEED} || int time;
my $steps = $ENV{STEPS} || 1500;
alarm $steps + 300;

my $node = outbox_node('main', conf => "restart_after_crash = on\noutbox.settle_interval = '10 ms'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir('model') . '/producer';
my @arguments = ('--socket', $node->host, '--port', $node->port, '--url', $receiver->url(''), '--log', $log);

diag("SEED=$seed");
$node->command_ok([ 'python3', "$top/test/tools/model.py", @arguments, '--steps', $steps, '--seed', $seed ],
	'everything is done, and comes to an end');
my @paths = split /\n/, slurp_file("$log.endpoints");
cmp_ok(scalar @paths, '>', 0, 'endpoints are left');
$node->command_ok(
	[
		'python3', "$top/test/tools/check_history.py", '--producer', $log, '--journal', $receiver->{journal},
		'--dead', "$log.dead", '--skipped', "$log.skipped", '--again', "$log.again", '--deaths', "$log.deaths", map { ('--endpoint', $_) } @paths
	],
	'each gets what it must, in order, and nothing else');

# Of endpoints that are gone, too
$node->command_ok([ 'python3', '-c', <<'PYTHON', $log, $receiver->{journal} ], 'an endpoint that was dropped got nothing else either');
import json, sys
meant = {}
for line in map(json.loads, open(sys.argv[1])):
    meant[line["id"]] = set(line.get("endpoints", []) + line.get("may", []))
for line in map(json.loads, open(sys.argv[2])):
    if "path" in line and line["path"] not in meant[line["id"]]:
        sys.exit("%s got %s" % (line["path"], line["id"]))
PYTHON
$node->stop;
done_testing();
1;
