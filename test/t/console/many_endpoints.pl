# A page of the console looks at no more endpoints where there are three times as many.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use HTTP::Tiny;
use JSON::PP;
use OutboxTest;
use OutboxTest::Console;
use OutboxTest::Explained;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('main', conf => explained_conf());
my $receiver = OutboxTest::Receiver->new('main');
my $http = HTTP::Tiny->new(timeout => 60);

# How often an endpoint was looked at in a plan.
sub looks_in
{
	my ($plan) = @_;
	my $sum = ($plan->{'Function Name'} // '') =~ /^(?:endpoint_stats|newest_position)\z/ ? $plan->{'Actual Loops'} : 0;

	$sum += looks_in($_) foreach @{ $plan->{Plans} // [] };
	return $sum;
}

# What a page did, by each of its plans: how often it looked at an endpoint, where nothing else is said.
sub looks
{
	my ($console, $path, $of) = @_;
	my ($offset, $answer);
	my ($n, $sum) = (0, 0);

	# What is being counted beside the page comes with its next reading.
	wait_until(
		sub {
			$offset = -s $node->logfile;
			$answer = $http->get($console->url . $path);
			return $answer->{content} !~ /Not known yet/;
		},
		$path);
	unlike($answer->{content}, qr/Not known/, "$path: all of it is known");
	my $log = slurp_file($node->logfile, $offset);
	while ($log =~ /^\S+ \S+ \S+ \[\d+\] client backend: LOG:  duration: [\d.]+ ms  plan:\n((?:\t[^\n]*\n)+)/mg)
	{
		$n++;
		$sum += ($of // \&looks_in)->(decode_json($1)->{Plan});
	}
	cmp_ok($n, '>', 0, "$path: its statements are known");
	return $sum;
}

sub create
{
	my ($first, $last) = @_;
	my $url = $receiver->url('/ok');

	$node->safe_psql('postgres', <<"SQL");
SELECT count(outbox.create_endpoint('endpoint-' || lpad(n::text, 4, '0'), '$url/' || n, topics => '{order.*}', tenant => 'tenant-' || n / 4))
FROM generate_series($first, $last) n;
ANALYZE outbox.endpoint_settings;
SQL
	return;
}

OutboxTest::Console::roles($node);
create(1, 600);
my $event = emit($node, 'order.created', '{}', "key => 'k', tenant => 'tenant-20'");
$receiver->wait_delivered(4, id => $event);
my $console = OutboxTest::Console->new($node);
my @pages = ('/', '/endpoints', '/endpoints?q=endpoint-0', '/endpoint/endpoint-0081', "/event/$event", "/delivery/endpoint-0081/$event",
	'/search?q=endpoint', '/search?q=tenant', '/search?q=nothing', '/tenant?name=tenant-20', '/dead', '/dead?endpoint=endpoint-0081');

$http->get($console->url . '/');
log_plans($node, 1);
ok(wait_until(sub { $node->safe_psql('postgres', "SHOW auto_explain.log_min_duration") eq '0' }, 'plans in the log'), 'plans are in the log');
my %few = map { $_ => looks($console, $_) } @pages;
cmp_ok($few{'/endpoints'}, '>', 50, 'looks are counted');
log_plans($node, 0);
create(601, 1800);
log_plans($node, 1);
my %many = map { $_ => looks($console, $_) } @pages;
is(join(', ', map { "$_: $few{$_}, then $many{$_}" } grep { $many{$_} > $few{$_} } @pages), '', 'no page looks at more endpoints where there are more');

# Many dead letters, whose events are in the log, and many later events
$node->safe_psql('postgres', <<'SQL');
SELECT count(outbox.emit('many.died', '{}', tenant => CASE WHEN n % 1000 = 0 THEN 'tenant-20' END)) FROM generate_series(1, 30000) n;
INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)
SELECT 1 + seq % 600, seq, id, 'dead', 'max_attempts', 1, now() FROM outbox.events WHERE topic = 'many.died';
SQL
log_plans($node, 0);
$node->safe_psql('postgres', "SELECT outbox.create_endpoint('archive', '" . $receiver->url('/ok') . "', topics => '{later.*}'); SELECT outbox.pause_endpoint('archive')");
$node->safe_psql('postgres', "SELECT count(outbox.emit('later.one', '{}', tenant => CASE WHEN n % 5000 = 0 THEN 'tenant-20' END)) FROM generate_series(1, 250000) n");
log_plans($node, 1);

# How many rows the views read for what is asked of them most, after EXPLAIN
sub rows_of
{
	my ($sql) = @_;
	return OutboxTest::Explained::read_by(decode_json($node->safe_psql('postgres', "SET jit = off; EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) $sql"))->[0]{Plan});
}

foreach my $with ('without', 'with')
{
	$node->safe_psql('postgres', 'ANALYZE') if $with eq 'with';
	foreach my $page ($with eq 'with' ? ('/dead', '/dead?reason=max_attempts', '/dead?reason=expired', '/dead?endpoint=endpoint-0081', '/dead?tenant=tenant-20') : ())
	{
		my $read = looks($console, $page, \&OutboxTest::Explained::read_by);
		cmp_ok($read, '<', 20000, "$page reads $read rows of 30,000 dead letters and 280,000 events");
	}
	my ($died, $later) = map { $node->safe_psql('postgres', "SELECT id FROM outbox.events WHERE topic = '$_' ORDER BY seq LIMIT 1") } qw(many.died later.one);
	foreach my $sql (
		'SELECT * FROM outbox.dead_letters ORDER BY seq DESC LIMIT 50',
		'SELECT event_id, seq, topic, key, tenant, endpoint FROM outbox.dead_letters ORDER BY seq DESC LIMIT 50',
		"SELECT * FROM outbox.dead_letters WHERE endpoint = 'endpoint-0081' ORDER BY seq DESC LIMIT 50",
		"SELECT * FROM outbox.dead_letters WHERE event_id = '$died'",
		$with eq 'with' ? "SELECT * FROM outbox.dead_letters WHERE tenant = 'tenant-20'" : (),
		'SELECT * FROM outbox.deliveries ORDER BY seq DESC LIMIT 50',
		"SELECT * FROM outbox.deliveries WHERE event_id = '$later'",
		"SELECT * FROM outbox.deliveries WHERE tenant = 'tenant-20' ORDER BY seq DESC LIMIT 50",
		'SELECT * FROM outbox.attempts ORDER BY seq DESC LIMIT 50',
		'SELECT * FROM outbox.all_events ORDER BY seq DESC LIMIT 50',
		"SELECT * FROM outbox.all_events WHERE tenant = 'tenant-20' ORDER BY seq DESC LIMIT 50")
	{
		my $read = rows_of($sql);
		cmp_ok($read, '<', 20000, "$with statistics $read rows: $sql");
	}
}
log_plans($node, 0);

# Questions about all endpoints, while they take long
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK outbox.figures');
my $page;

# The first page of a console that was just started.  One that is itself held up for a second has the answer already.
sub first_page
{
	my ($path, $pattern) = @_;
	return wait_until(
		sub {
			$console->stop;
			$console->start;
			return ($page = $http->get($console->url . $path)->{content}) =~ $pattern;
		},
		$path);
}

ok(first_page('/tenants', qr/data-live="1".*Not known yet.*is being counted/s), 'a page does not wait for a question about all endpoints, and is read again soon')
  or diag($page);
unlike($page, qr/No endpoint belongs/, 'and does not say that there is none');
ok(first_page('/', qr/Events are delivered|All is well.*Not known yet/s), 'the overview does not wait for its charts') or diag($page =~ s/<[^>]*>//gr =~ s/\n\s*/\n/gr);
ok(wait_until(sub { $http->get($console->url . '/tenants')->{content} =~ /Not known\..*locked/s }, 'the reason'), 'then it says why it is not known');
$locker->query_safe('COMMIT');
$locker->quit;
ok(wait_until(sub { ($page = $http->get($console->url . '/tenants')->{content}) =~ /The first 100 of 451/ }, 'the tenants'), 'and then what it is')
  or diag($page =~ s/<[^>]*>//gr =~ s/\n\s*/\n/gr);
ok(wait_until(sub { ($page = $http->get($console->url . '/endpoints?state=active')->{content}) =~ /endpoint-0001.*endpoint-0050/s }, 'the active ones'), 'endpoints in a state are found');
ok(wait_until(sub { $http->get($console->url . '/system')->{content} =~ /1,801 endpoints/ }, 'the sinks'), 'and kinds of receivers are counted');

# What a page takes of a processor, in the console and in the database, in milliseconds.  The least of rounds through all pages, beside the overview's: other
# work makes it more.
sub processor
{
	my ($pid) = @_;
	return -e "/proc/$pid/schedstat" ? (split ' ', slurp_file("/proc/$pid/schedstat"))[0] / 1e6 : 0;
}

my $servers = "SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox-console'";
my @measured = (@pages, '/tenants', '/system', '/catalogue', '/dead?reason=expired', '/do/retry?endpoint=endpoint-0081');
my %least;
foreach my $path ((@measured) x 7)
{
	my @pids = ($console->{pid}, split /\n/, $node->safe_psql('postgres', $servers));
	my @before = map { processor($_) } @pids;
	my $size = length $http->get($console->url . $path)->{content};
	my ($own, @backends) = map { processor($pids[$_]) - $before[$_] } 0 .. $#pids;
	my ($backend) = sort { $b <=> $a } 0, @backends;
	$least{$path} = [ $own, $backend, $size / 1000 ] if !$least{$path} || $own + $backend < $least{$path}[0] + $least{$path}[1];
}
note(sprintf '%-40s %12s %12s %12s', 'ms of a processor', 'console', 'PostgreSQL', 'kB');
note(sprintf '%-40s %12.1f %12.1f %12.1f', substr($_, 0, 40), @{ $least{$_} }) foreach @measured;
my $most = 4 * ($least{'/'}[0] + $least{'/'}[1]);
is(join(', ', grep { $least{$_}[0] + $least{$_}[1] > $most } sort keys %least), '', 'no page takes four times the processor that the overview takes');
is(join(', ', grep { $least{$_}[2] > 100 } sort keys %least), '', 'and none has 100 kB');
unlike($console->log, qr/Traceback|fault/, 'no fault of the console is in its log');
$console->stop;
done_testing();
