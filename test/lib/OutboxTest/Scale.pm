package OutboxTest::Scale;

# Many of something: keys, waiting events, scheduled events, endpoints.  A few
# of them in test/t/limits/large_numbers.pl, as many as the promises say in
# test/torture/scale.pl.

use strict;
use warnings;

use Exporter 'import';
use JSON::PP;
use List::Util qw(max min sum0);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(many_keys back_again many_scheduled many_endpoints exact_rate bad_neighbours);

my ($node, $receiver);

sub use_node
{
	($node, $receiver) = @_;
	watch_machine();
	return;
}

sub drop
{
	my ($name) = @_;
	return ask("SELECT outbox.drop_endpoint('$name', discard => true)");
}

# n events of topic, numbered from 1.  The key is an expression of n
sub emit_many
{
	my ($topic, $n, $key, $more) = @_;
	$more = defined $more ? ", $more" : '';
	return ask("SELECT count(outbox.emit('$topic', jsonb_build_object('n', n), key => $key$more))"
		  . " FROM generate_series(1, $n) n");
}

sub cpu_seconds
{
	my $pid = worker_pid($node);
	my ($stat) = slurp_file("/proc/$pid/stat") =~ /\) (.*)/;
	my @field = split / /, $stat;
	return ($field[11] + $field[12]) / 100;
}

sub number
{
	my ($request) = @_;
	my ($n) = $request->{body} =~ /"n": ?(\d+)/;
	return $n;
}

# Keys whose events came in another order than they were emitted in.  What came
# twice counts where it came first.
sub disordered
{
	my (@requests) = @_;
	my (%seen, %last, %bad);

	foreach my $request (@requests)
	{
		next if !defined $request->{key} || $seen{ $request->{id} }++;
		my $n = number($request);
		$bad{ $request->{key} } = 1 if ($last{ $request->{key} } // 0) > $n;
		$last{ $request->{key} } = $n;
	}
	return sort keys %bad;
}

# Keys: one hot, one with a dead head, some with a parked head, and many others.
sub many_keys
{
	my ($others, $hot) = @_;
	my $path = '/ok/keys';
	my $parked = 8;

	endpoint($node, $receiver, 'keys', $path, "topics => '{keys.*}', max_attempts => 1,"
		  . " on_exhausted => 'block', backoff_base => '1 h', backoff_max => '1 h'");
	$receiver->control(path => $path, behave => '/status/500');
	my $dead = emit($node, 'keys.head', '{"n": 1}', "key => 'dead'");
	wait_status($node, $dead, 'dead', 'a dead head');
	ask("SELECT outbox.alter_endpoint('keys', reset => '{max_attempts}')");
	ask("SELECT outbox.emit('keys.head', '{\"n\": 1}', key => 'parked' || n) FROM generate_series(1, $parked) n");
	ok(wait_sql($node, "SELECT retrying = $parked FROM outbox.stats WHERE endpoint = 'keys'"),
		"$parked parked heads");
	$receiver->control(path => $path, behave => '/ok');
	my $before = private_memory(worker_pid($node));
	ask("SELECT outbox.pause_endpoint('keys')");
	emit_many('keys.hot', $hot, "'hot'");
	emit_many('keys.behind', 20, "'dead'");
	emit_many('keys.behind', 20 * $parked, "'parked' || (n % $parked + 1)");
	emit_many('keys.other', $others, "'k' || n");
	ask("SELECT outbox.resume_endpoint('keys')");

	# A restart in the middle
	ok(wait_sql($node, "SELECT delivered > $hot / 10 FROM outbox.stats WHERE endpoint = 'keys'"), 'it flows');
	my $most = private_memory(worker_pid($node));
	my $pid = worker_pid($node);
	$node->restart;
	new_worker($node, $pid);
	my $end = time + $PostgreSQL::Test::Utils::timeout_default * 10;
	my $behind = 20 * ($parked + 1);    # the hot key's are blocked, too, until it is their turn
	my $left = 't';
	while ($left eq 't' && time < $end)
	{
		$most = max($most, private_memory(worker_pid($node)));
		$left = ask("SELECT pending + processing > 0 OR blocked > $behind OR NOT pending_exact"
			  . " FROM outbox.stats WHERE endpoint = 'keys'");
		usleep(200_000) if $left eq 't';
	}
	is($left, 'f', 'all is sent that may be');
	my %count;
	my %seen;
	my @requests = grep { !$seen{ $_->{id} }++ } $receiver->delivered(path => $path);
	$count{ $_->{key} =~ s/\d+$//r }++ foreach @requests;
	is($count{hot}, $hot, "the hot key: $hot");
	is($count{k}, $others, "the others: $others");
	is($count{dead}, undef, 'nothing behind the dead head');
	is($count{parked}, undef, 'nor behind the parked ones');

	# The others do not wait until the hot key is through, although it was first.
	my ($n_hot, $n_other) = (0, 0);
	foreach my $request (@requests)
	{
		last if $n_other == 100;
		$request->{key} eq 'hot' ? $n_hot++ : $n_other++;
	}
	cmp_ok($n_hot, '<', $hot / 2, "before the 100th of the others $n_hot of the hot key: it is no dam");
	is(ask("SELECT count(*) FROM outbox.parked WHERE key LIKE 'k%'"), '0', 'the others leave no row');

	is(ask("SELECT outbox.retry('keys')"), $parked + 1, 'retry of all heads');
	ok(wait_settled($node), 'everything is settled');
	%seen = ();
	@requests = grep { !$seen{ $_->{id} }++ } $receiver->delivered(path => $path);
	is(scalar @requests, $hot + $others + 21 * ($parked + 1), 'everything is delivered');
	is(join(' ', disordered($receiver->delivered(path => $path))), '', 'each key in order');
	note(sprintf '%d keys, %d events of the hot one: RssAnon of the worker %.0f MB before, %.0f MB at most',
		$others, $hot, $before, $most);
	cmp_ok($most - $before, '<', 128, 'memory is bounded') unless $ENV{OUTBOX_MEMORY_CHECKER};
	drop('keys');
	return;
}

# An endpoint that was away: what it leaves in outbox.parked, and how it is
# sent to when it is back.
sub back_again
{
	my ($backlog, $seconds) = @_;
	my $path = '/slow/back?ms=40';

	endpoint($node, $receiver, 'back', $path,
		"topics => '{back.*}', max_in_flight => 32, backoff_base => '50 ms', backoff_max => '100 ms'");
	$receiver->control(down => 1);
	emit_many('back.n', $backlog, "'k' || n % 200");
	ok( wait_sql($node, "SELECT state = 'backing_off' AND pending_exact FROM outbox.stats WHERE endpoint = 'back'"),
		'backing off');
	ok(wait_sql($node, "SELECT failed_attempts > 80 FROM outbox.stats WHERE endpoint = 'back'"), 'probes go out');

	my ($rows, $failed) = split /\|/,
	  ask("SELECT (SELECT count(*) FROM outbox.parked), failed_attempts FROM outbox.stats WHERE endpoint = 'back'");
	cmp_ok($rows, '<=', 32 + ($failed - 32) / 2 + 4, 'only what was in flight, and every second probe, has a row');
	is( ask("SELECT pending + processing + retrying + blocked FROM outbox.stats WHERE endpoint = 'back'"),
		$backlog, 'the rest waits in the log');
	$receiver->control(down => 0);
	my @requests;
	wait_until
	{
		@requests = grep { $_->{behaviour} eq 'slow' } $receiver->requests(path => '/slow/back');
		@requests && $requests[-1]{mono} - $requests[0]{mono} > $seconds * 1e9;
	}
	'requests for a while', $seconds + $OutboxTest::timeout;

	# Slots: 1 when the probe is answered, doubled once a second at most.
	my ($first) = grep { defined $_->{answered} } @requests;
	my (%per_second, %open, @burst);
	foreach my $request (@requests)
	{
		my $at = ($request->{mono} - $first->{answered}) / 1e9;
		my $second = $at < 0 ? 0 : int $at;
		$per_second{$second}++;
		$open{$second} = max($open{$second} // 0, $request->{open});
		push @burst, sprintf('%.2f s: %d', $at, $request->{open})
		  if $request->{open} > min(32, 2**$second);
	}
	note("$backlog waiting, back again: requests a second, and how many at a time");
	note(sprintf '%3d s %5d %3d %s', $_, $per_second{$_} // 0, $open{$_} // 0, '#' x (($per_second{$_} // 0) / 16))
	  foreach 0 .. $seconds - 1;
	is(join(', ', @burst), '', 'no burst: never more at a time than slots that doubled once a second');
	cmp_ok(max(values %open), '>', 1, 'but more and more');
	is(join(' ', disordered(@requests)), '', 'in order');
	drop('back');
	return;
}

# Events that are not due cost nothing, and enter the log when they are.
sub many_scheduled
{
	my ($n) = @_;
	my $soon = 500;
	my $due = sub {
		my ($id) = ask("SELECT outbox.emit('due.now', '1', deliver_at => clock_timestamp() + interval '50 ms')");
		wait_sql($node, "SELECT count(*) = 1 FROM outbox.events WHERE id = '$id'")
		  or fail('a scheduled event enters the log');
	};
	my $scans = sub {
		# The worker publishes its figures when it has time.  Those of the event that
		# has just left the table come after all earlier ones.
		my $deleted = ask("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'scheduled'");
		$due->();
		wait_sql($node, "SELECT n_tup_del > $deleted FROM pg_stat_user_tables WHERE relname = 'scheduled'")
		  or fail('the figures are published');
		return split /\|/,
		  ask("SELECT seq_scan, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'scheduled'");
	};

	emit_many('later.n', $n, 'NULL', "deliver_at => now() + interval '1 day'");
	ask('ANALYZE outbox.scheduled');
	my ($seq, $fetched) = $scans->();
	my $cpu = cpu_seconds();
	my $begun = time;
	foreach (1 .. 20)
	{
		emit($node, 'live.one', '1');
		usleep(50_000);
	}
	$cpu = cpu_seconds() - $cpu;
	my $seconds = time - $begun;
	my ($seq_after, $fetched_after) = $scans->();
	note(sprintf '%d scheduled: worker at work %.1f %% of %.1f s with 20 emits; %d sequential scans, %d rows fetched',
		$n, 100 * $cpu / $seconds, $seconds, $seq_after - $seq, $fetched_after - $fetched);
	is($seq_after - $seq, 0, "$n scheduled events: no scan of them");
	cmp_ok($fetched_after - $fetched, '<', 100, 'and no walk through them');
	emit_many('soon.n', $soon, 'NULL', "deliver_at => clock_timestamp() + interval '1 s'");
	ok(wait_sql($node, "SELECT count(*) = $soon FROM outbox.events WHERE topic = 'soon.n'"),
		"$soon enter the log when they are due");
	is(ask("SELECT count(*) FROM outbox.scheduled"), $n, 'and no other does');
	ask('TRUNCATE outbox.scheduled');
	return;
}

# Endpoints that all want everything.
sub many_endpoints
{
	my ($n, $events) = @_;
	my $url = $receiver->url('/ok/even');

	ask("SELECT outbox.create_endpoint('even' || i, '$url/' || i, topics => '{even.*}')"
		  . " FROM generate_series(1, $n) i");
	ok(wait_sql($node, "SELECT sum(endpoints) = $n FROM outbox.workers WHERE datname = 'postgres'"), "$n endpoints");
	my $positions = sub { ask('SELECT COALESCE(max(number), 0) FROM outbox.positions') };
	my ($cpu, $position, $lsn) = (cpu_seconds(), $positions->(), ask('SELECT pg_current_wal_lsn()'));
	emit_many('even.n', $events, 'NULL');
	my $all = $n * $events;
	ok(wait_sql($node, "SELECT sum(delivered) = $all FROM outbox.stats WHERE endpoint LIKE 'even%'"),
		"$all deliveries");
	note(sprintf '%d endpoints, %d events: %.0f us CPU, %.0f B of WAL per delivery; %d positions written',
		$n, $events, (cpu_seconds() - $cpu) * 1e6 / $all,
		ask("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '$lsn')") / $all, $positions->() - $position);
	my (%half, %all);
	my @requests = grep { $_->{path} =~ m{^/ok/even/} } $receiver->delivered;
	foreach my $i (0 .. $#requests)
	{
		$half{ $requests[$i]{path} }++ if $i < $all / 2;
		$all{ $requests[$i]{path} }++;
	}
	is(scalar(keys %all), $n, 'each endpoint is served');
	is(scalar(grep { $_ != $events } values %all), 0, 'with everything, once');
	my $least = scalar(keys %half) < $n ? 0 : min(values %half);
	note(sprintf 'at half time: %d to %d of %d', $least, max(values %half), $events);
	cmp_ok($least, '>', 0, 'evenly: at half time every endpoint has got something');
	ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name LIKE 'even%'");
	return;
}

# Never more than the limit, counted at the receiver.
sub exact_rate
{
	my ($rate, $n) = @_;

	endpoint($node, $receiver, 'rated', '/ok/rated', "topics => '{rated.*}', rate_limit => $rate");
	emit_many('rated.n', $n, 'NULL');
	my @requests = $receiver->wait_delivered($n, path => '/ok/rated');

	# A tenth of a second's worth may come at once.  A busy receiver reads late, so the time begins when the first one was made.
	wait_sql($node, "SELECT count(*) >= $n FROM outbox.attempts WHERE endpoint = 'rated'");
	my $begun = ask("SELECT extract(epoch FROM min(started_at)) FROM outbox.attempts WHERE endpoint = 'rated'");
	my $seconds = $requests[-1]{wall} - $begun;
	my $least = ($n - 1 - $rate / 10) / $rate;
	note(sprintf 'rate_limit %g: %d requests in %.2f s, %.2f at least', $rate, $n, $seconds, $least);
	cmp_ok($seconds, '>', 0.95 * $least, "$n requests are not faster than $rate a second");
	cmp_ok($seconds - stood_still($begun, $requests[-1]{wall}), '<', 3 * $least + 2, 'nor much slower');
	drop('rated');
	return;
}

# An endpoint that hangs, is slow, fails or has much to do does not slow another one.
sub bad_neighbours
{
	my %path = (hangs => '/hang/n', slow => '/slow/n?ms=1000', fails => '/status/500/n', flood => '/slow/flood?ms=5');

	endpoint($node, $receiver, $_, $path{$_}, "topics => '{bad.*}', max_in_flight => 8")
	  foreach sort keys %path;
	emit_many('bad.n', 5000, "'k' || n % 100");
	ok( wait_sql($node, "SELECT count(*) = 3 FROM outbox.stats WHERE endpoint IN ('hangs', 'slow', 'flood') AND processing + delivered > 0"),
		'bad neighbours are busy');
	endpoint($node, $receiver, 'good', '/ok/good', "topics => '{good.*}'");
	foreach my $n (1 .. 20)
	{
		my $id = emit($node, 'good.one', "{\"n\": $n}", "key => 'k'");
		$receiver->wait_delivered(1, id => $id);
	}
	is( ask("SELECT count(*) FROM outbox.stats WHERE endpoint IN ('hangs', 'slow', 'fails') AND pending > 4000"),
		'3', 'a good one is through while they are not');
	cmp_ok(ask("SELECT latency_p95_ms FROM outbox.stats WHERE endpoint = 'good'"), '<', 3000, 'without delay');
	drop($_) foreach sort(keys %path), 'good';
	return;
}

1;
