# An event that follows a change of settings is judged by them, also while they cannot be read.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# Settings cannot be read without this table.  Runs the code, and waits until a later try has failed, too.
sub without
{
	my ($table, $code) = @_;

	ask("ALTER TABLE outbox.$table RENAME TO hidden");
	$code->();
	ok(wait_sql($node, "SELECT failures > 1 FROM outbox.held_steps WHERE step = 'reload' AND endpoint IS NULL"),
		"without $table: reload is on hold");
	return;
}

sub again
{
	my ($table) = @_;

	ask("ALTER TABLE outbox.hidden RENAME TO $table");
	$node->reload;
	ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), "with $table: reload works again");
	return;
}

sub arrives
{
	my ($topic, $path, $what) = @_;
	my $id = emit($node, $topic, '{}', "key => 'k'");

	$receiver->wait_delivered(1, id => $id, path => $path);
	return ok(scalar(() = $receiver->delivered(id => $id, path => $path)), $what);
}

sub topics
{
	my ($path) = @_;
	return join ' ', map { $_->{headers}{'outbox-topic'} } $receiver->requests(path => $path);
}

endpoint($node, $receiver, 'moved', '/ok/moved', "topics => '{a.*}'");
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{a.*,b.*,other.*}'");
arrives('a.before', '/ok/moved', 'at first');

# Nothing can be read.  The endpoint whose settings have changed reads no events, and the others do.
without('tenant_limits_here', sub { ask("SELECT outbox.alter_endpoint('moved', topics => '{b.*}')") });
emit($node, "$_.unread", '{}', "key => 'k'") foreach qw(a b);
arrives('other.unread', '/ok/other', 'other endpoints are served');
is(topics('/ok/other'), 'a.before a.unread b.unread other.unread', 'with all events');
is(topics('/ok/moved'), 'a.before', 'no event is judged by the old settings');
again('tenant_limits_here');
arrives('b.after', '/ok/moved', 'the new settings are read');
is(topics('/ok/moved'), 'a.before b.unread b.after', 'what follows the change is judged by them');
ok( wait_sql(
		$node,
		"SELECT string_agg(topic || ' ' || status, ', ' ORDER BY seq) FROM outbox.deliveries WHERE endpoint = 'moved'",
		'a.before delivered, b.unread delivered, b.after delivered'),
	'and shown so');

# The reload fails when the endpoint has its new settings
without('retention_here', sub { ask("SELECT outbox.alter_endpoint('moved', topics => '{c.*}')") });
arrives('c.read', '/ok/moved', 'an endpoint whose settings were read goes on with them');
emit($node, 'b.read', '{}', "key => 'k'");
arrives('other.read', '/ok/other', 'and so do the others');
again('retention_here');
arrives('c.after', '/ok/moved', 'after that, too');
is(topics('/ok/moved'), 'a.before b.unread b.after c.read c.after', 'it got what it subscribes to');

# What outbox.forget() concerns is not sent, although the list of it is read with the settings.  The event
# is read when reload is on hold for some seconds more.
without('tenant_limits_here', sub { ask("SELECT outbox.alter_endpoint('moved', topics => '{d.*}')") });
ok(wait_sql($node, "SELECT failures > 3 FROM outbox.held_steps WHERE step = 'reload'"), 'reload is on hold for longer');
my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
ask("ALTER INDEX outbox.events_${piece}_seq_idx RENAME TO hidden_index");
my $secret = emit($node, 'other.secret', '{}', "tenant => 'acme'");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'read'"), 'no event is read');
ask("SELECT outbox.forget('acme')");
ask("ALTER INDEX outbox.hidden_index RENAME TO events_${piece}_seq_idx");
arrives('other.last', '/ok/other', 'an event behind one that is forgotten');
is(scalar(() = $receiver->requests(id => $secret)), 0, 'the forgotten one is not sent');
again('tenant_limits_here');
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'acme'"), 'what it held is removed');

# What a batch endpoint has read is sent in time while the rest cannot be read, and the worker sleeps.
sub in_batches { return map { $_->{id} } $receiver->events(path => '/ok/batch', delivered => 1) }
endpoint($node, $receiver, 'batch', '/ok/batch', "topics => '{batch.*}', batch_size => 10, batch_wait => '30 s'");
my @ready = map { emit($node, 'batch.ready', '{}') } 1 .. 2;
ok(wait_sql($node, "SELECT pending = 2 FROM outbox.stats WHERE endpoint = 'batch'"), 'events wait for others of their batch');
without('tenant_limits_here', sub { ask("SELECT outbox.alter_endpoint('batch', max_attempts => 3)") });
arrives('other.batch', '/ok/other', 'the log is read');
is(scalar(() = in_batches()), 0, 'the batch waits');
wait_until { in_batches() >= 2 } 'the batch';
is(join(' ', in_batches()), "@ready", 'the batch is sent');
my $unread = emit($node, 'batch.unread', '{}');
my $pid = worker_pid($node);
my $before = cpu_ticks($pid);
sleep 3;
cmp_ok(cpu_ticks($pid) - $before, '<', 30, 'the worker sleeps');
again('tenant_limits_here');
ask("SELECT outbox.alter_endpoint('batch', batch_wait => '1 s')");
wait_until { in_batches() >= 3 } 'the next batch';
is(join(' ', in_batches()), "@ready $unread", 'it reads on when its settings are read');

$node->stop;
done_testing();
