# A sink that never returns from a call, or crashes in a thread, holds up its endpoint alone.
# The null sink does so for one endpoint, in a database with two workers.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('sinks');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);
my $node = outbox_node('main', build => $build, conf => "outbox.sinks = 'webhook, null'\noutbox.workers_per_database = 2\n");
my $receiver = OutboxTest::Receiver->new('main');
my $session = $node->background_psql('postgres');

# A worker that is not needed any more takes its number of restarts along.
sub restarts { return scalar(() = slurp_file($node->logfile) =~ /outbox worker \d+ of database \d+ ended itself/g) }

ask("SELECT outbox.create_endpoint('$_', 'null://h/stuck', '{$_.*}', format => 'raw')") foreach qw(stuck near);
endpoint($node, $receiver, $_, "/ok/$_", "topics => '{web.*}'") foreach qw(web1 web2);
wait_status($node, emit($node, "$_.n", '{}'), 'delivered', "$_: an event is delivered") foreach qw(stuck near web);
ok(wait_sql($node, 'SELECT count(*) = 2 FROM outbox.workers WHERE endpoints > 0'), 'both workers have endpoints');

PostgreSQL::Test::Utils::append_to_file("$journal.stuck", '');
my $id = emit($node, 'stuck.n', '{}');
endpoint_shows($node, 'stuck', "state = 'held' AND reason = 'a library crashed for this endpoint, or did not return within 2 s'", 'it is held, and the view says why');
is(restarts(), 1, 'one worker has ended, once');
my $web = emit($node, 'web.n', '{}');
wait_status($node, $web, 'delivered', 'webhooks go on, in both workers');
unlink "$journal.stuck";
wait_status($node, emit($node, 'near.n', '{}'), 'delivered', 'another endpoint of the sink goes on');
is(ask("SELECT string_agg(format('%s %s %s', step, endpoint, reason), ', ') FROM outbox.held_steps"), 'send stuck stuck', 'nothing else is held');

# What its owner changes does not end the hold, also where it is loaded again or moves.
ask("SELECT outbox.alter_endpoint('stuck', ordering => 'strict'), outbox.resume_endpoint('stuck')");
ask("ALTER SYSTEM SET outbox.workers_per_database = 1");
PostgreSQL::Test::Utils::append_to_file("$journal.stuck", '');
ask('SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT failures = 2 FROM outbox.held_steps WHERE endpoint = 'stuck'"), 'a reload ends the hold, and the next one begins');
ok(wait_sql($node, 'SELECT count(*) = 1 FROM outbox.workers WHERE pid IS NOT NULL'), 'one worker has all');
unlink "$journal.stuck";
wait_status($node, $web = emit($node, 'web.n', '{}'), 'delivered', 'webhooks go on');
ask("SELECT outbox.alter_endpoint('stuck', ordering => 'key'), outbox.alter_endpoint('stuck', url => 'null://h/'), outbox.pause_endpoint('stuck'), outbox.resume_endpoint('stuck')");
wait_status($node, emit($node, 'near.n', '{}'), 'delivered', 'the worker has read that');
endpoint_shows($node, 'stuck', "state = 'held'", 'it is held all the same');
ask('SELECT pg_reload_conf()');
wait_status($node, $id, 'delivered', 'a reload ends it');
is(restarts(), 2, 'nothing else has ended a worker');

# A thread of its library follows a NULL, or aborts.  A memory checker would end the process for that.
my @crashes = $ENV{OUTBOX_MEMORY_CHECKER} ? () : qw(null abort);
ask("SELECT outbox.alter_endpoint('stuck', url => 'null://h/stuck')");
foreach my $how (@crashes)
{
	PostgreSQL::Test::Utils::append_to_file("$journal.stuck", $how);
	$id = emit($node, 'stuck.n', '{}');
	endpoint_shows($node, 'stuck', "state = 'held' AND reason LIKE 'a library crashed for this endpoint%'", "$how: it is held");
	wait_status($node, emit($node, 'web.n', '{}'), 'delivered', "$how: webhooks go on");
	unlink "$journal.stuck";
	ask('SELECT pg_reload_conf()');
	wait_status($node, $id, 'delivered', "$how: a reload ends the hold");
}
is(restarts(), 2 + @crashes, 'each has ended a worker once');
is($session->query_safe('SELECT 1'), 1, 'a session has lived through all of it');
$session->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/terminating any other active server processes|was terminated by signal/, 'the server has not restarted');
done_testing();
