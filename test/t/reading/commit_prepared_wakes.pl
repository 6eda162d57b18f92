# COMMIT PREPARED wakes as the COMMIT of the transaction would have, also after a restart.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing but the wake at commit makes the worker look, for as long as this takes.
my $node = outbox_node('main', conf => "max_prepared_transactions = 10\noutbox.wakeup_interval = 60000\n");
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/a');
$receiver->wait_delivered(1, id => emit($node, 'plain.one', '{}'));
# An event, an endpoint and a time
my $id = ask("BEGIN; SELECT outbox.emit('prepared.one', '{}'); PREPARE TRANSACTION 'event'");
ask("COMMIT PREPARED 'event'");
$receiver->wait_delivered(1, id => $id);
pass('an event: delivered at once');

$id = ask("BEGIN; SELECT outbox.emit('prepared.two', '{}', deliver_at => clock_timestamp() + interval '1 s'); PREPARE TRANSACTION 'later'");
ask("COMMIT PREPARED 'later'");
$receiver->wait_delivered(1, id => $id);
pass('a scheduled event: delivered when it is due');

my $url = $receiver->url('/ok/b');
$id = ask("BEGIN; SELECT outbox.create_endpoint('b', '$url') \\g /dev/null\nSELECT outbox.emit('prepared.three', '{}'); PREPARE TRANSACTION 'endpoint'");
ask("COMMIT PREPARED 'endpoint'");
$receiver->wait_delivered(1, id => $id, path => '/ok/b');
pass('an endpoint: takes effect at once');

# Prepared before a restart
ask('CREATE DATABASE fresh');
$id = ask("BEGIN; SELECT outbox.emit('prepared.five', '{}'); PREPARE TRANSACTION 'old'");
$node->restart;
$receiver->wait_delivered(1, id => emit($node, 'plain.three', '{}'));
ask("COMMIT PREPARED 'old'");
$receiver->wait_delivered(1, id => $id);
pass('prepared before a restart: delivered at once');

# The extension itself, in a database where the launcher has looked for it.  Before its first
# worker starts, each database has a slot, and loses it after that.
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.worker_slots() WHERE dboid = (SELECT oid FROM pg_database WHERE datname = 'fresh')"), 'a database without the extension');
$node->safe_psql('fresh', "BEGIN; CREATE EXTENSION outbox; PREPARE TRANSACTION 'extension'");
$node->safe_psql('fresh', "COMMIT PREPARED 'extension'");
endpoint($node, $receiver, 'fresh', '/ok/fresh', undef, 'fresh');
$receiver->wait_delivered(1, id => emit($node, 'prepared.fresh', '{}', undef, 'fresh'));
pass('the extension: the first endpoint starts a worker');

# The first look at the scheduled events is held up, as by a disk that stands still
ask(<<'SQL');
CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    PERFORM pg_sleep(2);
    RETURN NULL;
END $$;
CREATE TRIGGER stall BEFORE DELETE ON outbox.scheduled FOR EACH STATEMENT EXECUTE FUNCTION public.stall();
ALTER SYSTEM SET outbox.enabled = off;
SQL
$node->reload;
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.status"), 'nothing is moved');
$id = ask("SELECT outbox.emit('plain.four', '{}', deliver_at => clock_timestamp() + interval '10 ms')");
ask('ALTER SYSTEM RESET outbox.enabled');
$node->restart;
$receiver->wait_delivered(1, id => $id);
ask('DROP TRIGGER stall ON outbox.scheduled');
$id = ask("BEGIN; SELECT outbox.emit('prepared.six', '{}', deliver_at => clock_timestamp() + interval '1 s'); PREPARE TRANSACTION 'after'");
ask("COMMIT PREPARED 'after'");
$receiver->wait_delivered(1, id => $id);
pass('a scheduled event after a look that was held up: delivered when it is due');

$node->stop;
done_testing();
