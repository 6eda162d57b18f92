# A session that waits for a table that is dropped meanwhile gets no internal error.
# Where the extension is made again in the same transaction, an event goes to the new table.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $dir = PostgreSQL::Test::Utils::tempdir();

# Makes what the statements need.
sub prepare
{
	ask(<<'SQL');
SELECT outbox.create_endpoint('theirs', 'https://a.example/', topics => '{none}', tenant => 'them');
SELECT outbox.emit('a.b', '{}', tenant => 'them');
SELECT outbox.set_event_type('a.b');
SQL
	return;
}

# Runs all at once while 'command' is open in another session, and commits that when
# each of them waits for a lock or has ended.  Returns what each has printed.
sub run_while
{
	my ($command, @statements) = @_;
	my $session = $node->background_psql('postgres');
	my @pids;

	$session->query_safe("BEGIN; $command");
	foreach my $i (0 .. $#statements)
	{
		PostgreSQL::Test::Utils::append_to_file("$dir/in.$i", "\\set VERBOSITY verbose\n$statements[$i];\n");
		my $pid = fork // die "fork: $!";
		if ($pid == 0)
		{
			open(STDOUT, '>', "$dir/out.$i");
			open(STDERR, '>&', \*STDOUT);
			exec 'psql', '-XAtq', '-d', $node->connstr('postgres') . " application_name=waits", '-f', "$dir/in.$i" or POSIX::_exit(127);
		}
		push @pids, $pid;
	}
	my %running = map { $_ => 1 } @pids;
	wait_until
	{
		foreach my $pid (keys %running)
		{
			delete $running{$pid} if waitpid($pid, POSIX::WNOHANG()) == $pid;
		}
		ask("SELECT count(DISTINCT a.pid) FROM pg_stat_activity a JOIN pg_locks l USING (pid)"
			  . " WHERE a.application_name = 'waits' AND NOT l.granted") == keys %running
	}
	'all wait';
	$session->query_safe('COMMIT');
	$session->quit;
	waitpid($_, 0) foreach keys %running;
	my @answers = map { slurp_file("$dir/out.$_") } 0 .. $#statements;
	unlink glob("$dir/in.* $dir/out.*");
	return @answers;
}

ask(<<'SQL');
CREATE TABLE orders (k text);
CREATE FUNCTION emit_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM outbox.emit('a.b', to_jsonb(NEW)); RETURN NULL; END $$;
CREATE TRIGGER emit_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION emit_order();
SQL
prepare();
my @statements = (
	q{SELECT outbox.emit('a.b', '{}')}, q{SELECT outbox.emit_bytes('a.b', 'x', 'text/plain')},
	q{SELECT outbox.emit('a.b', '{}', dedup_key => 'x')},
	q{SELECT outbox.emit('a.b', '{}', deliver_at => now() + interval '1 h')},
	q{SET outbox.require_event_types = on; SELECT outbox.emit('a.b', '{}')},
	q{INSERT INTO outbox.events (topic, payload) VALUES ('a.b', '{}')},
	q{INSERT INTO outbox.outgoing (topic, payload) VALUES ('a.b', '{}')},
	q{INSERT INTO orders VALUES ('k')}, 'SELECT outbox.current_epoch()', q{SELECT outbox.log_xid(1, '3')}, 'SELECT outbox.next_seq()');

my @answers = run_while('DROP EXTENSION outbox', @statements);
foreach my $i (0 .. $#statements)
{
	like($answers[$i], qr/ERROR:  42P01: relation "outbox\.\w+" does not exist/, "$statements[$i]: an error that says so");
	like($answers[$i], qr/^HINT:  The extension is not installed/m, 'and a hint') if $statements[$i] !~ /dedup_key|INSERT INTO outbox/;
}
ask('CREATE EXTENSION outbox');
prepare();

# Made again: the table of the new extension
my @emits = @statements[ 0, 1, 3, 5 ];
@answers = run_while('DROP EXTENSION outbox; CREATE EXTENSION outbox', @emits);
is(join('', grep { /ERROR/ } @answers), '', 'dropped and made again: no error');
is(ask('SELECT count(*) FROM outbox.events'), 3, 'the events are there');
is(ask('SELECT count(*) FROM outbox.scheduled'), 1, 'and the one that is scheduled');

$node->stop;
done_testing();
