# Where many deliveries of an endpoint have to wait, their rows are written in parts.
# So the other endpoints do not wait for it, and a crash between two parts loses nothing.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main', conf => "restart_after_crash = on\n");
my $receiver = OutboxTest::Receiver->new('main');
my $events = 1000;

# Each transaction that wrote rows has a number of its own.
sub most_of_one_transaction
{
	return ask('SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.parked GROUP BY xmin::text) x');
}

# A hundred fail in one request and are tried again, and their followers wait in the table.  Returns the statement that counts the rows.
sub all_wait
{
	my ($name) = @_;

	$receiver->control(path => "/ok/$name", behave => '/status/500');
	endpoint($node, $receiver, $name, "/ok/$name", "topics => '{$name.*}', backoff_base => '10 min', batch_size => 100, max_in_flight => 1");
	ask("SELECT count(outbox.emit('$name.n', jsonb_build_object('n', n), key => 'k' || n % 10)) FROM generate_series(1, $events) n");
	return "SELECT count(*) FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = '$name'";
}

ok(wait_sql($node, all_wait('many'), $events), 'all have a row');
cmp_ok(most_of_one_transaction(), '<=', 300, 'one transaction wrote a part of them');

# The server is killed when one transaction has written some of them.  The next one of this worker does not end.
my $worker = worker_pid($node);
ask(<<"SQL");
CREATE SEQUENCE public.writer;
CREATE FUNCTION public.take_long() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS \$\$
BEGIN
	IF pg_backend_pid() = $worker AND (SELECT is_called AND last_value::text <> pg_current_xact_id()::text FROM public.writer) THEN
		PERFORM pg_sleep(600);
	END IF;
	PERFORM setval('public.writer', pg_current_xact_id()::text::int8);
	RETURN NULL;
END \$\$;
CREATE TRIGGER take_long AFTER INSERT ON outbox.parked FOR EACH ROW EXECUTE FUNCTION public.take_long();
SQL
my $rows = all_wait('keys');
ok(wait_sql($node, "SELECT n BETWEEN 1 AND $events - 1 FROM ($rows) r(n)"), 'some of the rows are written');
kill 'KILL', $worker;
ok(wait_sql($node, "SELECT state = 'running' AND pid <> $worker FROM outbox.workers"), 'the worker was killed, and there is another one');
ok(wait_sql($node, $rows, $events), 'all have a row, also those that had none');
ask('DROP TRIGGER take_long ON outbox.parked');
$receiver->control(path => '/ok/keys', behave => '/ok');
ask("SELECT outbox.retry('keys')");
ok(wait_sql($node, "SELECT delivered = $events AND pending + retrying + blocked + dead = 0 FROM outbox.stats WHERE endpoint = 'keys'"), 'all are delivered');
my (%last, @wrong);
foreach my $n (map { $_->{n} } $receiver->events(path => '/ok/keys', delivered => 1))
{
	push @wrong, $n if $n <= ($last{ $n % 10 } // 0);
	$last{ $n % 10 } = $n;
}
is("@wrong", '', 'in the order of each key');
is(join(' ', sort { $a <=> $b } values %last), join(' ', $events - 9 .. $events), 'and none is missing at the end');

# What could not be written is written in parts as well, before its endpoint is loaded again for other settings
$receiver->control(path => '/ok/again', behave => '/hold');
endpoint($node, $receiver, 'again', '/ok/again', "topics => '{again}', backoff_base => '1 h', backoff_max => '1 h', max_in_flight => 400, timeout => '1 min'");
ask("SELECT count(outbox.emit('again', '{}')) FROM generate_series(1, 400)");
ok(wait_sql($node, "SELECT processing = 400 FROM outbox.stats WHERE endpoint = 'again'"), 'all are on their way');
my $again = ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'again'");
ask(<<"SQL");
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN RAISE EXCEPTION 'refused'; END \$\$;
CREATE TRIGGER refuse BEFORE INSERT ON outbox.parked FOR EACH ROW WHEN (NEW.endpoint_id = $again) EXECUTE FUNCTION public.refuse();
SQL
$receiver->control(path => '/ok/again', behave => '/status/500');
endpoint_shows($node, 'again', 'failed_attempts = 400', 'all have failed');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'settle' AND endpoint = 'again'"), 'and their rows cannot be written');
ask("SELECT outbox.alter_endpoint('again', ordering => 'none')");
endpoint($node, $receiver, 'later', '/ok/later', "topics => '{later}'");
$receiver->wait_delivered(1, id => emit($node, 'later', '{}'));
ask('DROP TRIGGER refuse ON outbox.parked');
$node->reload;
ok(wait_sql($node, "SELECT count(*) = 400 FROM outbox.parked WHERE endpoint_id = $again"), 'all have a row');
cmp_ok(scalar(() = $receiver->requests(path => '/ok/again')), '<=', 401, 'and each was sent once, but for one probe');

# Until many parts are written, an endpoint whose topics were changed reads nothing, so its place in the log is true
my $failing = $receiver->url('/ok/parts');
$receiver->control(path => '/ok/parts', behave => '/hold');
endpoint($node, $receiver, 'altered', '/ok/altered', "topics => '{before.*}'");
ask("SELECT count(outbox.create_endpoint('part' || n, '$failing', topics => '{parts}', backoff_base => '10 min', batch_size => 300)) FROM generate_series(1, 8) n");
ask("SELECT count(outbox.emit('parts', '{}')) FROM generate_series(1, 300)");
ok(wait_sql($node, "SELECT sum(processing) = 8 * 300 FROM outbox.stats WHERE endpoint LIKE 'part%'"), 'all are on their way');
ask('CREATE FUNCTION public.rest() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;'
	  . ' CREATE TRIGGER rest AFTER INSERT ON outbox.parked FOR EACH STATEMENT EXECUTE FUNCTION public.rest()');
$receiver->control(path => '/ok/parts', behave => '/status/500');
my $id = ask("SELECT outbox.alter_endpoint('altered', topics => '{after.*}') \\g /dev/null\nSELECT outbox.emit('after.n', '{}')");
$receiver->wait_delivered(1, id => $id);
wait_status($node, $id, 'delivered', 'an event after the change is a delivery');
ok(wait_sql($node, "SELECT sum(retrying) = 8 * 300 FROM outbox.stats WHERE endpoint LIKE 'part%'"), 'all of the others have a row');
$node->stop;
done_testing();
