# A key waits for rows of outbox.parked only while they are there, also if memory has few of them.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Utils;
use Test::More;

my $build = OutboxTest::Build->new(PostgreSQL::Test::Utils::tempdir('two_retries') . '/build');
$build->install_again('OUTBOX_PARKED_ROOM', '-DOUTBOX_PARKED_ROOM=2', '-DOUTBOX_PARKED_ROOM_LEAST=2', '-DUSE_ASSERT_CHECKING=1');
my $node = outbox_node('main', build => $build);
my $receiver = OutboxTest::Receiver->new('main');
my $slowly = "backoff_base => '1 h', backoff_max => '1 h'";

# So many deliveries of the endpoint, which is paused now, have failed.  Another worker finds them due.
sub fails_until_restart
{
	my ($name, $n) = @_;

	endpoint_shows($node, $name, "retrying = $n", "$name: $n have failed");
	ok(pause($node, $name), 'paused');
	ask("UPDATE outbox.parked SET next_attempt_at = now() - interval '1 min'");
	$receiver->control(path => "/ok/$name", behave => '/ok');
	ok(replace_worker($node), 'another worker');
	return;
}

# A replay that memory has no room for is undone, and then it is ended: the next event of its key is sent
endpoint($node, $receiver, 'undone', '/ok/undone', "topics => '{undone.*}', $slowly");
wait_status($node, emit($node, 'undone.old', '{}', "key => 'k'"), 'delivered', 'a delivery');
$receiver->control(path => '/ok/undone', behave => '/status/500');
ask("SELECT count(outbox.emit('undone.other', '{}')) FROM generate_series(1, 3)");
fails_until_restart('undone', 3);
ask(<<'SQL');
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'an obstacle'; END $$;
CREATE TRIGGER obstacle BEFORE UPDATE ON outbox.replays FOR EACH ROW WHEN (NOT NEW.cancelled) EXECUTE FUNCTION public.obstacle();
SQL
is(ask("SELECT outbox.replay('undone', now() - interval '1 h', topics => '{undone.old}')"), 1, 'a replay');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'replay'"), 'its page is undone');
is(ask('SELECT outbox.cancel_replay(\'undone\', replay_id) FROM outbox.replays'), 't', 'and it is ended');
ask('DROP TRIGGER obstacle ON outbox.replays');
ask("SELECT outbox.resume_endpoint('undone')");
endpoint_shows($node, 'undone', 'delivered = 4', 'the others are sent');
wait_status($node, emit($node, 'undone.new', '{}', "key => 'k'"), 'delivered', 'and the next event of its key');

# All that failed is what memory has room for when the endpoint is loaded: with strict ordering, too, it is sent
$receiver->control(path => '/ok/strict', behave => '/status/500');
endpoint($node, $receiver, 'strict', '/ok/strict', "topics => '{strict}', ordering => 'strict', batch_size => 2, $slowly");
emit_at_once($node, 'strict', 2, "'k'");
fails_until_restart('strict', 2);
ask("SELECT outbox.resume_endpoint('strict')");
endpoint_shows($node, 'strict', 'delivered = 2', 'both are sent');

$node->stop;
done_testing();
