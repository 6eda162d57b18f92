# When a batch fails, each of its events is tried again, in order, and a bad one is found alone.
# It may fail as a whole or in part.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use IO::Socket::INET;
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main', fsync => 1);
my $quick = "backoff_base => '10 ms', backoff_max => '50 ms'";
my $slowly = "backoff_base => '1 h', backoff_max => '1 h'";

sub create
{
	my ($name, $behaviour, $more) = @_;

	endpoint($node, $receiver, $name, "/ok/$name", "topics => '{$name}', $more");
	$receiver->control(path => "/ok/$name", behave => $behaviour) if $behaviour;
	return;
}

sub sizes
{
	my ($name) = @_;
	return map { scalar @{ $_->{batch} } } $receiver->requests(path => "/ok/$name");
}

sub numbers
{
	my (%match) = @_;
	return map { $_->{n} } $receiver->events(%match);
}

# Each event was delivered, once, and those of a key one after the other.
sub all_delivered
{
	my ($name, $n, $what) = @_;
	my (%count, %last);
	my $disorder = 0;

	foreach my $event ($receiver->wait_events($n, path => "/ok/$name", delivered => 1))
	{
		$count{ $event->{n} }++;
		next unless defined $event->{key};
		$disorder++ if ($last{ $event->{key} } // 0) > $event->{n};
		$last{ $event->{key} } = $event->{n};
	}
	is(scalar(keys %count), $n, "$what: each event is delivered");
	is(scalar(grep { $_ > 1 } values %count), 0, 'once');
	is($disorder, 0, 'in the order of its key');
	return;
}

# What outbox.stats counts already is in the tables a moment later.
sub stored
{
	my ($name, $status, $n) = @_;
	return ok(
		wait_sql($node, "SELECT count(*) = $n FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id)"
			  . " WHERE s.name = '$name' AND k.status = '$status'"),
		"$n of $name: $status");
}

sub dead
{
	my ($name) = @_;
	return ask("SELECT string_agg((payload->>'n') || ':' || reason, ' ' ORDER BY seq) FROM outbox.dead_letters WHERE endpoint = '$name'");
}

# ---------------------------------------------------- partial acknowledgement

create('named', '/poison?n=4,8&how=named', "batch_size => 10, $slowly");
emit_at_once($node, 'named', 10, "'k' || n % 3");
$receiver->wait_for(1, path => '/ok/named');
ok( wait_sql($node,
		"SELECT (delivered, retrying, blocked, failed_attempts) = (6, 2, 2, 2) FROM outbox.stats WHERE endpoint = 'named'"),
	'two of ten are named, with two behind them: six are delivered');
stored('named', 'retrying', 2);
is( ask("SELECT string_agg((e.payload->>'n') || ' ' || status || ' ' || attempts, ', ' ORDER BY d.seq) FROM outbox.deliveries d JOIN outbox.events e ON e.id = event_id WHERE status <> 'delivered'"),
	'4 retrying 1, 7 blocked 0, 8 retrying 1, 10 blocked 0',
	'the named ones are tried again, what follows in their keys waits and counts no attempt');
is( ask("SELECT string_agg(DISTINCT status_code || ' ' || COALESCE(error, 'NULL'), ', ') FROM outbox.attempts"),
	'200 NULL, 200 an earlier event of its key failed in the same batch, 200 the receiver named it in batchItemFailures',
	'outbox.attempts says why');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered' AND delivered_at IS NULL OR status <> 'delivered' AND delivered_at IS NOT NULL"),
	0, 'only a delivered one has delivered_at');
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
$receiver->control(path => '/ok/named', behave => '/ok');
ask("SELECT outbox.retry('named')");
all_delivered('named', 10, 'retry() after a restart');
wait_settled($node);
ask("SELECT outbox.drop_endpoint('named')");

# The receiver goes by the order of the body, which is that of seq.  Here the event that stands behind in the body was read
# first, because the one before it was committed later.
create('late', '/poison?n=1&how=named', "batch_size => 2, batch_wait => '1 h', $slowly");
my $late = $node->background_psql('postgres', on_error_stop => 1);
$late->query_safe("BEGIN; SELECT outbox.emit('late', '{\"n\": 1}', key => 'k')");
ask("SELECT outbox.emit('late', '{\"n\": 2}', key => 'k')");
ok(wait_sql($node, "SELECT pending = 1 FROM outbox.stats WHERE endpoint = 'late'"), 'the second event is read');
$late->query_safe('COMMIT');
$late->quit;
$receiver->wait_for(1, path => '/ok/late');
ok( wait_sql($node, "SELECT (delivered, retrying, blocked) = (0, 1, 1) FROM outbox.stats WHERE endpoint = 'late'"),
	'what stands behind a named event in the body does not count as delivered');
is(join(' ', numbers(path => '/ok/late')), '1 2', 'the order of the body');
stored('late', 'retrying', 1);
$receiver->control(path => '/ok/late', behave => '/ok');
ask("SELECT outbox.alter_endpoint('late', batch_wait => '0')");
ask("SELECT outbox.retry('late')");
ok(wait_sql($node, "SELECT delivered = 2 FROM outbox.stats WHERE endpoint = 'late'"), 'both are delivered');
is(join(' ', numbers(path => '/ok/late')), '1 2 1 2', 'and come again in this order');
ask("SELECT outbox.drop_endpoint('late')");

# The same key again and again, at random, with kills of the worker
create('partial', '/partial?rate=0.1&ms=30', "batch_size => 50, max_in_flight => 4, $quick");
emit_at_once($node, 'partial', 2000, "'k' || n % 20");
foreach (1 .. 3)
{
	$receiver->wait_events(300 * $_, path => '/ok/partial', delivered => 1);
	$pid = worker_pid($node);
	ask("SELECT pg_terminate_backend($pid)");
	new_worker($node, $pid);
}
ok(wait_settled($node), 'failures at random: all is settled');
my (%last, %acked);
my $disorder = 0;
foreach my $event ($receiver->events(path => '/ok/partial', delivered => 1))
{
	next if $acked{ $event->{n} }++;
	$disorder++ if ($last{ $event->{key} } // 0) > $event->{n};
	$last{ $event->{key} } = $event->{n};
}
is(scalar(keys %acked), 2000, 'each is delivered');
is($disorder, 0, 'in the order of its key');
is(ask('SELECT count(*) FROM outbox.parked'), 0, 'no row is left');

# All are named: each counts as failed by itself
create('all', '/poison?n=1,2,3,4,5&how=named', "batch_size => 5, max_attempts => 2, $quick");
emit_at_once($node, 'all', 5, 'NULL');
ok(wait_settled($node), 'all are named, twice');
is(dead('all'), join(' ', map { "$_:max_attempts" } 1 .. 5), 'they are dead');
is(scalar(() = $receiver->events(path => '/ok/all')), 10, 'after two attempts each');

# A named one that is dead: what follows was not delivered with it
create('follows', '/poison?n=2&how=named', "batch_size => 5, max_attempts => 1, $quick");
emit_at_once($node, 'follows', 5, "'k'");
ok(wait_settled($node), 'a named head that is dead at once');
is(dead('follows'), '2:max_attempts', 'it is dead');
is(join(' ', numbers(path => '/ok/follows', delivered => 1)), '1 3 4 5', 'the others are delivered, in order');
is(join(' ', sizes('follows')), '5 3', 'those behind it with the next request');

create('block', '/poison?n=2&how=named', "batch_size => 5, max_attempts => 1, on_exhausted => 'block', $quick");
emit_at_once($node, 'block', 5, "'k'");
ok( wait_sql($node,
		"SELECT (delivered, dead, blocked) = (1, 1, 3) FROM outbox.stats WHERE endpoint = 'block'"),
	"on_exhausted = 'block': they wait");
nothing_arrives($receiver, 'for good', 1, path => '/ok/block');
$receiver->control(path => '/ok/block', behave => '/ok');
ask("SELECT outbox.retry('block')");
all_delivered('block', 5, 'after retry()');
is(join(' ', sizes('block')), '5 1 3', 'the dead one alone, then the others');

# -------------------------------- followers in flight while their lane is parked

sub emit_numbers
{
	my ($name, $from, $to, $key) = @_;

	ask("SELECT count(outbox.emit('$name', jsonb_build_object('n', n), key => $key)) FROM generate_series($from, $to) n");
	return;
}

sub ids
{
	my ($name) = @_;
	return map { split /\|/ } split /\n/, ask("SELECT payload->>'n', id FROM outbox.events WHERE topic = '$name'");
}

# Of key k: the first ones are dead.  10 was tried again later, so that 12 to $last
# have rows that say 'blocked'.  It is cancelled.  The first three of them are in
# flight, and the receiver holds them.  An event that is named from now on dies at once.
sub hold_three
{
	my ($name, $ndead, $last) = @_;

	create($name, '/poison?n=1,2,10&how=named',
		"batch_size => 3, max_in_flight => 2, max_attempts => 1, timeout => '5 min', $slowly");
	emit_at_once($node, $name, $ndead, "'k'");
	stored($name, 'dead', $ndead);
	ask("SELECT outbox.alter_endpoint('$name', max_attempts => 2)");
	emit_numbers($name, 10, 11, "CASE n WHEN 10 THEN 'k' ELSE 'other' END");
	ok( wait_sql($node, "SELECT (delivered, retrying) = (1, 1) FROM outbox.stats WHERE endpoint = '$name'"),
		'a delivery ends the failures in a row, which take slots');
	stored($name, 'retrying', 1);
	emit_numbers($name, 12, $last, "'k'");
	stored($name, 'blocked', $last - 11);
	$receiver->control(path => "/ok/$name", behave => '/hold');
	ask("SELECT outbox.alter_endpoint('$name', max_attempts => 1)");
	my %event = ids($name);
	is(ask("SELECT outbox.cancel('$event{10}')"), 't', 'their head is cancelled');
	my $held = ($receiver->wait_events(1, path => "/ok/$name", n => 12))[0];
	is(join(' ', map { $_->{n} } @{ $held->{request}{batch} }), '12 13 14', 'three of the followers go together');
	return %event;
}

# A dead one that is tried again takes its place before those that come back.
my %event = hold_three('back', 1, 14);
ask("SELECT outbox.retry('back', '$event{1}')");
wait_status($node, $event{1}, 'retrying', 'a dead one is tried again, and waits for those in flight');
$receiver->control(path => '/ok/back', behave => '/poison?n=12&how=named');
$receiver->wait_events(4, path => '/ok/back', delivered => 1);
is(join(' ', numbers(path => '/ok/back', key => 'k', delivered => 1)), '1 13 14',
	'the first of them dies: the others go back into their lane, in the order of the log');
ok(wait_settled($node), 'all is settled');

# Those in flight are not counted when the rest of their lane is parked, and their
# rows go on saying 'blocked'.  1 is parked with the rest, and 2 waits for a slot,
# so that the followers are read from before them.  64 are read at once.
%event = hold_three('passed', 2, 77);
ask("SELECT outbox.retry('passed', '$event{1}')");
wait_status($node, $event{1}, 'retrying', 'a dead one is tried again, and waits in its lane');
emit_numbers('passed', 90, 90, "'other'");
$receiver->wait_events(1, path => '/ok/passed', n => 90);
ask("SELECT outbox.retry('passed', '$event{2}')");
wait_status($node, $event{2}, 'retrying', 'for the next one there is no slot');
emit($node, 'nobody', '{}');
wait_status($node, $event{1}, 'blocked', 'the next settle parks what waits in its lane');
$receiver->control(path => '/ok/passed', behave => '/poison?n=12&how=named');
$receiver->wait_events(1, path => '/ok/passed', n => 14, delivered => 1);
emit_numbers('passed', 99, 99, "'k'");
$receiver->wait_events(1, path => '/ok/passed', n => 99, delivered => 1);
is(join(' ', numbers(path => '/ok/passed', key => 'k', delivered => 1)), join(' ', 1, 2, 13 .. 77, 99),
	'each is delivered once, in the order of the log');
ok(wait_settled($node), 'all is settled');
is(ask("SELECT string_agg((payload->>'n') || ' ' || status, ', ' ORDER BY k.seq) FROM outbox.parked k JOIN outbox.events USING (seq) WHERE topic = 'passed'"),
	'10 cancelled, 12 dead', 'no row of a delivered one is left');
ok( wait_sql($node, "SELECT (retrying, blocked, processing) = (0, 0, 0) FROM outbox.stats WHERE endpoint = 'passed'"),
	'and none is counted');
ask("SELECT outbox.drop_endpoint('passed', discard => true)");

# ------------------------------------------- answers that acknowledge nothing

my %answers = (
	'a list of another form' => '{"batchItemFailures":["x"]}',
	'an unknown id' => '{"batchItemFailures":[{"itemIdentifier":"00000000-0000-7000-8000-000000000000"}]}',
	'half a list' => '{"batchItemFailures":[{"itemIdentifier":',
	'more than 256 kB' => '/big-body?bytes=262145',
	'a torn body' => '/torn',
	'a compressed body' => '/encoded',
	'a body without end' => '/stall-body');
my $k = 0;
foreach my $what (sort keys %answers)
{
	my $name = 'answer' . ++$k;
	my $body = $answers{$what} =~ s/([^A-Za-z0-9])/sprintf '%%%02X', ord $1/ger;

	create($name, $answers{$what} =~ m{^/} ? $answers{$what} : "/status/200?body=$body",
		"batch_size => 10, timeout => '" . ($answers{$what} =~ /stall/ ? 5 : 15) . " s', $slowly");
	emit_at_once($node, $name, 10, "'k' || n % 2");
	ok( wait_sql($node,
			"SELECT (delivered, retrying, failed_attempts) = (0, 10, 10) FROM outbox.stats WHERE endpoint = '$name'"),
		"$what: nothing is delivered");
	like(ask("SELECT last_error FROM outbox.stats WHERE endpoint = '$name'"), qr/^the answer to the batch /, 'last_error says why');
	stored($name, 'retrying', 10);
	$receiver->control(path => "/ok/$name", behave => '/ok');
	ask("SELECT outbox.retry('$name')");
	wait_sql($node, "SELECT delivered = 10 FROM outbox.stats WHERE endpoint = '$name'");
	my @n = numbers(path => "/ok/$name");
	is(join(' ', @n[ 10 .. 19 ]), join(' ', 1 .. 10), 'then all of it, in order');
	wait_settled($node);
	ask("SELECT outbox.drop_endpoint('$name')");
}
my %fine = (
	'text' => 'OK',
	'an object without a list' => '{"batchItemFailure":[{"itemIdentifier":"x"}]}',
	'an empty list' => '{"batchItemFailures":[]}',
	'256 kB of text' => '/big-body?bytes=262144',
	'202' => '/status/202',
	'204' => '/status/204',
	'dripping' => '/drip?ms=1');
foreach my $what (sort keys %fine)
{
	my $name = 'answer' . ++$k;
	my $body = $fine{$what} =~ s/([^A-Za-z0-9])/sprintf '%%%02X', ord $1/ger;

	create($name, $fine{$what} =~ m{^/} ? $fine{$what} : "/status/200?body=$body", "batch_size => 10, $slowly");
	emit_at_once($node, $name, 10, 'NULL');
	ok(wait_sql($node, "SELECT delivered = 10 FROM outbox.stats WHERE endpoint = '$name'"), "$what: all is delivered");
	wait_settled($node);
	ask("SELECT outbox.drop_endpoint('$name')");
}

# ------------------------------------------------------------------- splitting

create('poison', '/poison?n=23', "batch_size => 64, max_attempts => 20, max_in_flight => 1, $quick");
emit_at_once($node, 'poison', 64, 'NULL');
ok(wait_settled($node), 'a poison event: all is settled');
is(dead('poison'), '23:max_attempts', 'it is dead');
is(ask("SELECT attempts FROM outbox.dead_letters WHERE endpoint = 'poison'"), 20, 'after max_attempts');
all_delivered('poison', 63, 'its neighbours');
is(join(' ', (sizes('poison'))[ 0 .. 2 ]), '64 64 64', 'three times as a whole');
is(join(' ', sort { $a <=> $b } grep { $_ < 64 } sizes('poison')),
	join(' ', (1) x 13, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32), 'then in halves, until it is alone');
my %body;
$body{ $_->{id} }{ $_->{sha256} }++ foreach $receiver->requests(path => '/ok/poison');
is(scalar(grep { keys %$_ > 1 } values %body), 0, 'the same members: the same id and the same bytes');
is((sort { $b <=> $a } map { values %$_ } values %body)[0], 12, 'also when it is alone');
my @first = $receiver->requests(path => '/ok/poison', id => ($receiver->requests(path => '/ok/poison'))[0]{id});
is(join(' ', map { $_->{headers}{'outbox-attempt'} } @first), '1 2 3', 'outbox-attempt counts');

# With keys: the bad event holds those behind it in its key, and no others
create('keyed', '/poison?n=23', "batch_size => 64, max_attempts => 12, $quick");
emit_at_once($node, 'keyed', 192, "'k' || n % 5");
ok(wait_settled($node), 'a poison event with keys: all is settled');
is(dead('keyed'), '23:max_attempts', 'it is dead');
all_delivered('keyed', 191, 'its neighbours');

# One key for all of them
create('lane', '/poison?n=5', "batch_size => 32, max_attempts => 6, $quick");
emit_at_once($node, 'lane', 40, "'k'");
ok(wait_settled($node), 'all of one key: all is settled');
is(dead('lane'), '5:max_attempts', 'the poison event is dead');
all_delivered('lane', 39, 'its followers');

create('strict', '/poison?n=5', "batch_size => 32, max_attempts => 6, ordering => 'strict', $quick");
emit_at_once($node, 'strict', 40, "CASE WHEN n % 2 = 0 THEN 'k' || n % 3 END");
ok(wait_settled($node), 'strict: all is settled');
is(dead('strict'), '5:max_attempts', 'the poison event is dead');
is_deeply([ numbers(path => '/ok/strict', delivered => 1) ], [ grep { $_ != 5 } 1 .. 40 ], 'the others come in the order of the log');

# Few attempts: still no event dies in a batch of several
foreach my $max (1 .. 4)
{
	create("max$max", '/poison?n=7', "batch_size => 16, max_attempts => $max, $quick");
	emit_at_once($node, "max$max", 16, "CASE WHEN n > 8 THEN 'k' END");
	ok(wait_settled($node), "max_attempts = $max: all is settled");
	is(dead("max$max"), '7:max_attempts', 'the poison event is dead');
	is(ask("SELECT attempts FROM outbox.dead_letters WHERE endpoint = 'max$max'"),
		$max == 1 ? 2 : $max, $max == 1 ? 'after one more than that, alone' : 'after so many attempts');
	all_delivered("max$max", 15, 'its neighbours');
}
create('age', '/poison?n=7', "batch_size => 16, max_age => '300 ms', $quick");
emit_at_once($node, 'age', 16, 'NULL');
ok(wait_settled($node), 'max_age: all is settled');
is(dead('age'), '7:max_age', 'the poison event is dead');
all_delivered('age', 15, 'its neighbours');

# webhook-delivery: abort-message means one event, so it is looked for
create('abort', '/poison?n=7&how=abort', "batch_size => 16, $quick");
emit_at_once($node, 'abort', 16, 'NULL');
ok(wait_settled($node), 'abort-message: all is settled');
is(dead('abort'), '7:aborted by receiver', 'the event that is meant is dead');
all_delivered('abort', 15, 'its neighbours');
is((sort { $b <=> $a } grep { $_ < 16 } sizes('abort'))[0], 8, 'a batch is split at once');
is(scalar(grep { $_ == 16 } sizes('abort')), 1, 'not tried again as a whole');

# retry() of a dead one sends it alone
my $companions = emit($node, 'poison', '{"n": 101}');
$receiver->wait_events(1, id => $companions);
$receiver->control(path => '/ok/poison', behave => '/slow?ms=200');
ask("SELECT count(outbox.emit('poison', jsonb_build_object('n', 200 + n))) FROM generate_series(1, 20) n; SELECT outbox.retry('poison')");
$receiver->wait_events(85, path => '/ok/poison', delivered => 1);
is(scalar(grep { @{ $_->{batch} } > 1 && grep { $_->{n} == 23 } @{ $_->{batch} } } ($receiver->requests(path => '/ok/poison'))[ -4 .. -1 ]),
	0, 'retry() of a dead one sends it alone');

# --------------------------------------------- answers for the whole endpoint

create('gone', '/status/410', "batch_size => 10, $quick");
emit_at_once($node, 'gone', 30, "'k' || n % 4");
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'gone'"), '410 disables the endpoint');
ok( wait_sql($node, "SELECT count(*) > 0 FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'gone'"),
	'what was in flight waits');
my ($before) = $receiver->requests(path => '/ok/gone');
is(ask("SELECT max(attempts) FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'gone'"),
	0, 'and uses up no attempt');
$receiver->control(path => '/ok/gone', behave => '/ok');
ask("SELECT outbox.resume_endpoint('gone')");
all_delivered('gone', 30, 'resumed');
my ($again) = grep { $_->{status} == 200 } $receiver->requests(path => '/ok/gone', id => $before->{id});
is($again->{sha256}, $before->{sha256}, 'the same batch comes again, byte by byte');

sub show_attempts
{
	my ($name) = @_;
	return diag(ask("SELECT string_agg(a::text, E'\\n' ORDER BY started_at, seq) FROM outbox.attempts a WHERE endpoint = '$name'"));
}

create('busy', '/flaky?first=1&status=429&retry_after=10', "batch_size => 10");
emit_at_once($node, 'busy', 10, 'NULL');
$receiver->wait_for(1, path => '/ok/busy');
$pid = worker_pid($node);
ok(wait_sql($node, "SELECT retrying = 10 FROM outbox.stats WHERE endpoint = 'busy'"), '429: ten deliveries wait') or show_attempts('busy');
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
all_delivered('busy', 10, 'Retry-After, and a restart meanwhile');
my @busy = $receiver->requests(path => '/ok/busy');
is(scalar @busy, 2, 'in one request');
is($busy[1]{id}, $busy[0]{id}, 'with the same id');
is($busy[1]{sha256}, $busy[0]{sha256}, 'and the same bytes');
cmp_ok($busy[1]{wall} - $busy[0]{wall}, '>', 9.9, 'not earlier than asked for') or show_attempts('busy');

# Down: the breaker opens, and one event is enough to find out
create('down', '/status/500', "batch_size => 10, max_in_flight => 4, backoff_base => '20 ms', backoff_max => '200 ms'");
emit_at_once($node, 'down', 200, "'k' || n");
ok(wait_sql($node, "SELECT state = 'backing_off' FROM outbox.stats WHERE endpoint = 'down'"), '20 requests in a row: backing off');
my $asked = () = $receiver->requests(path => '/ok/down');
$receiver->wait_for($asked + 6, path => '/ok/down');
is(join(' ', (sizes('down'))[ -3 .. -1 ]), '1 1 1', 'a probe is one event');
$receiver->control(path => '/ok/down', behave => '/ok');
all_delivered('down', 200, 'back again');

# Where no connection is made, or the receiver has too much to do, none of the
# events can be at fault: nothing is split.
my $bound = IO::Socket::INET->new(Proto => 'tcp', LocalAddr => '127.0.0.1');    # it does not listen
my $closed = $bound->sockport;
foreach my $case ([ 'closed', "http://127.0.0.1:$closed/" ], [ 'unknown', 'https://nobody.invalid/' ], ['limited'])
{
	my ($name, $url) = @$case;

	create($name, $url ? '' : '/status/429', "batch_size => 10, $quick");
	ask("SELECT outbox.alter_endpoint('$name', url => '$url')") if $url;
	emit_at_once($node, $name, 10, 'NULL');
	ok( wait_sql($node, "SELECT min(attempts) >= 5 AND count(*) = 10 FROM outbox.parked k"
			  . " JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = '$name'"),
		"$name: failed five times");
	ask("SELECT outbox.alter_endpoint('$name', url => 'http://127.0.0.1:$receiver->{port}/ok/$name')") if $url;
	$receiver->control(path => "/ok/$name", behave => '/ok') if !$url;
	all_delivered($name, 10, "$name: delivered in the end");
	is((sizes($name))[-1], 10, "$name: still together");
}

# ------------------------------------------------------------------ operators

create('ops', '/status/500', "batch_size => 10, max_in_flight => 1, $slowly");
emit_at_once($node, 'ops', 10, "CASE WHEN n > 5 THEN 'k' END");
ok(wait_sql($node, "SELECT retrying = 10 FROM outbox.stats WHERE endpoint = 'ops'"), 'a failed batch waits');
stored('ops', 'retrying', 10);
my %id = map { split /\|/ } split /\n/, ask("SELECT payload->>'n', id FROM outbox.events WHERE topic = 'ops'");
is(ask("SELECT outbox.cancel('$id{3}')"), 't', 'one of it is cancelled');
is(ask("SELECT outbox.cancel('$id{7}')"), 't', 'and one with a key');
$receiver->control(path => '/ok/ops', behave => '/ok');
is(ask("SELECT outbox.retry('ops', '$id{9}')"), 1, 'retry() of one that has predecessors');
nothing_arrives($receiver, 'does not overtake them', 1, path => '/ok/ops');
is(ask("SELECT outbox.retry('ops', '$id{2}')"), 1, 'retry() of one that has none');
$receiver->wait_delivered(1, path => '/ok/ops');
is(join(' ', numbers(path => '/ok/ops', delivered => 1)), '2', 'sends it');
ask("SELECT outbox.retry('ops')");
all_delivered('ops', 8, 'retry() of all');
is(join(' ', sort { $a <=> $b } numbers(path => '/ok/ops', delivered => 1)), '1 2 4 5 6 8 9 10', 'but the cancelled ones');
wait_settled($node);
is(ask("SELECT outbox.replay('ops', now() - interval '1 hour')"), 8, 'replay()');
$receiver->wait_events(16, path => '/ok/ops', delivered => 1);
my @replayed = (numbers(path => '/ok/ops', delivered => 1))[ 8 .. 15 ];
is(join(' ', grep { $_ > 5 } @replayed), '6 8 9 10', 'repeats them, each key in order');

# Another ordering finds what the former one left
create('turn', '/poison?n=2&how=named', "batch_size => 10, ordering => 'strict', $slowly");
emit_at_once($node, 'turn', 6, "CASE WHEN n % 2 = 0 THEN 'k' END");
ok(wait_sql($node, "SELECT (retrying, blocked) = (1, 4) FROM outbox.stats WHERE endpoint = 'turn'"), 'strict: a parked head, and four behind it');
stored('turn', 'blocked', 4);
is(ask("SELECT string_agg(DISTINCT last_error, ', ') FROM outbox.deliveries WHERE endpoint = 'turn' AND status = 'blocked'"),
	'an earlier event failed in the same batch', 'behind it with a key or without');
ask("SELECT outbox.alter_endpoint('turn', ordering => 'key')");
ok(wait_sql($node, "SELECT (delivered, retrying, blocked) = (3, 1, 2) FROM outbox.stats WHERE endpoint = 'turn'"),
	'key: those without a key go');
stored('turn', 'retrying', 1);
$receiver->control(path => '/ok/turn', behave => '/ok');
ask("SELECT outbox.retry('turn')");
ok(wait_settled($node), 'and the others after retry()');
is(join(' ', map { $_ % 2 ? () : $_ } (numbers(path => '/ok/turn'))[ 6 .. 10 ]), '2 4 6', 'in order');
is(scalar(() = $receiver->events(path => '/ok/turn')), 11, 'each once more');

unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/ERROR:(?!  canceling autovacuum task)|PANIC:|TRAP:/, 'no worker ended with an error');
is(scalar(grep { $_->{signature} ne 'valid' } $receiver->requests), 0, 'every request was signed');

$node->stop;
done_testing();
