# A restored dump that is adopted delivers exactly its undelivered events, once and in order.
# The dump is taken while events flow.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Copies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $other = outbox_node('other', extension => 0);
my $receiver = OutboxTest::Receiver->new('main');
my $theirs = OutboxTest::Receiver->new('other');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $log = "$dir/producer";
my $never = "backoff_base => '1 h', backoff_max => '1 h'";
my %filter = (filtered => sub { $_[0] % 3 == 0 });
my @quiet = qw(all filtered slow paused late altered replayed strict none);
my @stuck = qw(fails dead blocks);

sub ask
{
	my ($sql, $server) = @_;
	return ($server // $node)->safe_psql('postgres', $sql);
}

sub fails_with
{
	my ($server, $dbname, $sql, $sqlstate, $name) = @_;
	my ($rc, $out, $err) =
	  $server->psql($dbname, "\\set VERBOSITY verbose\n$sql", on_error_stop => 1);

	like($err, qr/ERROR:  \Q$sqlstate\E:.*^HINT:  /ms, $name);
	return;
}

# The numbers of transactions here are ahead of those where the dump is restored.
ask('DO $$ BEGIN FOR n IN 1 .. 5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');

# An event from before there is an endpoint: epoch 0
my $before = emit($node, 'load.before', '{"n": 0}');
endpoint($node, $receiver, 'all', '/slow/all?ms=30', "topics => '{load.*,held.*}', start_at => 'beginning'");
endpoint($node, $receiver, 'filtered', '/slow/filtered?ms=10',
	"topics => '{load.*}', filter => '\$.n % 3 == 0'");
endpoint($node, $receiver, 'slow', '/slow/slow?ms=100', "topics => '{load.*,held.*}', max_in_flight => 2");
endpoint($node, $receiver, 'strict', '/slow/strict?ms=20', "topics => '{load.*,held.*}', ordering => 'strict'");
endpoint($node, $receiver, 'none', '/slow/none?ms=50', "topics => '{load.*,held.*}', ordering => 'none'");
endpoint($node, $receiver, 'paused', '/ok/paused', "topics => '{load.*,held.*}'");
endpoint($node, $receiver, 'late', '/ok/late', "topics => '{load.*,late.*}'");
endpoint($node, $receiver, 'altered', '/ok/altered', "topics => '{nothing.*}'");
endpoint($node, $receiver, 'replayed', '/ok/replayed', "topics => '{load.*,bulk.*}', max_in_flight => 2");
endpoint($node, $receiver, 'fails', '/status/500/fails', "topics => '{load.*,held.*}', $never");
endpoint($node, $receiver, 'dead', '/status/500/dead', "topics => '{load.*}', max_attempts => 1, $never");
endpoint($node, $receiver, 'blocks', '/ok/blocks',
	"topics => '{load.*,held.*}', max_attempts => 1, on_exhausted => 'block', $never");
endpoint($node, $receiver, 'idle', '/ok/idle', "topics => '{idle.*}'");
number_requests($node);

my $producer = start_producer($node, $log, rate => 40, keys => 2, topic => 'load.one');
ask("SELECT count(outbox.emit('bulk.n', '{\"n\": 1}'::jsonb)) FROM generate_series(1, 1000)");
$receiver->wait_delivered(1000, path => '/ok/replayed', topic => 'bulk.n');
$receiver->wait_delivered(100, path => '/ok/replayed', topic => 'load.one');
ask("SELECT outbox.pause_endpoint('paused'), outbox.pause_endpoint('altered')");
$receiver->control(path => '/ok/blocks', behave => '/status/500');
ok(wait_sql($node, "SELECT dead > 0 AND blocked > 0 FROM outbox.stats WHERE endpoint = 'blocks'"),
	'a dead delivery blocks its key');
ask("SELECT outbox.alter_endpoint('altered', topics => '{load.*}')");

# A transaction that commits when endpoint "late" has passed its numbers, and
# reads no further
my $late = $node->background_psql('postgres');
$late->query_safe('BEGIN');
my @late = map {
	$late->query_safe("SELECT outbox.emit('late.n', '{\"n\": $_}'::jsonb, key => '" . ($_ % 2) . "')")
} 1 .. 4;
my $passed = emit($node, 'late.after', '{"n": 5}', "key => '1'");
$receiver->wait_delivered(1, path => '/ok/late', id => $passed);
ask("SELECT outbox.pause_endpoint('late')");
ok( wait_sql($node, "SELECT state = 'paused' AND processing = 0 FROM outbox.stats WHERE endpoint = 'late'"),
	'an endpoint is paused');
$late->query_safe('COMMIT');
$late->quit;

# A replay that takes long
$receiver->control(path => '/ok/replayed', behave => '/slow/replayed?ms=200');
is(ask("SELECT outbox.replay('replayed', now() - interval '1 hour', now(), '{bulk.*}')"), 1000, 'a replay');
ok(wait_sql($node, "SELECT events > 0 AND finished_at IS NULL FROM outbox.replays"), 'is under way');
my $scheduled = emit($node, 'load.scheduled', '{"n": 3}', "deliver_at => now() + interval '1 hour'");
my $cancelled = emit($node, 'held.cancelled', '{}');
wait_sql($node, "SELECT outbox.cancel('$cancelled', 'paused')");
ok( wait_sql($node, "SELECT status = 'cancelled' FROM outbox.deliveries WHERE event_id = '$cancelled' AND endpoint = 'paused'"),
	'a delivery is cancelled');

# As while a piece is about to be emptied, and all of it is parked
ask("INSERT INTO outbox.kept_events SELECT seq, xid, epoch, id, created_at, expires_at, topic, type, key,"
	  . " tenant, headers, payload, body, content_type FROM outbox.events");

$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('postgres') ], 'pg_dump');
stop_producer($producer);
$node->stop('immediate');

# ---- elsewhere

$other->safe_psql('postgres', 'CREATE DATABASE fresh');
$other->safe_psql('fresh', 'CREATE EXTENSION outbox');
fails_with($other, 'fresh', 'SELECT outbox.adopt()', '55000', 'a log that has had no endpoint: nothing to adopt');
$other->command_ok([ 'pg_restore', '--exit-on-error', '-d', $other->connstr('postgres'), "$dir/dump" ],
	'pg_restore');
ok(wait_sql($other, "SELECT state = 'held' FROM outbox.status"), 'held');
redirect($other, 'postgres', $theirs, @quiet, @stuck, 'idle');
$_ eq 'late' || $_ eq 'paused' || $_ eq 'altered'
  and ask("SELECT outbox.resume_endpoint('$_')", $other)
  foreach @quiet;
emit($other, 'held.one', "{\"n\": $_}", "key => 'load.one-s0-k" . ($_ % 4) . "'") foreach 1 .. 20;
$other->safe_psql('postgres', "INSERT INTO outbox.events (topic, payload, key) VALUES ('held.two', '{\"n\": 21}', 'k')");
foreach my $sql (
	"SELECT outbox.create_endpoint('new', '@{[$theirs->url('/ok/new')]}')",
	"SELECT outbox.seek_endpoint('all', 'now')",
	"SELECT outbox.replay('all', now() - interval '1 hour')")
{
	fails_with($other, 'postgres', $sql, '55000', "not before it is adopted: $sql");
}

my $expected = undelivered($other, 'postgres', %filter);
note(sprintf '%-10s %s', $_, do {
		my %n;
		$n{$_}++ foreach values %{ $expected->{$_} };
		join ' ', map { "$_: $n{$_}" } sort keys %n;
	}) foreach sort keys %$expected;
my %has = map { $_ => 1 } map { values %$_ } values %$expected;
is(join(' ', sort keys %has), 'blocked dead new pending replay retrying', 'every kind of delivery is among them');
is(scalar(grep { $expected->{late}{$_} } @late), 4, 'late commits too');
is($expected->{late}{$passed}, undef, 'but not what came after them and was delivered');
foreach my $name (sort keys %$expected)
{
	my %view = map { $_ => 1 } split /\n/, ask(
		"SELECT event_id FROM outbox.deliveries WHERE endpoint = '$name'"
		  . " AND status NOT IN ('delivered', 'cancelled', 'scheduled')", $other);
	my @here = grep { $expected->{$name}{$_} ne 'replay' } keys %{ $expected->{$name} };
	is(scalar(grep { $view{$_} } @here), scalar(@here), "outbox.deliveries of the copy: $name");
	is(scalar(keys %view), scalar(@here), 'and no more');
}
nothing_arrives($theirs, 'nothing is sent by the copy', 0.5);

# A role that may not adopt, and a log that cannot be adopted
ask('CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA outbox TO stranger', $other);
my ($rc, $out, $err) = $other->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.adopt()",
	extra_params => [ '-U', 'stranger' ]);
like($err, qr/ERROR:  42501/, 'a stranger may not adopt');
fails_with($other, 'postgres', "BEGIN ISOLATION LEVEL $_; SELECT outbox.adopt()", '25001', "not at $_")
  foreach 'REPEATABLE READ', 'SERIALIZABLE';

# Rolled back, and killed in the middle: held as before
ask('BEGIN; SELECT outbox.adopt(); ROLLBACK', $other);
is_deeply(undelivered($other, 'postgres', %filter), $expected, 'a rollback takes it back');
my $adopter = $other->background_psql('postgres');
$adopter->query_safe('BEGIN');
my $returned = $adopter->query_safe('SELECT outbox.adopt()');
cmp_ok($returned, '>=', count_of($expected), 'adopt() returns how many are due');
cmp_ok($returned, '<=', count_of(undelivered($other, 'postgres')), 'before filters are judged');
kill_everything($other);
start_again($other);
eval { $adopter->quit };
is_deeply(undelivered($other, 'postgres', %filter), $expected, 'so does a crash');
ok(wait_sql($other, "SELECT state = 'held' FROM outbox.status"), 'held');
is(scalar(() = $theirs->requests), 0, 'nothing was sent');

# Emitters that are open are waited for.  Those of the adopting transaction, and
# of sessions from before, have the new epoch.
my $emitter = $other->background_psql('postgres');
my $session = $other->background_psql('postgres');
$emitter->query_safe('BEGIN');
my @mine = ($emitter->query_safe("SELECT outbox.emit('held.open', '{\"n\": 30}'::jsonb, key => 'k')"));
my @soon = ($emitter->query_safe("SELECT outbox.emit('load.soon', '{\"n\": 33}'::jsonb, deliver_at => clock_timestamp() + interval '1 s')"));
push @mine, $session->query_safe("SELECT outbox.emit('held.session', '{\"n\": 31}'::jsonb, key => 'k')");
$adopter = $other->background_psql('postgres');
$adopter->query_safe('BEGIN');
push @mine, $adopter->query_safe("SELECT outbox.emit('held.before', '{\"n\": 32}'::jsonb, key => 'k2')");
$adopter->query_until(qr/asked/, "\\echo asked\nSELECT outbox.adopt();\n");
ok(wait_sql($other, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"), 'adopt() waits for an open emitter');
$emitter->query_safe('COMMIT');
my $n = $adopter->query_until(qr/\d+\n/, '');
push @mine, $adopter->query_safe("SELECT outbox.emit('held.after', '{\"n\": 34}'::jsonb, key => 'k2')");
$adopter->query_safe('COMMIT');
push @mine, $session->query_safe("SELECT outbox.emit('held.session', '{\"n\": 35}'::jsonb, key => 'k')");
$_->quit foreach $adopter, $emitter, $session;
like($n, qr/^\d+$/m, 'and is done then');
is(ask('SELECT count(*) FROM (SELECT FROM outbox.all_events GROUP BY id HAVING count(*) > 1) d', $other), 0,
	'no event is there twice');
foreach my $name (qw(all slow paused fails blocks strict none))
{
	$expected->{$name}{$_} = 'new' foreach @mine;
}
fails_with($other, 'postgres', 'SELECT outbox.adopt()', '55000', 'adopt() a second time is an error');

compare_sent($theirs, $_, [ keys %{ $expected->{$_} }, $_ =~ /all|slow|paused|altered|filtered|late|strict|none|replayed/ ? @soon : () ],
	'adopted') foreach @quiet;
is_ordered($theirs, $_, $_) foreach grep { !/none|replayed/ } @quiet;
is(scalar(sent_to($theirs, 'idle')), 0, 'an endpoint without undelivered events gets nothing');

# Dead ones are dead, and are there
foreach my $name (@stuck)
{
	my %sent = map { $_ => 1 } sent_to($theirs, $name);
	is(scalar(grep { $expected->{$name}{$_} eq 'dead' && $sent{$_} } keys %{ $expected->{$name} }),
		0, "$name: what was dead is not sent");
	ask("SELECT outbox.retry('$name')", $other);
	compare_sent($theirs, $name, [ keys %{ $expected->{$name} }, @soon ], 'retried');
}
ok( wait_sql($other, "SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE status NOT IN ('delivered', 'cancelled', 'scheduled'))"),
	'settled');

# A scheduled event comes when it is due, and an event that is emitted now at once
ask("UPDATE outbox.scheduled SET deliver_at = now() WHERE id = '$scheduled'", $other);
$theirs->wait_delivered(1, path => '/ok/all', id => $scheduled);
pass('a scheduled event is delivered when it is due');
my $now = emit($other, 'load.now', '{"n": 36}');
$theirs->wait_delivered(1, path => "/ok/$_", id => $now) foreach @quiet, @stuck;
pass('new events flow');

# The history that came along can be sent again
is(ask("SELECT count(*) > 0 AND bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id = '$before' AND endpoint = 'all'", $other),
	't', 'what was delivered before the dump is shown as delivered');
cmp_ok(ask("SELECT outbox.replay('all', now() - interval '1 hour', now(), '{load.before}')", $other),
	'==', 1, 'it can be replayed');
$theirs->wait_delivered(1, path => '/ok/all', id => $before);
pass('and is');
my $sent = () = $theirs->delivered(path => '/ok/late', id => $passed);
ask("SELECT outbox.resend('late', '$passed')", $other);
$theirs->wait_delivered($sent + 1, path => '/ok/late', id => $passed);
pass('one event of it can be sent again');
ok(wait_sql($other, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$passed' AND endpoint = 'late'"), 'and is');
fails_with($other, 'postgres', "SELECT outbox.seek_endpoint('all', (now() - interval '1 hour')::text)",
	'55000', 'a time before the adoption is no place in this log');

# A copy of the adopted copy
ask("SELECT outbox.pause_endpoint('all')", $other);
my @again = map { emit($other, 'held.again', "{\"n\": $_}", "key => 'again'") } 1 .. 5;
ok(wait_sql($other, "SELECT state = 'paused' AND processing = 0 FROM outbox.stats WHERE endpoint = 'all'"), 'paused');
$theirs->wait_delivered(1, path => '/ok/slow', id => $_) foreach @again;
ok(wait_sql($other, "SELECT count(*) = 5 FROM outbox.deliveries WHERE status <> 'delivered' AND topic = 'held.again'"),
	'stored');
$other->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/again", $other->connstr('postgres') ], 'pg_dump again');
ask('CREATE DATABASE third', $other);
$other->command_ok([ 'pg_restore', '--exit-on-error', '-d', $other->connstr('third'), "$dir/again" ],
	'pg_restore into another database of this cluster');
ok(wait_sql($other, "SELECT state = 'held' FROM outbox.status", 't', 'third'), 'held again');
my $third = OutboxTest::Receiver->new('third');
redirect($other, 'third', $third, @quiet, @stuck, 'idle');
$other->safe_psql('third', "SELECT outbox.resume_endpoint('all')");
push @again, emit($other, 'held.again', '{"n": 6}', "key => 'again'", 'third');
$expected = undelivered($other, 'third', %filter);
is(join(' ', sort keys %{ $expected->{all} }), join(' ', sort @again), 'it has what the copy had not delivered');
is($other->safe_psql('third', 'SELECT outbox.adopt()'), count_of($expected), 'adopted again');
compare_sent($third, $_, [ keys %{ $expected->{$_} } ], 'again') foreach @quiet, @stuck;
is_ordered($third, 'all', 'again');

# Emits go on while it works.  A row that another session has locked stops it in the
# middle.  What is emitted meanwhile is delivered, too, and a crash leaves a copy that can
# be adopted.
$other->safe_psql('third', "SELECT outbox.pause_endpoint('all')");
push @again, map { emit($other, 'held.again', "{\"n\": $_}", "key => 'again'", 'third') } 1 .. 3;
ok( wait_sql($other, "SELECT state = 'paused' AND processing = 0 FROM outbox.stats WHERE endpoint = 'all'", 't', 'third'),
	'paused');
hold($other);
my ($holder, $stopped) = stop_in_the_middle($again[-2]);
push @again, emits_go_on(4);
kill_everything($other);
start_again($other);
eval { $_->quit } foreach $holder, $stopped;
ok(wait_sql($other, "SELECT state = 'held' FROM outbox.status", 't', 'third'), 'held after a crash');
($holder, $stopped) = stop_in_the_middle($again[-3]);
push @again, emits_go_on(5);
my $cheap = "SELECT count(outbox.emit('cheap.none', '{}')) FROM generate_series(1, 6000)";
$other->safe_psql('third', $cheap);
push @again, emits_go_on(6);
$expected = undelivered($other, 'third', %filter);
$holder->query_safe('ROLLBACK');
is($stopped->query_until(qr/\d+\n/, '') =~ /^(\d+)$/m ? $1 : undef, count_of($expected),
	'it returns what is due, also what was emitted meanwhile');
$_->quit foreach $holder, $stopped;
$other->safe_psql('third', "SELECT outbox.resume_endpoint('all')");
compare_sent($third, 'all', \@again, 'emitted meanwhile');

# So they do where it was written under another outbox.instance_name, where events that are
# emitted have the log's own epoch.
$other->safe_psql('third', "SELECT outbox.pause_endpoint('all')");
push @again, map { emit($other, 'held.again', "{\"n\": $_}", "key => 'again'", 'third') } 7 .. 9;
hold($other, "instance_name = 'elsewhere'");
push @again, emits_go_on(10);
($holder, $stopped) = stop_in_the_middle($again[-2]);
push @again, emits_go_on(11);
$other->safe_psql('third', $cheap);
push @again, emits_go_on(12);
$expected = undelivered($other, 'third', %filter);
$holder->query_safe('ROLLBACK');
is($stopped->query_until(qr/\d+\n/, '') =~ /^(\d+)$/m ? $1 : undef, count_of($expected), 'the same for another instance');
$_->quit foreach $holder, $stopped;
$other->safe_psql('third', "SELECT outbox.resume_endpoint('all')");
compare_sent($third, 'all', \@again, 'emitted meanwhile');
is_ordered($third, 'all', 'another instance');

# Makes the log of "third" one that came from elsewhere.
sub hold
{
	my ($server, $origin) = @_;
	$server->safe_psql('third', 'UPDATE outbox.origins SET ' . ($origin // 'system_identifier = 1') . ' WHERE adopted_by IS NULL');
	$server->safe_psql('third', "SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE datname = 'third' AND pid IS NOT NULL");
	ok(wait_sql($server, "SELECT state = 'held' FROM outbox.status", 't', 'third'), 'held');
	return;
}

sub stop_in_the_middle
{
	my ($id) = @_;
	my ($row, $session) = map { $other->background_psql('third') } 1 .. 2;
	$row->query_safe("BEGIN; SELECT id FROM outbox.events WHERE id = '$id' FOR UPDATE");
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_until(qr/asked/, "\\echo asked\nSELECT outbox.adopt();\n");
	ok(wait_sql($other, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $pid AND NOT granted AND locktype = 'transactionid')"),
		'adopt() waits in the middle');
	return ($row, $session);
}

sub emits_go_on
{
	my ($n) = @_;
	my ($rc, $id) = $other->psql('third',
		"SET lock_timeout = '20s'; SELECT outbox.emit('held.again', '{\"n\": $n}', key => 'again')");
	is($rc, 0, 'an emit goes on meanwhile');
	return $id;
}

# What it costs follows the events and the endpoints, and not their product.  Each of 60
# endpoints has read up to a transaction of its own, but for one that was open then.
my $url = $third->url('/ok/cheap');
$other->safe_psql('third', <<SQL);
SELECT outbox.create_endpoint('cheap' || n, '$url', topics => '{cheap.*}', tenant => 'cheap' || n) FROM generate_series(1, 60) n;
SELECT outbox.pause_endpoint('cheap' || n) FROM generate_series(1, 60) n;
DO \$\$ BEGIN
    FOR i IN 1 .. 60 LOOP
        PERFORM outbox.emit('cheap.one', jsonb_build_object('n', i), tenant => 'cheap' || n) FROM generate_series(1, 60) n;
        COMMIT;
    END LOOP;
END \$\$;
SQL
hold($other);
my @due = split /\n/, $other->safe_psql('third', <<'SQL');
CREATE TEMP TABLE t AS
SELECT xid, min(seq) AS seq, row_number() OVER (ORDER BY xid) AS n FROM outbox.events WHERE topic = 'cheap.one' GROUP BY xid;
WITH positions AS (
    INSERT INTO outbox.positions (piece, number, endpoint_id, generation, read_tick, read, read_seq_low, last_seq,
        delivered, failed_attempts, settled_at)
    SELECT 0, 1000000 + s.endpoint_id, s.endpoint_id, s.generation, 1000000 + t.n,
           (COALESCE(l.xid, t.xid) || ':' || t.xid || ':' || COALESCE(l.xid::text, ''))::pg_snapshot, t.seq - 1, 0, 0, 0, now()
    FROM outbox.endpoint_settings s JOIN t ON s.name = 'cheap' || t.n LEFT JOIN t l ON l.n = t.n - 2)
SELECT e.id FROM outbox.events e JOIN t ON t.xid = e.xid CROSS JOIN LATERAL (SELECT substr(e.tenant, 6)::int8 AS n) c
WHERE e.topic = 'cheap.one' AND (t.n >= c.n OR t.n = c.n - 2);
SQL
$expected = undelivered($other, 'third');
delete @$expected{ grep { /^cheap/ } keys %$expected };
my $counts = "SELECT pg_stat_force_next_flush(); SELECT sum(seq_tup_read + idx_tup_fetch) FILTER (WHERE relname ~ '^events_[0-2]\$'),"
  . " sum(seq_scan) FILTER (WHERE relname = 'origins'), (SELECT count(*) FROM outbox.events) FROM pg_stat_all_tables";
$other->safe_psql('third', 'ANALYZE');    # then a pass over the log seems cheap, and it is not for each place
my @before = split /\|/, $other->safe_psql('third', $counts) =~ s/^\n//r;
is($other->safe_psql('third', 'SELECT outbox.adopt()'), @due + count_of($expected), 'many events of many places are adopted');
my @after = split /\|/, $other->safe_psql('third', $counts) =~ s/^\n//r;
cmp_ok(($after[0] - $before[0]) / $after[2], '<', 8, 'the log was read a few times, and not once for each place');
cmp_ok($after[1] - $before[1], '<', 100, 'and outbox.origins not once for each event');
$other->safe_psql('third', "SELECT outbox.rotate_secret(name), outbox.resume_endpoint(name) FROM outbox.endpoints WHERE name ~ '^cheap'");
compare_sent($third, 'cheap', \@due, 'of many places');

$other->stop;
done_testing();
