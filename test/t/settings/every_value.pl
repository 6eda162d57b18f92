# Whatever value a setting of a database or a role has, the worker delivers all the same.
# Every setting that such a level can carry is set to something odd.  Retries and
# scheduled events are tried, too.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::OddSettings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The session of the test sees none of it: its role has the values of now, for this
# database, which go before those of the database and of all roles.
my $boot = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', 'CREATE ROLE tester SUPERUSER LOGIN');

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', 'tester' ]);
}

make_odd_settings($node);
$node->safe_psql('postgres', q(SELECT set_one('ROLE tester IN DATABASE postgres', name, calm) FROM odd));
my $settings = ask('SELECT count(*) FROM odd');
cmp_ok($settings, '>', 150, "$settings settings");

endpoint($node, $receiver, 'all', '/flaky/a?first=1',
	"topics => '{odd.*}', filter => '\$.at > 1', backoff_base => '20 ms', backoff_max => '50 ms'");
endpoint($node, $receiver, 'dead', '/status/500/dead', "topics => '{dead.*}', max_attempts => 1");
$receiver->wait_delivered(1, id => emit($node, 'odd.calm', '{"at": 1.5}'));

# A worker starts with what is set now, and does its work.
sub goes_on
{
	my ($name) = @_;
	my $old = ask("SELECT pid FROM outbox.workers WHERE pid IS NOT NULL AND datname = 'postgres'");
	my $failures = ask('SELECT coalesce(sum(restarts), 0) FROM outbox.workers');
	ask("SELECT pg_terminate_backend($old)") if $old;
	my ($id, $later, $dead) = split /\|/, ask(
		"SELECT outbox.emit('odd.now', '{\"at\": 1.5}', key => 'k'),"
		  . " outbox.emit('odd.later', '{\"at\": 1.5}', deliver_at => clock_timestamp() + interval '100 ms'),"
		  . " outbox.emit('dead.one', '{}')");
	my $done = wait_until
	{
		ask("SELECT (SELECT count(*) = 2 AND bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id IN ('$id', '$later'))"
			  . " AND (SELECT count(*) = 1 AND bool_and(reason = 'max_attempts') FROM outbox.dead_letters WHERE event_id = '$dead')"
			  . " AND (SELECT count(*) >= 4 FROM outbox.attempts WHERE event_id IN ('$id', '$later'))") eq 't';
	}
	$name;
	ok($done, "$name: delivered, tried again, moved when it was due, dead");
	my $other = ask("SELECT pid FROM outbox.workers WHERE pid IS NOT NULL AND datname = 'postgres'");
	isnt($other, $old, "$name: by a worker that started with them");
	is(ask('SELECT coalesce(sum(restarts), 0) FROM outbox.workers'), $failures, "$name: which had no error");
	return;
}

my @refused;
foreach my $whose ('DATABASE postgres', "ROLE \"$boot\"", 'ROLE ALL')
{
	foreach my $last ('false', 'true')
	{
		my $refused = ask("SELECT set_all('$whose', $last)");
		push @refused, split /\n/, $refused;
		goes_on("$whose, " . ($last eq 'true' ? 'the last' : 'the first') . ' values');
		ask("ALTER $whose RESET ALL");
	}
}
my %refused = map { /^(\S+) =/; ($1 => 1) } @refused;
note("refused by PostgreSQL: $_") foreach sort @refused;
cmp_ok(scalar(keys %refused), '<', 10, 'nearly all of them could be set');

# Those that are known to have stopped a worker, each on its own
foreach my $name (qw(role session_authorization restrict_nonsystem_relation_kind exit_on_error temp_file_limit))
{
	next unless ask("SELECT count(*) FROM odd WHERE name = '$name'");
	my $refused = ask("SELECT set_one('DATABASE postgres', name, values[1]) FROM odd WHERE name = '$name'");
	goes_on($name) unless $refused;
	ask('ALTER DATABASE postgres RESET ALL');
}

$node->stop;
done_testing();
