# Triggers that others put on the tables of the extension see every row that is written.
# pg_repack needs that: it copies a table while events are emitted, and loses none.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# What emit() and the worker write
ask(<<'SQL');
CREATE SCHEMA seen;
CREATE TABLE seen.rows (what text, row jsonb, who text DEFAULT current_user);
CREATE FUNCTION seen.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
AS $$ BEGIN INSERT INTO seen.rows VALUES (TG_RELNAME, to_jsonb(NEW)); RETURN NULL; END $$;
CREATE FUNCTION seen.refuse() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT ON outbox.events FOR EACH ROW EXECUTE FUNCTION seen.note();
CREATE TRIGGER note AFTER INSERT ON outbox.scheduled FOR EACH ROW EXECUTE FUNCTION seen.note();
CREATE TRIGGER note AFTER INSERT ON outbox.attempt_log FOR EACH ROW EXECUTE FUNCTION seen.note();
CREATE TRIGGER note AFTER INSERT ON outbox.positions FOR EACH ROW EXECUTE FUNCTION seen.note();
CREATE ROLE emitter;
GRANT USAGE ON SCHEMA outbox TO emitter;
GRANT EXECUTE ON FUNCTION outbox.emit(text, jsonb, text, text, jsonb, timestamptz, timestamptz, text, text) TO emitter;
SQL
endpoint($node, $receiver, 'ok', '/ok/a', "topics => '{a.*}'");
my $now = ask("SET ROLE emitter; SELECT outbox.emit('a.now', '{\"n\": 1}'::jsonb, 'k')");
my $later = ask("SELECT outbox.emit('a.later', '{}'::jsonb, deliver_at => clock_timestamp() + interval '200 ms')");
my @many = split /\n/, ask("SELECT outbox.emit('a.many', to_jsonb(n)) FROM generate_series(1, 5) n");
$receiver->wait_delivered(1, id => $_) foreach $now, $later, @many;

my $of_log = "what ~ '^events_' AND row ->> 'id'";
is(ask("SELECT row ->> 'topic', row -> 'payload', row ->> 'key' FROM seen.rows WHERE $of_log = '$now'"),
	'a.now|{"n": 1}|k', 'a trigger of the log sees what a role emits that may nothing else');
is(ask("SELECT count(*) FROM seen.rows WHERE what = 'scheduled' AND row ->> 'id' = '$later'"),
	1, 'one of outbox.scheduled what is put aside');
is(ask("SELECT count(*) FROM seen.rows WHERE $of_log = '$later'"), 1, 'and the log what is due');
is(ask("SELECT count(DISTINCT row ->> 'id') FROM seen.rows WHERE $of_log IN ('" . join("', '", @many) . "')"),
	5, 'each row of a statement');
ok(wait_sql($node, "SELECT count(*) = 7 FROM seen.rows WHERE what ~ '^attempt_log_'"),
	'one of the attempts sees each');
ok(wait_sql($node, "SELECT count(*) > 0 FROM seen.rows WHERE what ~ '^positions_'"),
	'one of the positions sees them');

# What a trigger keeps out was not emitted, and emit() says so
ask('CREATE TRIGGER refuse BEFORE INSERT ON outbox.events_0 FOR EACH ROW EXECUTE FUNCTION seen.refuse()');
my ($rc, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.emit('a.refused', '{}'::jsonb)");
like($err, qr/09000: a trigger kept a row out of "outbox\.events_0".*HINT:/s, 'a row that is kept out is an error');
ask('DROP TRIGGER refuse ON outbox.events_0');
ask("DROP TRIGGER note ON outbox.$_") foreach qw(events scheduled attempt_log positions);

# A foreign key is a row trigger, too
ask("CREATE TABLE seen.keys (key text PRIMARY KEY); INSERT INTO seen.keys VALUES ('known');"
	  . 'ALTER TABLE outbox.events_0 ADD CONSTRAINT known FOREIGN KEY (key) REFERENCES seen.keys NOT VALID');
($rc, undef, $err) = $node->psql('postgres', "SELECT outbox.emit('a.b', '{}'::jsonb, 'unknown')");
like($err, qr/violates foreign key constraint "known"/, 'a foreign key is held');
my $known = emit($node, 'a.b', '{}', "'known'");
$receiver->wait_delivered(1, id => $known);
ask('ALTER TABLE outbox.events_0 DROP CONSTRAINT known');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

# pg_repack, while events are emitted and delivered
my $bin = $node->config_data('--bindir');
my $repack = "$bin/pg_repack";
SKIP:
{
	my $there = -x $repack
	  && ask("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_repack'");

	skip 'pg_repack is not installed for this PostgreSQL (Debian: postgresql-15-repack)', 10 unless $there;
	ask('CREATE EXTENSION pg_repack');
	endpoint($node, $receiver, 'load', '/ok/load', "topics => '{load.*}'");
	endpoint($node, $receiver, 'flaky', '/fail/flaky?rate=0.05',
		"topics => '{load.*}', backoff_base => '10 ms', backoff_max => '50 ms'");
	my $log = PostgreSQL::Test::Utils::tempdir('producer') . '/log';
	my $producer = start_producer($node, $log, rate => 400, sessions => 4, keys => 20, rollback => 0.1);
	$receiver->wait_new(50, '/ok/load');
	foreach my $table (qw(events_0 attempt_log_0 positions_0 ticks_0 parked events_0 events_0 events_0))
	{
		$node->command_ok(
			[
				$repack, '--no-kill-backend', '--no-order', '-d', 'postgres',
				'-h', $node->host, '-p', $node->port, '-t', "outbox.$table"
			],
			"pg_repack of $table");
	}
	$receiver->wait_new(50, '/ok/load');
	stop_producer($producer);
	check_history($node, $receiver, $log,
		endpoints => [ '/ok/load', '/fail/flaky' ], max_duplicates => 0,
		name => 'no event is lost, none delivered twice');
	is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');
}

$node->stop;
done_testing();
