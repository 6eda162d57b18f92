# pg_dump and pg_restore keep everything but the secrets, and the copy sends nothing until adopt().
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $other = outbox_node('other', extension => 0);
my $receiver = OutboxTest::Receiver->new('main');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';

endpoint($node, $receiver, 'all', '/ok/a', "topics => '{shop.*}'");
endpoint($node, $receiver, 'fails', '/status/500/b',
	"topics => '{shop.*}', backoff_base => '1 h'");
$receiver->wait_delivered(1, path => '/ok/a', id => emit($node, 'shop.one', '{"n": 1}', "key => 'k'"));
wait_sql($node, "SELECT count(*) = 1 FROM outbox.parked");
pause($node, 'all');
my $waiting = emit($node, 'shop.two', '{"n": 2}', "key => 'k'");
wait_sql($node, "SELECT count(*) = 2 FROM outbox.parked");
my $before = () = $receiver->requests;
ask("INSERT INTO outbox.refused_events (source, event, error) VALUES ('shop', '{}', 'why'); INSERT INTO outbox.missed_events (source, at_least) VALUES ('shop', 1)");
my $what = 'SELECT (SELECT count(*) FROM outbox.events), (SELECT count(*) FROM outbox.parked),'
  . ' (SELECT max(refused_id) FROM outbox.refused_events), (SELECT max(missed_id) FROM outbox.missed_events),'
  . ' (SELECT string_agg(name, chr(44) ORDER BY name) FROM outbox.endpoints),'
  . ' (SELECT last_value FROM outbox.events_seq), (SELECT last_value FROM outbox.refused_events_refused_id_seq)';

my @alone = ('-n', 'outbox', '--extension=outbox');
foreach my $where ([ $other, 'postgres', 'in another cluster' ], [ $node, 'copy', 'in the same cluster' ], [ $node, 'alone', 'outbox alone', @alone ])
{
	my ($server, $dbname, $name, @part) = @$where;
	$node->command_ok([ 'pg_dump', '-Fc', @part, '-f', $dump, $node->connstr('postgres') ], "pg_dump $name");
	$server->safe_psql('postgres', "CREATE DATABASE $dbname") if $dbname ne 'postgres';
	$server->command_ok(
		[ 'pg_restore', '--exit-on-error', '-d', $server->connstr($dbname), $dump ],
		"pg_restore $name");
	is($server->safe_psql($dbname, $what), $node->safe_psql('postgres', $what),
		"$name: all is there");
	is($server->safe_psql($dbname, 'SELECT count(*) FROM outbox.endpoint_secrets'),
		'0', "$name: but no secret");
	ok(wait_sql($server, "SELECT state = 'held' AND reason LIKE '%copy%' FROM outbox.status", 't', $dbname),
		"$name: held, and says why");
	$server->safe_psql($dbname, "SELECT outbox.resume_endpoint('all')");
	emit($server, 'shop.three', '{}', undef, $dbname);
}
# Data alone, into an extension that is there: its triggers get back the modes that pg_restore took.
my $modes = "SELECT string_agg(concat_ws(' ', tgrelid::regclass, tgname, tgenabled), ', ' ORDER BY tgrelid::regclass::text, tgname) FROM pg_trigger"
  . " WHERE tgrelid::regclass::text LIKE 'outbox.%' AND tgenabled <> 'O'";
ask('CREATE DATABASE data');
ask('CREATE EXTENSION outbox', 'data');
$node->command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', '-d', $node->connstr('data'), $dump ], 'data alone');
is(ask($what, 'data'), ask($what), 'data alone: all is there');
ask('SELECT outbox.adopt()', 'data');
is(ask($modes, 'data'), ask($modes), 'data alone: triggers fire for rows of a subscription as before');
nothing_arrives($receiver, 'the copies send nothing', 1.5);
$other->restart;
ok(wait_sql($other, "SELECT state = 'held' FROM outbox.status"), 'nor after a restart');

# The original goes on
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('all')");
$receiver->wait_delivered(1, path => '/ok/a', id => $waiting);
is(scalar(() = $receiver->requests), $before + 1, 'the original goes on, the copies stay silent');

$node->stop;
$other->stop;
done_testing();
