# forget() with a key removes the content of one person's events, and of no other.
# The endpoints of the tenant stay, and so does what the same key is to another tenant.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $marker = 'XYZZYanna';
my $other = 'XYZZYbert';

sub emit_of
{
	my ($tenant, $key, $topic, $more) = @_;
	my $said = $tenant eq 'acme' ? $key : "$other of $tenant";
	return ask(qq[SELECT outbox.emit('$topic', '{"of": "$said"}', key => '$key', tenant => '$tenant', headers => '{"x-of": "$said"}']
		  . ($more ? ", $more" : '') . ')');
}

endpoint($node, $receiver, 'acme.own', '/ok/acme', "tenant => 'acme', topics => '{a.*}'");
endpoint($node, $receiver, 'acme.paused', '/ok/paused', "tenant => 'acme', topics => '{p}'");
ask("SELECT outbox.pause_endpoint('acme.paused')");
endpoint($node, $receiver, 'dead', '/status/500', "topics => '{d}', max_attempts => 1, on_exhausted => 'block'");
endpoint($node, $receiver, 'retrying', '/status/501', "topics => '{r}', backoff_base => '1 h', backoff_max => '1 h', ordering => 'none'");
$receiver->control(path => "/status/$_", behave => "/status/$_?body=$marker") foreach 500, 501;

my @keys = ([ 'acme', $marker ], [ 'acme', $other ], [ 'globex', $marker ]);
my (%of, @gone);
foreach my $who (@keys)
{
	my $name = join ' ', @$who;
	push @{ $of{$name} }, map { emit_of(@$who, $_) } qw(a.b d d r p);
	push @{ $of{$name} }, emit_of(@$who, 'a.c', "dedup_key => 'once $who->[1]'");
	push @{ $of{$name} }, emit_of(@$who, 'a.d', "deliver_at => now() + interval '1 day', dedup_key => 'later $who->[1]'");
}
@gone = @{ $of{"acme $marker"} };
ok(wait_sql($node, "SELECT sum(dead) = 3 AND sum(retrying) = 3 AND sum(blocked) = 3 AND sum(delivered) = 4 FROM outbox.stats"), 'dead, retrying, blocked and delivered')
  or diag ask('SELECT endpoint, pending, retrying, blocked, dead, delivered FROM outbox.stats');
ok(wait_sql($node, "SELECT count(*) > 5 FROM outbox.attempts"), 'attempts');

# What must not change
my $kept = join ' UNION ALL ', map {
	"SELECT md5(string_agg(t::text, ' ' ORDER BY t::text)) || count(*) FROM outbox.$_ t WHERE payload IS NOT NULL AND (tenant, key) IS DISTINCT FROM ('acme', '$marker')"
} qw(events scheduled);
my $before = ask($kept);
# adopt() writes them with another number and origin
my $has = join ' UNION ALL ', map {
	"SELECT string_agg(id::text || payload::text, ' ' ORDER BY id) FROM outbox.$_ WHERE payload IS NOT NULL AND (tenant, key) IS DISTINCT FROM ('acme', '$marker')"
} qw(events scheduled);
my $had = ask($has);
my $dedup = ask("SELECT count(*) FROM outbox.dedup");

is(($node->psql('postgres', "SELECT outbox.forget('acme', '')"))[0], 3, 'an empty key is refused');
like(($node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT outbox.forget('acme', NULL)"))[2], qr/22004/, 'nor is the whole tenant forgotten for a key that is NULL');

# Until a worker has carried it out
my $replay = "BEGIN; SELECT outbox.replay('acme.own', now() - interval '1 day'); ROLLBACK";
is(ask($replay), 4, 'a replay has the events of two persons');
my $worker = worker_pid($node);
kill 'STOP', $worker;
ask("SELECT outbox.forget('acme', '$marker')");
my $ids = "'" . join("', '", @gone) . "'";
is(ask("SELECT count(*) FILTER (WHERE NOT forgotten) FROM outbox.all_events WHERE id IN ($ids)"), 0, 'from its commit on they are forgotten');
is(ask("SELECT string_agg(DISTINCT key || ' ' || status, ', ' ORDER BY key || ' ' || status) FROM outbox.deliveries WHERE endpoint = 'acme.own' AND seq IS NULL"),
	"$marker forgotten, $other scheduled", 'scheduled events of the other person are not');
is(ask($replay), 2, 'a replay counts what it sends');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'dumped meanwhile');
kill 'CONT', $worker;
ok(wait_sql($node, 'SELECT complete_at IS NOT NULL FROM outbox.forget_progress'), 'it is complete') or diag ask('SELECT * FROM outbox.held_steps');
is(ask('SELECT tenant, key, endpoints, events, scheduled, dedup_keys, deliveries FROM outbox.forget_progress'), 'acme|forgotten|0|6|1|2|3', 'what was removed');
foreach my $table (qw(events kept_events parked attempt_log scheduled dedup forgotten commands))
{
	my $mine = "t::text ~ '$marker' OR t::text ~ encode('$marker', 'hex')";
	$mine = "($mine) AND t.tenant = 'acme'" if $table =~ /events|scheduled|dedup/;
	$mine = "($mine) AND t.seq IN (SELECT seq FROM outbox.events WHERE id IN ($ids))" if $table =~ /parked|attempt_log/;
	is(ask("SELECT count(*) FROM outbox.$table t WHERE $mine"), 0, "nothing is left in $table");
}
is(ask($kept), $before, 'events of others are as before');
is(ask('SELECT count(*) FROM outbox.dedup'), $dedup - 2, 'and their deduplication keys');
is(ask("SELECT string_agg(DISTINCT status, ' ') FROM outbox.deliveries WHERE event_id IN ($ids)"), 'forgotten', 'it is shown');
is(ask("SELECT count(*) FROM outbox.endpoints WHERE tenant = 'acme'"), 2, 'the endpoints are there');
like(ask('SELECT rewrite FROM outbox.forget_progress'), qr/outbox\.forgotten/, 'the table that had the key is to be rewritten');

# What comes later is new, and what waits for others is sent.
ask("SELECT outbox.resume_endpoint('acme.paused')");
$receiver->control(path => $_, behave => '/ok') foreach qw(/status/500 /status/501);
ask("SELECT outbox.retry('$_')") foreach qw(dead retrying);
my @new = map { emit_of('acme', $marker, $_) } qw(a.b d r p);
ok(wait_sql($node, "SELECT bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id IN ('" . join("', '", @new) . "')"), 'new events of the key are delivered');
$receiver->wait_delivered(1, id => $_) foreach @new, @{ $of{"acme $other"} }[ 4 ];
my %sent = map { $_->{id} => 1 } $receiver->events;
ok(!$sent{ $gone[4] }, 'what waited for the paused endpoint was not sent');
ok($sent{ $of{"acme $other"}[4] }, 'that of the other person was');
is(emit_of('acme', $marker, 'a.c', "dedup_key => 'once $marker'") eq $gone[5], '', 'its deduplication keys may be used again');
is(emit_of('globex', $marker, 'a.c', "dedup_key => 'once $marker'"), $of{"globex $marker"}[5], 'those of another tenant count');

# A filter has no payload to judge then.
endpoint($node, $receiver, 'filtered', '/ok/filtered', "topics => '{f}', filter => '\$.of starts with \"$other\"'");
my $judged = emit_of('globex', 'later', 'f');
wait_status($node, $judged, 'delivered', 'an endpoint with a filter has got an event');
ask("SELECT outbox.forget('globex', 'later')");
ok(wait_sql($node, 'SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress'), 'which is forgotten');
is(ask("SELECT status FROM outbox.deliveries WHERE event_id = '$judged'"), 'forgotten', 'and shown there');

# The rule which events are meant stands once: its conditions are those of the statement, where indexes serve them
foreach my $relation (qw(all_events deliveries))
{
	my $plan = ask("EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM outbox.$relation");
	like($plan, qr/pg_visible_in_snapshot\(outbox\.log_xid\([^)]*\), f\w*\.snapshot\)/, "outbox.$relation has the rule");
	unlike($plan, qr/forgets/, 'and calls no function for it');
}

# A copy that was made before it was complete
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, $node->connstr('copy') ], 'restored');
is($node->safe_psql('copy', $kept), $before, 'with all events of others');
$node->safe_psql('copy', 'SELECT outbox.adopt()');
is($node->safe_psql('copy', $has), $had, 'which adopt() leaves');
ok(wait_sql($node, 'SELECT complete_at IS NOT NULL FROM outbox.forget_progress', 't', 'copy'), 'it is complete there');
is($node->safe_psql('copy', $has), $had, 'which the workers leave, too');
is($node->safe_psql('copy', "SELECT count(*) FROM outbox.all_events WHERE key = '$marker' AND tenant = 'acme'"), 0, 'of the person nothing is left');
$node->stop;

done_testing();
