package OutboxTest;

# What the TAP tests share: a server with outbox, a receiver with a journal, a
# producer with a log, and functions that wait for conditions instead of sleeping.

use strict;
use warnings;

use Carp;
use Exporter 'import';
use IO::Handle;
use IO::Socket::INET;
use IPC::Open3;
use JSON::PP;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use OutboxTest::Receiver;

our @EXPORT = qw(outbox_node ask wait_until wait_sql endpoint emit worker_pid
  new_worker pause start_again start_producer stop_producer check_history
  event_ids process_is_gone kill_everything wait_settled wait_status
  nothing_arrives emit_at_once refuses_unsigned documented_roles worker_grants
  shown_in_security private_memory cpu_ticks stat_of endpoint_shows all_relations shim write_clock park_as_dead log_rows_read
  watch_machine stood_still seconds_since sleeps_meanwhile settings_read replace_worker is_installed has_openssl $top);

our $top = $ENV{OUTBOX_TOP} || '.';
our $timeout = $PostgreSQL::Test::Utils::timeout_default;
my $end_of_answer = 'the end of the answer';

# A test that hangs ends here, and its servers with it.
$SIG{ALRM} = sub { die "no end after $ENV{OUTBOX_TEST_LIMIT} s\n" };
$ENV{OUTBOX_TEST_LIMIT} ||= 600;
alarm $ENV{OUTBOX_TEST_LIMIT};

# When PostgreSQL's modules give up, this test has failed, not the whole suite.
{
	no warnings 'redefine';
	*Test::Builder::BAIL_OUT = sub { die "gave up: $_[1]\n" };
}

# A session that is kept open may last as long as its test.
{
	no warnings 'redefine';
	my $background_psql = \&PostgreSQL::Test::Cluster::background_psql;
	*PostgreSQL::Test::Cluster::background_psql = sub {
		my ($self, $dbname, @rest) = @_;
		return $background_psql->($self, $dbname, timeout => $ENV{OUTBOX_TEST_LIMIT}, @rest);
	};
}

# The first server of a test is a copy of what test/bin/run had initdb make once.  A
# second one is not, because it needs a system identifier of its own.
our $copied_to;
my $first = defined $ENV{OUTBOX_TEST_TEMPLATE};
{
	no warnings 'redefine';
	my $init = \&PostgreSQL::Test::Cluster::init;
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;
	*PostgreSQL::Test::Cluster::init = sub {
		my ($self, %arg) = @_;
		my $as_template = "@{ $arg{extra} // [] }" eq '--locale=C --encoding=UTF8' && !$self->{_install_path};
		local $copied_to = $first && $as_template ? $self->data_dir : undef;
		$first = 0;
		return $init->(@_);
	};
	*PostgreSQL::Test::Utils::system_or_bail = sub {
		return $run->(@_) unless $copied_to && $_[0] eq 'initdb';
		return $run->('cp', '-R', $ENV{OUTBOX_TEST_TEMPLATE}, $copied_to);
	};
}

# With OUTBOX_TEST_WORKER_ROLE=1 every worker of the suite runs as a role that is
# no superuser, owns nothing, and has what doc/security.md grants it: wherever a test
# creates the extension, the role gets that in the same transaction.
my $worker_role = $ENV{OUTBOX_TEST_WORKER_ROLE};
my $worker_grants = worker_grants() =~ s/^SELECT /PERFORM /mgr;
{
	no warnings 'redefine';
	my $psql = \&PostgreSQL::Test::Cluster::psql;
	*PostgreSQL::Test::Cluster::psql = sub {
		my ($self, $dbname, $sql, @rest) = @_;
		$sql =~ s/\b(CREATE EXTENSION outbox)\b/DO \$do\$ BEGIN $1;\n$worker_grants END \$do\$/
		  if $self->{has_worker_role} && defined $sql && $sql !~ /\bDO \$do\$/;
		return $psql->($self, $dbname, $sql, @rest);
	};
}

my $asked;

# A running server with the extension in database postgres.
#   conf => "lines of postgresql.conf", streaming => 1, extension => 0,
#   build => an OutboxTest::Build to run instead of what is installed,
#   start => 0: made only
sub outbox_node
{
	my ($name, %arg) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		$arg{build} ? (install_path => $arg{build}{install_path}) : ());

	$asked //= $node;
	$node->init(
		extra => [ '--locale=C', '--encoding=UTF8' ],
		allows_streaming => $arg{streaming} // 0);
	$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'outbox'
outbox.allowed_networks = '127.0.0.1/32'
log_statement = none
log_min_messages = info
max_connections = 60
CONF
	$node->append_conf('postgresql.conf', $arg{conf}) if $arg{conf};
	$node->append_conf('postgresql.conf', "outbox.worker_role = 'outbox_worker'\n")
	  if $worker_role;
	$node->{has_worker_role} = $worker_role;
	return $node unless $arg{start} // 1;
	$node->start;
	$node->safe_psql('postgres', 'CREATE ROLE outbox_worker') if $worker_role;
	$node->safe_psql('postgres', 'CREATE EXTENSION outbox')
	  if $arg{extension} // 1;
	return $node;
}

# What the first server that outbox_node() made answers.
sub ask
{
	my ($sql, $dbname) = @_;
	return $asked->safe_psql($dbname // 'postgres', $sql);
}

# Between two tries, 30 to 200 ms: twice as long as the last one took, so that waiting does
# not take the machine from what is waited for, and from other tests.  Returns the seconds.
sub pause_after
{
	my ($begun) = @_;
	my $pause = min(max(2 * (time - $begun), 0.03), 0.2);

	usleep($pause * 1_000_000);
	return $pause;
}

# Waits until the condition holds and returns what it returned.  Fails the test
# when it never does.  The condition is checked once more after the end: on a busy
# machine one check may take longer than the wait.
sub wait_until(&;$$)
{
	my ($condition, $what, $seconds) = @_;
	my $end = time + ($seconds // $timeout);

	while (1)
	{
		my $begun = time;
		my $last = $begun > $end;
		my $result = $condition->();
		return $result if $result;
		last if $last;
		pause_after($begun);
	}
	fail('in time: ' . ($what // 'a condition'));
	return;
}

# Returns the statement that parks events (e) of endpoints (s) as if their receivers had refused them.
sub park_as_dead
{
	my ($condition) = @_;
	return 'INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, first_attempt_at, parked_at)'
	  . " SELECT s.endpoint_id, e.seq, e.id, outbox.order_key(e.tenant, e.key), 'dead', 'max_attempts', 5, now(), now()"
	  . " FROM outbox.endpoint_settings s, outbox.events e WHERE $condition ON CONFLICT DO NOTHING";
}

# Asks until an answer is good, and returns it and whether it was.  All tries are in one
# session, for as long as the server keeps it: to start psql takes more than to ask.
# Only the time between the tries counts, so a busy machine gets longer.
sub ask_until
{
	my ($node, $dbname, $sql, $good) = @_;
	my ($pid, $in, $out, $got);
	my $waited = 0;
	local $SIG{PIPE} = sub { };
	local %ENV = $node->_get_env;

	while (1)
	{
		my $begun = time;
		$pid //= open3($in, $out, undef, $node->installed_command('psql'), '-XAt', '-d', $node->connstr($dbname));
		print $in "$sql\n;\n\\echo $end_of_answer\n";
		$in->flush;
		$got = '';
		my $line;
		$got .= $line while defined($line = <$out>) && $line ne "$end_of_answer\n";
		chomp $got;
		my $done = defined $line && $good->($got);
		if ($done || !defined $line || $waited >= $timeout)
		{
			close $in;
			close $out;
			waitpid($pid, 0);
			undef $pid;
		}
		return ($got, $done) if $done || $waited >= $timeout;
		$waited += pause_after($begun);
	}
}

# Waits until a query yields what is expected ('t' unless given).
sub wait_sql
{
	my ($node, $sql, $expected, $dbname) = @_;
	$expected //= 't';
	my ($got, $done) = ask_until($node, $dbname // 'postgres', $sql, sub { $_[0] eq $expected });

	diag("in time: $sql\nis $expected\nand not $got") unless $done;
	return $done ? 1 : 0;
}

# Creates an endpoint, and tells the receiver its secret so that signatures are
# checked.  Further arguments are SQL: "max_in_flight => 1".
sub endpoint
{
	my ($node, $receiver, $name, $path, $more, $dbname) = @_;
	my $url = $receiver->url($path);

	$more = defined $more ? ", $more" : '';
	my $secret = $node->safe_psql($dbname // 'postgres', <<SQL);
SELECT outbox.create_endpoint('$name', '$url'$more) \\g /dev/null
SELECT outbox.endpoint_secret('$name')
SQL
	$receiver->control(path => (split /\?/, $path)[0], secret => $secret);
	return $secret;
}

# Emits one event in a transaction of its own; returns its id.
sub emit
{
	my ($node, $topic, $payload, $more, $dbname) = @_;

	$more = defined $more ? ", $more" : '';
	return $node->safe_psql($dbname // 'postgres',
		"SELECT outbox.emit('$topic', '$payload'::jsonb$more)");
}

# Rows of the log that were read by an index; outbox.deliveries reads them, too.  The head of the log must be reached.  What a
# worker has read by then is reported with what it reads for the next event, or before.  /ok/marker gets the topic "marker".
sub log_rows_read
{
	my ($node, $receiver) = @_;
	my $sql = "SELECT sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname ~ '^events_[0-9]\$'";
	my $before;

	foreach (1, 2)
	{
		$before = $node->safe_psql('postgres', $sql);
		$receiver->wait_delivered(1, id => emit($node, 'marker', '{}'), path => '/ok/marker');
	}
	wait_sql($node, "SELECT ($sql) > $before");
	return $node->safe_psql('postgres', $sql);
}

# Emits events 1 to n on a topic named like the endpoint, which is paused
# meanwhile, so that all of them are there at once.  The key is an expression in n.
sub emit_at_once
{
	my ($node, $endpoint, $n, $key, $more) = @_;

	$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('$endpoint')");
	$node->safe_psql('postgres',
		"SELECT count(outbox.emit('$endpoint', jsonb_build_object('n', n), key => $key"
		  . ($more // '') . ")) FROM generate_series(1, $n) n");
	$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('$endpoint')");
	return;
}

# How many settings each step of a worker has read, with log_min_messages = debug1.
sub settings_read
{
	my ($node) = @_;
	my $log = slurp_file($node->logfile);
	return $log =~ /worker read the settings of (\d+) endpoints/g;
}

# The worker of a database, once it runs, and is not the one that was before.
sub worker_pid
{
	my ($node, $dbname, $before) = @_;
	$dbname //= 'postgres';
	my ($pid, $done) = ask_until($node, 'postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%worker%' AND datname = '$dbname'",
		sub { $_[0] =~ /^(\d+)/ && $1 != ($before // 0) });

	return $pid =~ s/\n.*//sr if $done;
	fail('in time: ' . (defined $before ? 'another worker' : "a worker in $dbname"));
	return;
}

# A worker may send events that were emitted before it knows of the pause.
sub pause
{
	my ($node, $endpoint, $dbname) = @_;

	$dbname //= 'postgres';
	$node->safe_psql($dbname, "SELECT outbox.pause_endpoint('$endpoint')");
	return wait_sql($node,
		"SELECT t.state = 'paused' FROM outbox.endpoint_settings s, outbox.endpoint_stats(s.endpoint_id) t WHERE s.name = '$endpoint'",
		't', $dbname);
}

# Waits for a worker that is not the given one.
sub new_worker
{
	my ($node, $old, $dbname) = @_;
	return worker_pid($node, $dbname, $old);
}

# Ends the worker, and waits for the next one.  What the first one has counted is all there then.
sub replace_worker
{
	my ($node) = @_;
	my $pid = worker_pid($node);

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	return new_worker($node, $pid);
}

sub process_is_gone
{
	my ($pid) = @_;
	return !kill(0, $pid);
}

# SIGKILL for the postmaster and all its children at once, as when the machine
# stops.  (A stopped child would otherwise keep the shared memory.)
sub kill_everything
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};
	my @children = children($postmaster);

	kill 'KILL', $postmaster, @children;
	wait_until { !grep { !is_zombie($_) } $postmaster, @children }
	'everything is dead';

	# Its pid looks alive until init has reaped it.
	unlink $node->data_dir . '/postmaster.pid', $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	$node->{_pid} = undef;
	return;
}

sub children
{
	my ($parent) = @_;
	my @found;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open(my $fh, '<', $file) or next;
		my $line = <$fh> // next;
		push @found, $1 if $line =~ /^(\d+) \(.*\) \S (\d+) / && $2 == $parent;
	}
	return @found;
}

# True if the process is gone, or dead although init has not noticed yet.
sub is_zombie
{
	my ($pid) = @_;
	open(my $fh, '<', "/proc/$pid/stat") or return 1;
	my $line = <$fh> // return 1;
	return $line =~ /\) Z /;
}

# MB that a process has for itself: what it shares with others does not count.  Dies
# when there is no such process.
sub private_memory
{
	my ($pid) = @_;
	my ($kb) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m
	  or die "process $pid has no memory of its own: it is ending\n";
	return $kb / 1024;
}

sub stat_of
{
	my ($node, $endpoint, $column) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM outbox.stats WHERE endpoint = '$endpoint'");
}

# A test that waits until the condition holds for the endpoint's row of outbox.stats
sub endpoint_shows
{
	my ($node, $endpoint, $condition, $name) = @_;
	return ok(wait_sql($node, "SELECT $condition FROM outbox.stats WHERE endpoint = '$endpoint'"), $name)
	  || diag($node->safe_psql('postgres', "SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = '$endpoint'"));
}

# All that a superuser can read of outbox and of the catalogues, but not these
sub all_relations
{
	my ($node, @not) = @_;
	my $not = join '', map { " AND c.oid <> '$_'::regclass" } @not;

	return split /\n/, $node->safe_psql('postgres', <<"SQL");
SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname IN ('outbox', 'pg_catalog') AND relkind IN ('r', 'v', 'm', 'p', 'S')$not ORDER BY relkind, relname
SQL
}

# Hundredths of a second of CPU that a process has used, or a thread: "PID/task/TID"
sub cpu_ticks
{
	my ($pid) = @_;
	my ($stat) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/stat") =~ /\) (.*)/;
	my @field = split / /, $stat;
	return $field[11] + $field[12];
}

# True if PostgreSQL has this library.
sub is_installed
{
	my ($library) = @_;

	chomp(my $pkglibdir = qx{@{[ $ENV{PG_CONFIG} || 'pg_config' ]} --pkglibdir});
	return -e "$pkglibdir/$library.so";
}

# True if the server was built with OpenSSL.
sub has_openssl { return $_[0]->safe_psql('postgres', 'SHOW ssl_library') ne '' }

# Runs the code.  Meanwhile the process may use so many hundredths of a CPU, however long that takes.
sub sleeps_meanwhile
{
	my ($pid, $most, $name, $code) = @_;
	my ($before, $start) = (cpu_ticks($pid), time);

	$code->();
	my ($ticks, $seconds) = (cpu_ticks($pid) - $before, time - $start);
	note(sprintf '%d ticks in %.1f s', $ticks, $seconds);
	return cmp_ok($ticks, '<', $most * $seconds, $name);
}

# A machine that is shared may stand still for seconds.  From here on a process that only
# sleeps notes when it was woken late: stood_still() knows.
my $stalls;

sub watch_machine
{
	$stalls = PostgreSQL::Test::Utils::tempdir('machine') . '/stalls';
	PostgreSQL::Test::Utils::append_to_file($stalls, '');
	my $parent = $$;
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		# Whatever ends it, it does not end what its parent has started.
		$SIG{TERM} = $SIG{INT} = 'DEFAULT';
		eval {
			my $last = time;
			while (getppid() == $parent)
			{
				usleep(20_000);
				my $now = time;
				PostgreSQL::Test::Utils::append_to_file($stalls, "$last $now\n") if $now - $last > 0.2;
				$last = $now;
			}
		};
		POSIX::_exit(0);
	}
	push @OutboxTest::Receiver::started, $pid;
	return;
}

# The seconds between two times in which the machine itself stood still
sub stood_still
{
	my ($from, $to) = @_;
	my $sum = 0;

	usleep(100_000);    # what has just ended is noted, too
	foreach (split /\n/, PostgreSQL::Test::Utils::slurp_file($stalls))
	{
		my ($last, $now) = split / /;
		$sum += max(0, min($now, $to) - max($last, $from));
	}
	note(sprintf 'the machine stood still for %.1f of %.1f s', $sum, $to - $from) if $sum > 0;
	return $sum;
}

# The seconds since then, without those
sub seconds_since
{
	my ($from) = @_;
	my $now = time;
	return $now - $from - stood_still($from, $now);
}

# Compiles test/shims/NAME.c, and returns the library for LD_PRELOAD.
sub shim
{
	my ($name) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir($name) . "/$name.so";

	system('cc', '-shared', '-fPIC', '-o', $library, "$top/test/shims/$name.c", '-ldl') == 0
	  or die "cc failed\n";
	return $library;
}

# Sets the clock of servers with shims/clock.c by so many seconds.  The file is written in
# place, because they have it mapped.
sub write_clock
{
	my ($file, $offset) = @_;

	open(my $fh, '+>>', $file) or die "$file: $!\n";
	close $fh;
	open($fh, '+<:raw', $file) or die "$file: $!\n";
	print $fh pack('q', $offset);
	close $fh;
	return;
}

# Starts a server whose postmaster was killed.  Its children may take a moment
# to notice, and hold the shared memory until then.  As long as init has not
# reaped it, its pid looks alive to the next postmaster.
sub start_again
{
	my ($node) = @_;
	my $pid_file = $node->data_dir . '/postmaster.pid';

	if (-e $pid_file)
	{
		my ($pid) = split /\n/, PostgreSQL::Test::Utils::slurp_file($pid_file);
		wait_until { !kill(0, $pid) || is_zombie($pid) }
		'the old postmaster is dead';
		my $end = time + 10;
		usleep(20_000) while kill(0, $pid) && time < $end;
		unlink $pid_file if kill(0, $pid);    # no init reaps here
	}
	return wait_until
	{
		$node->{_pid} = undef;
		$node->start(fail_ok => 1)
	}
	'the server starts again';
}

# Starts test/tools/producer.py against a database.  Options: rate, sessions, keys,
# rollback, topic, set, dbname, seed, bulk, routes, mixed (''); seconds, where it is
# not for as long as the test may take.
sub start_producer
{
	my ($node, $log, %given) = @_;
	my %option = (seconds => 3600, %given);
	my $dbname = delete $option{dbname} // 'postgres';
	my @command = (
		'python3', "$top/test/tools/producer.py", '--socket', $node->host, '--port',
		$node->port, '--dbname', $dbname, '--log', $log,
		map { ("--$_", $option{$_} eq '' ? () : $option{$_}) } sort keys %option);
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		exec @command or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	return $pid;
}

# Asks a producer to end, if it has not by itself, and waits for it.  True: it
# ended well.
sub stop_producer
{
	my ($pid, $patiently) = @_;

	kill 'TERM', $pid unless $patiently;
	waitpid($pid, 0);
	@OutboxTest::Receiver::started =
	  grep { $_ != $pid } @OutboxTest::Receiver::started;
	return is($? >> 8, 0, 'the producer ended well');
}

# Waits until nothing that is in the log waits any more.
sub wait_settled
{
	my ($node, $dbname) = @_;
	return wait_sql(
		$node,
		"SELECT NOT EXISTS (SELECT FROM outbox.deliveries"
		  . " WHERE status NOT IN ('delivered', 'dead', 'cancelled', 'forgotten'))",
		't', $dbname);
}

# Waits until every delivery of an event has a status.
sub wait_status
{
	my ($node, $id, $status, $name) = @_;
	return ok(
		wait_sql(
			$node,
			"SELECT count(*) > 0 AND bool_and(status = '$status')"
			  . " FROM outbox.deliveries WHERE event_id = '$id'"),
		$name);
}

# For promises that something does *not* happen, there is nothing to wait for
# but time.  Of one event (id => ...) nothing may have come before either.
sub nothing_arrives
{
	my ($receiver, $name, $seconds, %match) = @_;
	my $before = () = $receiver->requests(%match);
	my $after;

	usleep(($seconds // 1) * 1_000_000);
	$after = () = $receiver->requests(%match);
	is($after - (defined $match{id} ? 0 : $before), 0, $name);
	return;
}

# A receiver of the documents answers 401, and nothing else, to headers that are
# missing, empty, or not what they should be.  A server may give no answer
# at all to what is not ASCII (ascii_only => 1).
sub refuses_unsigned
{
	my ($port, $name, %option) = @_;
	my $now = int(time);
	my %good = ('webhook-id' => 'a', 'webhook-timestamp' => $now, 'webhook-signature' => 'v1,AAAA');
	my @wrong;

	my @tries = ({}, \%good, { %good, 'webhook-signature' => "v1,\xc3\xbc v1 , \xff" },
		map { { %good, 'webhook-signature' => $_ } } 'v1', 'v1,', 'v1, v1,=', ',', 'v1a,AAAA');
	foreach my $header (sort keys %good)
	{
		my %without = %good;
		delete $without{$header};
		push @tries, \%without, { %good, $header => '' }, { %good, $header => "\xb2" };
	}
	push @tries, map { { %good, 'webhook-timestamp' => $_ } } 'now', '-1', '1e9', "$now.5", '9' x 30, '0x10', $now - 3600, $now + 3600;
	foreach my $try (@tries)
	{
		my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or die "$name: $!";
		print $socket "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n",
		  (map { "$_: $try->{$_}\r\n" } sort keys %$try), "\r\n{}";
		my $answer = <$socket> // 'nothing';
		next if $answer eq 'nothing' && $option{ascii_only} && join('', %$try) =~ /[^\x20-\x7e]/;
		push @wrong, join(' ', %$try) . " => $answer" unless $answer =~ m{^HTTP/1\.[01] 401 };
	}
	Test::More::is(join('', @wrong), '', "$name: what is not signed is refused, whatever it says");
	return;
}

# The blocks of SQL in doc/security.md, "Roles".
sub role_blocks
{
	my ($section) = PostgreSQL::Test::Utils::slurp_file("$top/doc/security.md") =~ /^## Roles$(.*?)^## /ms;
	return ($section // '') =~ /^```sql\n(.*?)^```$/msg;
}

# What makes the roles that emit, watch and operate.
sub documented_roles
{
	return grep { !/outbox_worker/ } role_blocks();
}

# What outbox_worker is granted, without its CREATE ROLE.
sub worker_grants
{
	my ($block) = grep { /outbox_worker/ } role_blocks();
	die "doc/security.md: no grants for outbox_worker\n" unless $block;
	return $block =~ s/^CREATE ROLE outbox_worker;\n//r;
}

# A count that doc/security.md shows, like "7,656 permission cells".  ACCEPT=1
# writes it there.
sub shown_in_security
{
	my ($n, $what) = @_;
	my $file = "$top/doc/security.md";
	my $text = PostgreSQL::Test::Utils::slurp_file($file);

	1 while $n =~ s/^(\d+)(\d{3})/$1,$2/;
	note("counted: $n $what");
	if ($ENV{ACCEPT} && $text =~ s/[\d,]+ (?=\Q$what\E)/$n /)
	{
		unlink $file;
		PostgreSQL::Test::Utils::append_to_file($file, $text);
	}
	return ok($text =~ /(?<![\d,])\Q$n $what\E/, "doc/security.md says: $n $what")
	  || diag("run \"make counts\", and look at what it changes");
}

# The ids that the database has.
sub event_ids
{
	my ($node, $dbname) = @_;
	return split /\n/,
	  $node->safe_psql($dbname // 'postgres', 'SELECT id FROM outbox.events');
}

# Waits until everything that is in the log is answered for, then lets the
# history checker judge.  Options: endpoints => [paths], max_duplicates,
# async_commit, exists_too => [ids that another server had, or this one before it
# forgot them], gone => [ids that are owed to no endpoint], max_dead (0:
# no delivery gives up), dbname, name.
sub check_history
{
	my ($node, $receiver, $log, %option) = @_;
	my $dbname = $option{dbname} // 'postgres';
	my $name = $option{name} // 'the history is clean';

	wait_settled($node, $dbname)
	  or fail("$name: everything is delivered in time");

	my $exists = "$log.exists";
	my $dead = "$log.dead";
	PostgreSQL::Test::Utils::append_to_file("$exists.new",
		join("\n", event_ids($node, $dbname), @{ $option{exists_too} // [] }) . "\n");
	rename "$exists.new", $exists or die "$exists: $!";
	my %path = map { split /\|/, $_, 2 } split /\n/,
	  $node->safe_psql($dbname, 'SELECT name, url FROM outbox.endpoints');
	my @lines;
	foreach my $row (split /\n/,
		$node->safe_psql($dbname,
			'SELECT endpoint, event_id FROM outbox.dead_letters'))
	{
		my ($endpoint, $id) = split /\|/, $row;
		my ($path) = $path{$endpoint} =~ m{^\w+://[^/]+(/[^?]*)};
		push @lines, "$path $id\n";
	}
	my $few = @lines <= ($option{max_dead} // 0);
	diag("$name: " . @lines . ' are dead') unless $few;
	foreach my $path (@{ $option{endpoints} // [] })
	{
		push @lines, map { "$path $_\n" } @{ $option{gone} // [] };
	}
	PostgreSQL::Test::Utils::append_to_file("$dead.new", join('', @lines));
	rename "$dead.new", $dead or die "$dead: $!";

	my @command = (
		'python3', "$top/test/tools/check_history.py", '--producer', $log,
		'--journal', $receiver->{journal}, '--exists', $exists, '--dead',
		$dead, '--max-duplicates', $option{max_duplicates} // 0,
		($option{async_commit} ? '--async-commit' : ()),
		map { ('--endpoint', $_) } @{ $option{endpoints} // [] });
	my $report = qx{@{[join ' ', map { "'$_'" } @command]} 2>&1};
	my $ok = $? == 0 && $few;
	ok($ok, $name);
	$ok ? note($report) : diag($report);
	return $ok;
}

1;
