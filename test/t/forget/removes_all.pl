# outbox.forget() stops all that a tenant's events would still send, and removes all that they held.
# The workers do it in slices, through a crash, with several of them, and no other
# tenant's data changes.  Afterwards neither a dump nor a file of the data directory has
# any of it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $conf = "restart_after_crash = on\n";
my $node = outbox_node('main', conf => $conf);
my $receiver = OutboxTest::Receiver->new('main');
my $marker = 'XYZZYforgetmePLUGH';
my $archive = 'XYZZYarchivePLUGH'; # what must stay
my $later = "backoff_base => '1 h', backoff_max => '1 h'";

sub set
{
	my ($setting, $value) = @_;

	ask($_) foreach "ALTER SYSTEM SET $setting = $value", 'SELECT pg_reload_conf()';
	return;
}

sub refused
{
	my ($sql, $state, $what) = @_;
	like(($node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql"))[2], qr/ERROR:  $state/, $what);
	return;
}

# Each event of this tenant has the marker wherever an event can have it.
sub emit_as
{
	my ($tenant, $topic, $more) = @_;
	my $mark = $tenant eq 'acme' ? $marker : $archive;

	return ask(qq[SELECT outbox.emit('$topic', '{"n": 1, "secret": "$mark"}', tenant => '$tenant',]
		  . qq[ headers => '{"x-secret": "$mark"}', key => '$mark-key'] . ($more // '') . ')');
}

# Files below base/ that have the marker.  What is in memory is written before.
sub files_with
{
	my ($what) = @_;
	my @found;

	ask('CHECKPOINT');
	foreach my $file (glob $node->data_dir . '/base/*/*')
	{
		next unless -f $file && open my $fh, '<:raw', $file;
		local $/;
		push @found, $file =~ s/.*\/base\///r if index(<$fh> // '', $what) >= 0;
	}
	return @found;
}

# Those of the forgotten events that were sent after the call. A batch counts for each.
my %sent;

sub sent_again
{
	my %now = map { $_ => 0 } keys %sent;

	$now{ $_->{id} }++ foreach grep { defined $_->{id} && exists $sent{ $_->{id} } } $receiver->events;
	return grep { $now{$_} != $sent{$_} } sort keys %sent;
}

sub dump_of
{
	my ($from) = @_;
	my ($dump, $err);

	IPC::Run::run([ 'pg_dump', '-h', $from->host, '-p', $from->port, 'postgres' ], '>', \$dump, '2>', \$err);
	return $dump;
}

# --- Who may, and for whom

ask($_) foreach "CREATE ROLE portal; SELECT outbox.grant_to('portal', 'portal')",
  "CREATE ROLE watcher; SELECT outbox.grant_to('watcher', 'watch')", "CREATE ROLE app; SELECT outbox.grant_emit('app')",
  "CREATE ROLE operator; SELECT outbox.grant_to('operator', 'operate')";
refused("SET ROLE $_; SELECT outbox.forget('acme')", '42501', "$_ may not") foreach qw(portal watcher app);
refused("SET ROLE operator; SELECT outbox.forget('acme')", '42704', 'a tenant without endpoints and events');
refused('SELECT outbox.forget(NULL)', '22004', 'NULL');
refused("SELECT outbox.forget(E'a\\nb')", '22023', 'no name of a tenant');
refused("INSERT INTO outbox.outgoing (topic, tenant) VALUES ('a.b', 'acme')", '22004', 'a new event has a payload');
refused("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox.forget('acme')", '25001', 'an old snapshot');

# --- What there is: delivered, failed, dead, blocked, kept, scheduled, pending, under way

my $url = $receiver->url("/ok/acme/$marker");
ask(qq[SELECT outbox.create_endpoint('acme.own', '$url', topics => '{a.*,d.*}', tenant => 'acme',]
	  . qq[ headers => '{"x-token": "$marker"}', filter => '\$.secret == "$marker"')]);
my $secret = ask("SELECT outbox.endpoint_secret('acme.own')");
endpoint($node, $receiver, 'globex.own', '/ok/globex', "tenant => 'globex', topics => '{a.*,d.*}'");
endpoint($node, $receiver, 'archive', '/ok/archive', "topics => '{a.*,c.*}'");
endpoint($node, $receiver, 'dead', '/status/500', "topics => '{d.*}', max_attempts => 1, ordering => 'none'");
endpoint($node, $receiver, 'stuck', '/status/501', "topics => '{d.*}', max_attempts => 1, on_exhausted => 'block'");
endpoint($node, $receiver, 'broker', '/status/502', "topics => '{b.*}', $later");
# The answers have the marker, and so does what is kept of them.
$receiver->control(path => "/status/$_", behave => "/status/$_?body=$marker") foreach 500, 501, 502;

my $passed = emit_as('acme', 'a.old'); # all have passed it, and the log forgets it
my @old = map { emit_as('acme', $_) } qw(d.old d.old b.old b.old);
push @old, ask("SELECT outbox.emit('d.lane', '{}', key => 'lane', tenant => 'acme')");
ok(wait_sql($node, "SELECT sum(dead) = 5 AND sum(retrying) = 1 AND sum(blocked) = 2 FROM outbox.stats"),
	'dead letters, a retry, and what waits behind them')
  or diag ask('SELECT endpoint, pending, processing, retrying, blocked, dead FROM outbox.stats');
ok(wait_sql($node, "SELECT count(*) FILTER (WHERE response_body ~ '$marker') > 3 FROM outbox.attempts"), 'answers');

# Their events outlive their piece of the log.
ask("UPDATE outbox.pieces SET piece = 2, since = since - interval '8 days' WHERE log = 'events'");
ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%worker%'");
ok(wait_sql($node, 'SELECT count(*) = 5 FROM outbox.kept_events k WHERE NOT EXISTS (SELECT FROM outbox.events e WHERE e.seq = k.seq)'),
	'events that are kept');

set('outbox.workers_per_database', 3);
my $large = q[jsonb_build_object('secret', 'MARK', 'text', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i))];
my %mark = (acme => $marker, globex => $archive);
my @scheduled;
foreach my $tenant (qw(acme globex))
{
	my $mark = $mark{$tenant};
	my @ids = map { emit_as($tenant, $_) } qw(a.one d.one b.one b.two);

	push @scheduled, emit_as($tenant, 'a.later', ", deliver_at => now() + interval '1 day', dedup_key => '$mark-later'");
	push @ids, emit_as($tenant, 'a.once', ", dedup_key => '$mark-once'"),
	  ask("SELECT outbox.emit_bytes('c.bytes', '$mark', 'text/$mark', tenant => '$tenant')"),
	  ask("SELECT outbox.emit('a.large', " . ($large =~ s/MARK/$mark/r) . ", tenant => '$tenant')");
	push @old, @ids if $tenant eq 'acme';
	ok(wait_sql($node, "SELECT dead FROM outbox.stats WHERE endpoint = 'dead'", $tenant eq 'acme' ? 4 : 5), "$tenant: one more is dead");
	# The answers to the other tenant's events have another mark.
	$receiver->control(path => "/status/$_", behave => "/status/$_?body=$archive") foreach 500, 501, 502;
}
ok(wait_sql($node, "SELECT count(*) = 14 AND bool_and(status = 'delivered') FROM outbox.deliveries"
		  . " WHERE endpoint ~ 'own|archive' AND topic ~ '^[ac].(one|once|bytes|large)'"), 'others are delivered')
  or diag ask("SELECT endpoint, topic, tenant, status FROM outbox.deliveries WHERE endpoint ~ 'own|archive'");

# Pending ones, of both tenants, and one under way, with others behind it
endpoint($node, $receiver, 'paused', '/ok/paused', "topics => '{w.*}'");
endpoint($node, $receiver, 'held', '/hold/held', "topics => '{h.*}', max_in_flight => 1, timeout => '1 h'");
endpoint($node, $receiver, 'batch', '/status/503', "topics => '{m.*}', batch_size => 10, $later");
endpoint($node, $receiver, 'sleeping', '/ok/sleeping', "topics => '{z.*}'");
endpoint($node, $receiver, 'window', '/hold/window', "topics => '{v.*}', max_in_flight => 1, timeout => '1 h'");
ok(pause($node, $_), "$_: an endpoint is paused") foreach qw(paused sleeping);
my %wait = map { my $tenant = $_; $tenant => [ map { emit_as($tenant, 'w.one') } 1 .. 3 ] } qw(acme globex);
my %held = (acme => [ map { emit_as('acme', 'h.one') } 1 .. 2 ]);
$receiver->wait_for(1, path => '/hold/held');
$held{globex} = [ emit_as('globex', 'h.one') ];
ok(wait_sql($node, "SELECT sum(pending) = 8 AND sum(processing) = 1 AND bool_and(pending_exact) FROM outbox.stats WHERE endpoint IN ('paused', 'held')"),
	'what is pending')
  or diag ask('SELECT endpoint, pending, processing, pending_exact FROM outbox.stats');
push @old, @{ $wait{acme} }, @{ $held{acme} };
my @window = emit_as('globex', 'v.one');
$receiver->wait_for(1, path => '/hold/window');
push @window, map { emit_as($_, 'v.one') } qw(acme acme globex);
ok(wait_sql($node, "SELECT pending = 3 AND pending_exact FROM outbox.stats WHERE endpoint = 'window'"), 'and that was read');
my %asleep = map { $_ => emit_as($_, 'z.one') } qw(acme globex);
my @batch = split /\n/, ask(qq[SELECT outbox.emit('m.one', jsonb_build_object('secret', m), tenant => t) FROM (VALUES]
	  . qq[ ('acme', '$marker'), ('globex', '$archive'), ('acme', '$marker'), ('globex', '$archive')) v (t, m)]);
push @old, $asleep{acme}, @batch[0, 2], @window[1, 2];
ok(wait_sql($node, "SELECT retrying = 4 FROM outbox.stats WHERE endpoint = 'batch'"), 'a batch failed');
$receiver->control(path => '/status/503', behave => '/ok');
# One that is due soon after the call
push @scheduled, emit_as($_, 'a.soon', ", deliver_at => now() + interval '1 day'") foreach qw(acme globex);
push @old, split /\n/, ask(qq[SELECT outbox.emit('bulk.one', jsonb_build_object('n', n, 'secret', '$marker'), tenant => 'acme') FROM generate_series(1, 4000) n]);
push @old, split /\n/, ask(q[SELECT outbox.emit('a.first', '{}', tenant => 'initech')]);
$receiver->wait_delivered(1, id => $old[-1]);

# What must stay as it is.  Attempts of endpoints that are tried again are more later.
my $others = <<'SQL';
SELECT md5(string_agg(t, ',' ORDER BY t)) FROM (
    SELECT e::text FROM outbox.events e WHERE tenant = 'globex' AND topic <> 'a.soon'
    UNION ALL SELECT k::text FROM outbox.kept_events k WHERE tenant = 'globex'
    UNION ALL SELECT s::text FROM outbox.scheduled s WHERE tenant = 'globex' AND topic <> 'a.soon'
    UNION ALL SELECT d::text FROM outbox.dedup d WHERE tenant = 'globex'
    UNION ALL SELECT k::text FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE key ~ '^globex' AND s.name = 'stuck'
    UNION ALL SELECT a::text FROM outbox.attempt_log a WHERE seq IN (SELECT seq FROM outbox.events
        WHERE tenant = 'globex' AND topic = 'a.once')
    UNION ALL SELECT a::text FROM outbox.attempt_log a JOIN outbox.endpoint_settings s USING (endpoint_id)
        WHERE s.name = 'stuck' AND seq IN (SELECT seq FROM outbox.events WHERE tenant = 'globex')
    UNION ALL SELECT s::text FROM outbox.endpoint_settings s WHERE tenant = 'globex'
    UNION ALL SELECT s::text FROM outbox.endpoint_secrets s JOIN outbox.endpoint_settings USING (endpoint_id) WHERE tenant = 'globex') x (t)
SQL
ask('ANALYZE');
my $before = ask($others);
cmp_ok(scalar files_with($marker), '>', 5, 'files have the marker');
like(dump_of($node), qr/$marker/, 'and so has a dump');

# --- From the call on nothing is sent.  A trigger keeps the workers from emptying rows.

ask(<<'SQL');
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON outbox.events FOR EACH ROW EXECUTE FUNCTION public.refuse();
SQL
my %session = map { $_ => $node->background_psql('postgres') } qw(open row);
$session{open}->query_safe('BEGIN');
my $new = $session{open}->query_safe("SELECT outbox.emit('a.open', '{}', tenant => 'acme', dedup_key => 'open')");
$session{row}->query_safe("BEGIN; SELECT id FROM outbox.scheduled WHERE id = '$scheduled[0]' FOR UPDATE");
$sent{$_} = 0 foreach @old, @scheduled[0, 2];
$sent{ $_->{id} }++ foreach grep { defined $_->{id} && exists $sent{ $_->{id} } } $receiver->events;
my $asked = ask("BEGIN; SET ROLE operator; SELECT outbox.forget('acme');"
	  . " RESET ROLE; SELECT outbox.emit('a.told', '{}', tenant => 'acme'); COMMIT") =~ s/\s//gr;
ask("SELECT outbox.forget('initech')");
is(ask('SELECT tenant, endpoints, events, complete_at IS NULL, rewrite IS NULL FROM outbox.forget_progress ORDER BY 1'),
	"acme|1|0|t|t\ninitech|0|0|t|t", 'nothing is done yet');
is(ask("SELECT count(*) FROM outbox.endpoints WHERE tenant = 'acme'"), 0, 'its endpoint is dropped');
is(ask("SELECT count(*) FROM outbox.endpoint_secrets WHERE secret = '$secret'"), 0, 'and so is its secret');
is(ask("SELECT string_agg(DISTINCT status, ' ') FROM outbox.deliveries WHERE event_id IN ('" . join("', '", @old, $scheduled[0]) . "')"),
	'forgotten', 'its events are shown as forgotten at once');
$receiver->wait_delivered(1, id => $asked, path => '/ok/archive');
pass('what the same transaction emits is sent');
$session{open}->query_safe('COMMIT');
$receiver->wait_delivered(1, id => $new, path => '/ok/archive');
pass('and so is what a transaction emits that was open');

# What becomes due does not enter the log.
ask("UPDATE outbox.scheduled SET deliver_at = now() WHERE topic = 'a.soon'");
$receiver->wait_delivered(1, id => $scheduled[3], path => '/ok/archive');
is(ask("SELECT string_agg(id::text, ' ') FROM outbox.scheduled WHERE topic = 'a.soon'"), $scheduled[2], 'a scheduled event that is due stays');

# The worker of each endpoint has dropped its copies, here and after a restart.
foreach my $round (1, 2)
{
	ok(wait_sql($node, "SELECT count(*) = 3 FROM outbox.workers WHERE state = 'running'"), "round $round: three workers");
	ask("SELECT outbox.resume_endpoint('paused')");
	$receiver->wait_delivered(1, id => $_) foreach @{ $wait{globex} };
	$receiver->wait_for(1, id => $held{globex}[0]);
	$receiver->control(path => '/hold/window', behave => '/ok');
	$receiver->wait_delivered(1, id => $window[3]);
	ask("SELECT outbox.retry(name) FROM unnest('{dead,broker,batch}'::text[]) n (name)");
	ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.commands"), 'retries were asked for');
	ok(wait_until { 2 == grep { my $id = $_; $receiver->events(id => $id, delivered => 1) } @batch[1, 3] }, 'of a batch, the rest is sent');
	is(ask("SELECT outbox.replay('archive', now() - interval '1 day', topics => '{*.one,*.large,*.bytes}')"), 3, 'a replay');
	refused("SELECT outbox.resend('archive', '$old[5]')", '55000', 'nothing to send again');
	is(ask("SELECT outbox.wait_for('$wait{acme}[0]', '1 h')"), 'f', 'nothing to wait for');
	is(ask("SELECT outbox.cancel('$wait{acme}[0]')"), 'f', 'nothing to cancel');
	ok(wait_sql($node, "SELECT bool_and(finished_at IS NOT NULL) FROM outbox.replay_progress"), 'the replay has ended');
	ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.parked JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'archive'"), 'and left nothing');
	ok(wait_sql($node, "SELECT pending = 1 AND pending_exact FROM outbox.stats WHERE endpoint = 'sleeping'"), 'what is pending for a paused one');
	ok(wait_sql($node, q[SELECT string_agg(labels ->> 'endpoint' || '=' || value, ' ' ORDER BY 1) FROM outbox.metrics(100)]
			  . q[ WHERE name = 'outbox_endpoint_cancelled_total' AND labels ->> 'endpoint' IN ('paused', 'held', 'window')], 'held=2 paused=3 window=2'),
		'what was pending counts as cancelled, once')
	  or diag ask(q[SELECT labels, value FROM outbox.metrics(100) WHERE name ~ 'cancelled']);
	next if $round == 2;
	ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%worker%'");
}
is(join(' ', sent_again()), '', 'nothing of it was sent');
is(ask("SELECT count(*) FROM outbox.events WHERE payload::text ~ '$marker'") > 4000, 1, 'although the log still has it');
my $midway = dump_of($node);

# --- The rows are emptied, through a crash.

ok(wait_sql($node, "SELECT DISTINCT last_error FROM outbox.held_steps WHERE step = 'forget'", 'not now'), 'the step is on hold');
ask('DROP TRIGGER refuse ON outbox.events; SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT events > 0 FROM outbox.forget_progress WHERE tenant = 'acme'"), 'it has begun');
my $pid = worker_pid($node);
kill 'KILL', $pid;
new_worker($node, $pid);
ok(wait_sql($node, 'SELECT count(*) = 2 AND bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress'), 'it is complete')
  or diag ask('SELECT * FROM outbox.forget_progress'), ask('SELECT * FROM outbox.held_steps'), ask('SELECT * FROM outbox.set_aside');
eval { $_->quit } foreach values %session;

is(ask("SELECT endpoints, events, scheduled, dedup_keys, attempts >= 9, deliveries >= 4 FROM outbox.forget_progress WHERE tenant = 'acme'"),
	join('|', 1, scalar(@old) - 1, 2, 2, 't', 't'), 'what was removed, and what requests that were broken off have left');
foreach my $table (qw(events kept_events parked attempt_log scheduled dedup endpoint_settings endpoint_secrets subscriptions commands))
{
	is(ask("SELECT count(*) FROM outbox.$table t WHERE t::text ~ '$marker' OR t::text ~ encode('$marker', 'hex')"), 0, "nothing is left in $table");
}
is(ask($others), $before, 'the data of another tenant is as before');
is(ask("SELECT string_agg(DISTINCT status, ' ') FROM outbox.deliveries WHERE event_id IN ('" . join("', '", @old, $scheduled[0]) . "')"), 'forgotten', 'its events are forgotten');
is(ask("SELECT count(*) FROM outbox.all_events WHERE id IN ('" . join("', '", @old) . "') AND forgotten AND created_at IS NOT NULL AND topic IS NOT NULL"),
	scalar(@old), 'and can be looked up');
is(ask("SELECT string_agg(DISTINCT error, ' ') || count(response_body) FROM outbox.attempts WHERE event_id IN ('" . join("', '", @old) . "') AND error IS NOT NULL"),
	'forgotten0', 'attempts are shown without what was said');
is(ask(<<'SQL'), '', 'the numbers of outbox.stats are those of the rows');
SELECT s.* FROM (SELECT endpoint, retrying, blocked, dead FROM outbox.stats) s
WHERE (retrying, blocked, dead) <> (SELECT count(*) FILTER (WHERE k.status = 'retrying'), count(*) FILTER (WHERE k.status = 'blocked'), count(*) FILTER (WHERE k.status = 'dead')
    FROM outbox.parked k JOIN outbox.endpoint_settings p USING (endpoint_id) WHERE p.name = s.endpoint)
SQL

# --- A new event is an event as any, and no lane is stuck.

$receiver->control(path => $_, behave => '/ok') foreach qw(/status/500 /status/501 /hold/held);
my $behind = ask("SELECT outbox.emit('d.lane', '{}', key => 'lane', tenant => 'acme')");
my $free = ask("SELECT outbox.emit('h.lane', '{}', key => '$archive-key', tenant => 'globex')");
$receiver->wait_delivered(1, id => $behind, path => $_) foreach qw(/status/500 /status/501);
$receiver->wait_delivered(1, id => $_, path => '/hold/held') foreach @{ $held{globex} }, $free;
is(ask("SELECT string_agg(DISTINCT status, ' ') FROM outbox.deliveries WHERE event_id IN ('$new', '$asked', '$behind')"), 'delivered', 'later events are delivered')
  if ok(wait_sql($node, "SELECT bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id IN ('$new', '$asked', '$behind')"), 'settled');
is(ask("SELECT outbox.emit('a.open', '{}', tenant => 'acme', dedup_key => 'open')"), $new, 'and keep their deduplication keys');
is(join(' ', sent_again()), '', 'nothing of the old ones was sent');

# --- Neither a dump nor a file has it.

my $dump = dump_of($node);
unlike($dump, qr/$marker/, 'a dump has nothing of it');
like($dump, qr/$archive/, 'but of the other tenant');
my $rewrite = ask("SELECT array_to_string(rewrite, ', ') FROM outbox.forget_progress WHERE tenant = 'acme'");
like($rewrite, qr/outbox\.$_\b/, "$_ is to be rewritten") foreach qw(attempt_log_0 dedup endpoint_secrets events_0 kept_events parked scheduled);
# Once more where a snapshot was older than the last slice
ok(wait_until { ask("VACUUM FULL $_") foreach split /, /, $rewrite; !files_with($marker) }, 'no file has anything of it')
  or diag join ' ', files_with($marker);
is(ask("SELECT string_agg(array_to_string(rewrite, ', '), '') FROM outbox.forget_progress"), '', 'nothing is left to rewrite');
isnt(join(' ', files_with($archive)), '', 'but of the other tenant');

# --- What a transaction of the call, a lock and an attempt that cannot be written hold up

$session{$_} = $node->background_psql('postgres') foreach qw(call row);
my %soon = map { $_ => emit_as($_, 'a.soon', ", deliver_at => now() + interval '1 day'") } qw(initech umbrella globex);
emit_as('umbrella', 'a.late');
$session{call}->query_safe("BEGIN; SELECT outbox.forget('initech')");
ask("UPDATE outbox.scheduled SET deliver_at = now() WHERE tenant = 'initech'");
nothing_arrives($receiver, 'no scheduled event enters the log while the call is open', 2, id => $soon{initech});
$session{call}->query_safe('COMMIT');
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'initech' ORDER BY requested_at DESC LIMIT 1"), 'then it is forgotten');
nothing_arrives($receiver, 'and not sent', 0, id => $soon{initech});

$session{row}->query_safe("BEGIN; SELECT id FROM outbox.scheduled WHERE tenant = 'umbrella' FOR UPDATE");
ask(<<'SQL');
CREATE TRIGGER refuse BEFORE INSERT ON outbox.attempt_log_0 FOR EACH ROW EXECUTE FUNCTION public.refuse();
SQL
$receiver->control(path => '/status/500', behave => "/status/500?body=$marker");
emit_as('umbrella', 'd.late');
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.held_steps WHERE step = 'attempts'"), 'an attempt cannot be written');
ask("SELECT outbox.forget('umbrella')");
usleep(1_000_000);
my $umbrella = "SELECT events, scheduled, attempts, complete_at IS NULL FROM outbox.forget_progress WHERE tenant = 'umbrella'";
is(ask($umbrella), '0|0|0|t', 'it waits for the attempt');
ask('DROP TRIGGER refuse ON outbox.attempt_log_0; SELECT pg_reload_conf()');
ok(wait_sql($node, $umbrella, '2|0|1|t'), 'then all but the locked row is removed') or diag ask($umbrella);
$session{row}->query_safe('ROLLBACK');
ok(wait_sql($node, $umbrella, '2|1|1|f'), 'and then that one') or diag ask($umbrella);
is(ask("SELECT count(*) FROM outbox.attempt_log WHERE response_body ~ '$marker'"), 0, 'the late attempt, too');
eval { $_->quit } foreach values %session;

# --- Events that no worker has read, and an endpoint that is too far behind

set('outbox.enabled', 'off');
ok(wait_sql($node, "SELECT bool_and(state = 'disabled') FROM outbox.workers"), 'nothing is read');
my @unread = split /\n/, ask("SELECT outbox.emit('a.head', '{}', tenant => 'hooli') FROM generate_series(1, 3)");
ask("SELECT outbox.forget('hooli')");
ok(wait_sql($node, "SELECT complete_at IS NOT NULL FROM outbox.forget_progress WHERE tenant = 'hooli'"), 'it is carried out all the same');
set('outbox.enabled', 'on');
my $last = emit_as('globex', 'a.last');
$receiver->wait_delivered(1, id => $last, path => '/ok/archive');
ok(wait_sql($node, "SELECT pending = 0 AND pending_exact FROM outbox.stats WHERE endpoint = 'archive'"), 'nothing of it is pending')
  or diag ask("SELECT * FROM outbox.stats WHERE endpoint = 'archive'");
is(scalar(grep { my $id = $_; () = $receiver->requests(id => $id) } @unread), 0, 'and nothing was sent');
ask(q[SELECT count(outbox.emit('x.filler', jsonb_build_object('text', repeat('x', 200)))) FROM generate_series(1, 10000)]);
set('outbox.max_backlog_size', q['1 MB']);
ok(wait_sql($node, "SELECT retrying = 1 AND pending = 0 FROM outbox.stats WHERE endpoint = 'sleeping'"), 'of a log that is too large, the rest is kept')
  or diag ask("SELECT * FROM outbox.stats WHERE endpoint = 'sleeping'");
is(ask("SELECT event_id FROM outbox.log_deliveries WHERE endpoint = 'sleeping' AND status = 'retrying'"), $asleep{globex}, 'and shown');

# --- A copy that was made before it was complete goes on when it is adopted.

$node->stop;
my $copy = outbox_node('copy', conf => $conf, extension => 0);
$copy->safe_psql('postgres', "CREATE ROLE $_") foreach qw(portal watcher app operator);
my $file = PostgreSQL::Test::Utils::tempdir() . '/midway';
append_to_file($file, $midway);
$copy->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $file, $copy->connstr('postgres') ], 'restored');
is($copy->safe_psql('postgres', 'SELECT count(*) FROM outbox.forget_progress WHERE complete_at IS NULL'), 2, 'both are open in the copy');
like(($copy->psql('postgres', "SELECT outbox.forget('acme')"))[2], qr/copy that was not adopted/, 'a copy refuses more');
$copy->safe_psql('postgres', 'DROP TRIGGER IF EXISTS refuse ON outbox.events; SELECT outbox.adopt()');
ok(wait_sql($copy, 'SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress'), 'complete there, too')
  or diag $copy->safe_psql('postgres', 'SELECT * FROM outbox.forget_progress');
unlike(dump_of($copy), qr/$marker/, 'nothing is left');
$copy->safe_psql('postgres', "SELECT outbox.rotate_secret('sleeping', '0'), outbox.resume_endpoint('sleeping')");
$receiver->control(path => '/ok/sleeping', secret => $copy->safe_psql('postgres', "SELECT outbox.endpoint_secret('sleeping')"));
$receiver->wait_delivered(1, id => $asleep{globex});
is(join(' ', sent_again()), '', 'and nothing was sent');
$copy->safe_psql('postgres', 'CREATE DATABASE after');
unlink $file;
append_to_file($file, $dump);
$copy->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $file, $copy->connstr('after') ], 'and what was dumped later can be restored');
is($copy->safe_psql('after', "SELECT count(*) FROM outbox.all_events WHERE tenant = 'acme' AND forgotten"), scalar(@old) - 1, 'with the rows that were emptied');
$copy->stop;
done_testing();
