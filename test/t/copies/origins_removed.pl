# A log whose rows of outbox.origins were removed is held until outbox.adopt() brings it back.
# A superuser removes them while the worker runs, and a restore leaves them out.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Copies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A log without origin and endpoints is claimed after the retention.
my $node = outbox_node('main', conf => "outbox.retention = '10 s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $never = "backoff_base => '1 h', backoff_max => '1 h'";
my $reason = 'outbox.origins lacks rows that this log had';

sub is_held
{
	my ($name, $dbname) = @_;
	return ok(wait_sql($node, "SELECT state = 'held' AND reason LIKE '$reason%outbox.adopt()' FROM outbox.status", 't', $dbname), $name);
}

sub some
{
	my ($topic, $n, $dbname) = @_;
	return map { emit($node, $topic, "{\"n\": $_}", "key => 'k'", $dbname) } 1 .. $n;
}

sub stored
{
	my ($last) = @_;
	return ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE endpoint = 'all' AND event_id = '$last'"), 'what was sent is stored');
}

# In the first log nothing but the trigger may tell the worker: a piece that is emptied would, too.
ask("SELECT outbox.set_retention(events => '1 hour', attempts => '1 hour')");
my $before = emit($node, 'load.before', '{}');
endpoint($node, $receiver, 'all', '/ok/all', "topics => '{load.*}', start_at => 'beginning'");
endpoint($node, $receiver, 'paused', '/ok/paused', "topics => '{load.*}'");
endpoint($node, $receiver, 'dead', '/status/500/dead', "topics => '{load.*}', max_attempts => 1, $never");
number_requests($node);
my @sent = some('load.sent', 3);
$receiver->wait_delivered(1, path => "/ok/$_->[0]", id => $_->[1])
  foreach [ 'all', $before ], [ 'all', $sent[2] ], [ 'paused', $sent[2] ];
ok(wait_sql($node, "SELECT dead = 3 FROM outbox.stats WHERE endpoint = 'dead'"), 'some are dead');
wait_settled($node);
pause($node, 'paused');
my @waiting = some('load.waiting', 4);
my $scheduled = emit($node, 'load.scheduled', '{}', "deliver_at => now() + interval '1 hour'");
$receiver->wait_delivered(1, path => '/ok/all', id => $waiting[3]);
stored($waiting[3]);
my %total = (all => scalar(sent_to($receiver, 'all')), paused => scalar(sent_to($receiver, 'paused')));

# ---- all rows, under a running worker

my $session = $node->background_psql('postgres');
push @waiting, $session->query_safe("SELECT outbox.emit('load.session', '{}'::jsonb, key => 'k')");
$receiver->wait_delivered(1, path => '/ok/all', id => $waiting[-1]);
stored($waiting[-1]);
$total{all}++;
wait_sql($node, "SELECT count(*) = 8 FROM outbox.deliveries WHERE endpoint = 'dead' AND status = 'dead'");
ask('DELETE FROM outbox.origins');
is_held('without its origin the log is held');
my @meanwhile = some('load.meanwhile', 2);
push @meanwhile, $session->query_safe("SELECT outbox.emit('load.meanwhile', '{}'::jsonb, key => 'k')");
$session->quit;
ask("SELECT outbox.resume_endpoint('paused')");
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'paused' AND status = 'pending'"), 8, 'what waits is shown');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'dead' AND status = 'dead'"), 8, 'what is dead, too');
$node->restart;
is_held('after a restart it is held');
my ($rc, $out, $err) = $node->psql('postgres',
	"\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('new', '@{[$receiver->url('/ok/new')]}')");
like($err, qr/ERROR:  55000: \Q$reason\E.*HINT:  SELECT outbox.adopt\(\)/s, 'no endpoint can be made before it is adopted');
nothing_arrives($receiver, 'and nothing is sent', 0.5);
is(ask('SELECT outbox.adopt()'), 14, 'adopt() returns how many are due');
compare_sent($receiver, 'paused', [ @sent, @waiting, @meanwhile ], 'adopted');
compare_sent($receiver, 'all', [ $before, @sent, @waiting, @meanwhile ], 'adopted');
is_ordered($receiver, $_, 'adopted') foreach qw(all paused);
is(scalar(sent_to($receiver, $_)), $total{$_} + { all => 3, paused => 8 }->{$_}, "$_: each once") foreach qw(all paused);
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'the worker runs');
ask("UPDATE outbox.scheduled SET deliver_at = now() WHERE id = '$scheduled'");
$receiver->wait_delivered(1, path => "/ok/all", id => $scheduled);
pass('a scheduled event is delivered when it is due');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'all' AND event_id = '$before' AND status = 'delivered'"),
	1, 'what was delivered before is shown so');

# ---- the row of now, of a log that was adopted; and that of then

foreach my $case ([ 'newest', 'IS NULL' ], [ 'oldest', 'IS NOT NULL' ])
{
	my ($which, $condition) = @$case;

	pause($node, 'paused');
	my @late = some("load.$which", 3);
	$receiver->wait_delivered(1, path => '/ok/all', id => $late[2]);
	stored($late[2]);
	ask("DELETE FROM outbox.origins WHERE adopted_by $condition");
	is_held("without the $which row the log is held");
	push @late, some("load.$which", 1);
	ask("SELECT outbox.resume_endpoint('paused')");
	ask('SELECT outbox.adopt()');
	foreach my $name (qw(all paused))
	{
		$receiver->wait_delivered(1, path => "/ok/$name", id => $_) foreach @late;
		is(scalar(() = $receiver->requests(path => "/ok/$name", id => $_)), 1, "$name: once") foreach @late;
	}
}
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'the worker runs');
$receiver->control(path => '/status/500/dead', behave => '/ok');
ask("SELECT outbox.retry('dead')");
$receiver->wait_delivered(1, path => '/status/500/dead', id => $_) foreach @sent, @meanwhile;
pass('dead letters of all times can be sent again');

# ---- a restore without the table

pause($node, 'paused');
my @dumped = some('load.dumped', 3);
$receiver->wait_delivered(1, path => '/ok/all', id => $dumped[2]);
stored($dumped[2]);
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('postgres') ], 'pg_dump');
my ($list) = run_command([ 'pg_restore', '-l', "$dir/dump" ]);
PostgreSQL::Test::Utils::append_to_file("$dir/list", join "\n", grep { !/TABLE DATA outbox origins/ } split /\n/, $list);
ask('CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-L', "$dir/list", '-d', $node->connstr('copy'), "$dir/dump" ],
	'pg_restore, without outbox.origins');
is(ask('SELECT count(*) FROM outbox.origins', 'copy'), 0, 'no origin is there');
is_held('the copy is held', 'copy');
my $theirs = OutboxTest::Receiver->new('copy');
redirect($node, 'copy', $theirs, qw(all paused dead));
push @dumped, emit($node, 'load.copy', '{}', "key => 'k'", 'copy');
ask("SELECT outbox.resume_endpoint('paused')", 'copy');
nothing_arrives($theirs, 'and sends nothing', 0.5);
ask('SELECT outbox.adopt()', 'copy');
$theirs->wait_delivered(1, path => '/ok/paused', id => $_) foreach @dumped;
$theirs->wait_delivered(1, path => '/ok/all', id => $dumped[3]);
pass('adopted, it delivers what was undelivered');

# ---- a log without endpoints

ask('CREATE DATABASE lone');
ask('CREATE EXTENSION outbox', 'lone');
my @lone = (emit($node, 'lone.unclaimed', '{}', undef, 'lone'));
endpoint($node, $receiver, 'gone', '/ok/gone', undef, 'lone');
push @lone, emit($node, 'lone.one', '{}', undef, 'lone');
$receiver->wait_delivered(1, path => '/ok/gone', id => $lone[1]);
ask("SELECT outbox.drop_endpoint('gone', discard => true)", 'lone');
push @lone, emit($node, 'lone.two', '{}', undef, 'lone');
ask('TRUNCATE outbox.origins', 'lone');
is_held('a log that has events and no endpoints is held', 'lone');
ask('SELECT outbox.adopt()', 'lone');
endpoint($node, $receiver, 'lone', '/ok/lone', "start_at => 'beginning'", 'lone');
$receiver->wait_delivered(1, path => '/ok/lone', id => $_) foreach @lone;
pass('adopted, it has its events');

$node->stop;
done_testing();
