# outbox.metrics() has every figure in one quick query, and its counters never go down.
# Neither a clean nor an unclean restart takes back a count that was shown.  With many
# endpoints, those that need attention have series, and the sums have them all.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# Commits of the worker are flushed late, so that a crash takes back what it may.
my $node = outbox_node('main', conf => "wal_writer_delay = '10 s'\nrestart_after_crash = on\n");
my $receiver = OutboxTest::Receiver->new('main');

# {"name label": value}
sub metrics
{
	my ($more) = @_;
	my %of;
	foreach (split /\n/, ask("SELECT name || COALESCE((SELECT string_agg(' ' || l.value, '' ORDER BY l.key <> 'endpoint') FROM jsonb_each_text(labels) l), ''),"
			  . " '=', value FROM outbox.metrics(" . ($more // '') . ')'))
	{
		my ($name, $value) = split /\|=\|/;
		$of{$name} = $value;
	}
	return \%of;
}

sub counters
{
	my ($of) = @_;
	return { map { $_ => $of->{$_} } grep { /_total\b/ } keys %$of };
}

sub wait_metric
{
	my ($name, $value, $top) = @_;
	my $got;
	my $ok = wait_until
	{
		ask(q{SELECT pg_logical_emit_message(true, '', '')});    # flushes the WAL, which counters wait for
		$got = metrics($top)->{$name};
		defined $got && $got == $value;
	}
	"$name is $value";
	ok($ok, "$name is $value") or diag('it is ' . ($got // 'not there'));
	return;
}

# What an exporter is granted is enough
$node->safe_psql('postgres',
	'CREATE ROLE prometheus LOGIN; GRANT USAGE ON SCHEMA outbox TO prometheus; GRANT EXECUTE ON FUNCTION outbox.metrics TO prometheus');
is( $node->safe_psql('postgres', "SELECT value FROM outbox.metrics() WHERE labels ->> 'state' = 'running'",
		extra_params => [ '-U', 'prometheus' ]),
	'1', 'a role with EXECUTE on it sees the figures');

endpoint($node, $receiver, 'good', '/ok/good', "topics => '{a.*}'");
endpoint($node, $receiver, 'bad', '/status/503/bad',
	"topics => '{a.*}', ordering => 'none', max_attempts => 2, backoff_base => '10 ms', backoff_max => '20 ms'");
endpoint($node, $receiver, 'paused', '/ok/paused', "topics => '{a.*}'");
ok(pause($node, 'paused'), 'paused');
my $cancelled = ask("SELECT outbox.emit('a.x', '{}'), outbox.emit('a.x', '{}'), outbox.emit('b.x', '{}'),"
	  . " outbox.emit('a.y', '{}', dedup_key => 'k'), outbox.emit('a.y', '{}', dedup_key => 'k'),"
	  . " outbox.emit('a.z', '{}', deliver_at => now() + interval '1 day')");
$cancelled =~ s/\|.*//s;
ask("SELECT outbox.cancel('$cancelled', 'paused')");
wait_metric('outbox_endpoint_delivered_total good', 3);
wait_metric('outbox_endpoint_failed_attempts_total bad http_5xx', 6);
wait_metric('outbox_endpoint_died_total bad max_attempts', 3);
wait_metric('outbox_endpoint_cancelled_total paused', 1);
wait_metric('outbox_deduplicated_total', 1);
wait_metric('outbox_unmatched_total', 1);
wait_metric('outbox_delivered_total', 3);
wait_metric('outbox_failed_attempts_total http_5xx', 6);
wait_metric('outbox_died_total max_attempts', 3);
wait_metric('outbox_cancelled_total', 1);
wait_metric('outbox_endpoint_deliveries paused pending', 2);
wait_metric('outbox_deliveries stopped', 2);
wait_metric('outbox_deliveries pending', 0);

# The view and the figures say the same
my $of = metrics();
is($of->{'outbox_emitted_total'}, 4, 'emitted: what entered the log');
is($of->{'outbox_oldest_pending_seconds'}, undef, 'what waits at a paused endpoint is not late');
is($of->{'outbox_scheduled_events'}, 1, 'scheduled');
cmp_ok($of->{'outbox_scheduled_due_in_seconds'}, '>', 80000, 'and when it is due');
is($of->{'outbox_endpoints active'} + $of->{'outbox_endpoints paused'} + $of->{'outbox_endpoints backing_off'}, 3, 'endpoints');
is($of->{'outbox_endpoint_state paused paused'}, 1, 'the state of an endpoint');
is($of->{'outbox_deliveries dead'}, ask('SELECT sum(dead) FROM outbox.stats'), 'dead letters');
is( join('|', map { $of->{$_} } qw(outbox_log_bytes outbox_attempts_bytes outbox_parked_bytes)),
	ask('SELECT log_bytes, attempts_bytes, parked_bytes FROM outbox.status'), 'sizes');
cmp_ok($of->{'outbox_parked_bytes'}, '>', 8192, 'dead letters have a size');
is(ask('SELECT scheduled, next_due_at > now() FROM outbox.status'), '1|t', 'the view has what is scheduled, too');
is(ask("SELECT count(*) FROM outbox.metrics() WHERE type IS NULL OR help IS NULL OR value IS NULL OR labels IS NULL"),
	0, 'every figure has a type, a help and a value');
# A source that has answered, and whose subscription is gone since: follow/server_without_library has real ones
ask("INSERT INTO outbox.followed (name, subscription, slot, keep, taken, taken_at, taken_lsn, round, timelines, answered_at, behind, retained, room)"
	  . " VALUES ('shop', 1, 'outbox_shop', '1 day', '10:10:', now(), '0/0', 1, '{}', now(), 1, 2, 3)");
is(metrics()->{'outbox_source_lost shop'}, 1, 'a source that is lost');
ask("UPDATE outbox.followed SET answered_at = NULL, followed_at = now() - interval '1 hour'");
cmp_ok(metrics()->{'outbox_source_answered_seconds shop'} // 0, '>=', 3600, 'one that has never answered has been silent since it is followed');
# 516 has those of tenants
is(ask("SELECT string_agg(metric, ', ') FROM outbox.metric_names n WHERE NOT EXISTS (SELECT FROM outbox.metrics() m WHERE m.name = n.metric)"
		. " AND metric <> 'outbox_oldest_pending_seconds' AND metric NOT LIKE 'outbox\\_tenant\\_%'"), '', 'every figure of the list was seen');
is(ask("SELECT count(*) FROM (SELECT name, labels FROM outbox.metrics() GROUP BY 1, 2 HAVING count(*) > 1) d"), 0, 'each once');
is(ask("SELECT string_agg(DISTINCT type, ',' ORDER BY type) FROM outbox.metrics() WHERE name LIKE '%\\_total'"), 'counter', 'counters are called so');

# A clean restart
my $before = counters(metrics());
$node->restart;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
wait_metric('outbox_endpoint_died_total bad max_attempts', 3);
wait_metric('outbox_died_total max_attempts', 3);
is_deeply(counters(metrics()), $before, 'a clean restart keeps every count');
ask("SELECT outbox.emit('a.x', '{}')");
wait_metric('outbox_endpoint_died_total bad max_attempts', 4);

# An unclean one: what is delivered shows at once in outbox.stats, and is lost there
endpoint($node, $receiver, 'late', '/hold/late', "topics => '{late.*}', max_in_flight => 100");
ask("SELECT count(outbox.emit('late.x', '{}')) FROM generate_series(1, 100)");
$receiver->wait_for(100, path => '/hold/late');
ask('SELECT pg_current_xact_id()');    # the last flush for now
$receiver->control(path => '/hold/late', behave => '/ok');
ok(wait_sql($node, "SELECT delivered = 100 FROM outbox.stats WHERE endpoint = 'late'"), 'delivered');
$before = counters(metrics());
note("shown of 100 deliveries: $before->{'outbox_endpoint_delivered_total late'}, of all: $before->{outbox_delivered_total}");
$receiver->control(path => '/hold/late', behave => '/hang');
$node->stop('immediate');
$node->start;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
ok(wait_until { defined metrics()->{'outbox_endpoint_delivered_total late'} && defined metrics()->{outbox_delivered_total} } 'counts');
my $after = counters(metrics());
is(join(', ', grep { $after->{$_} < $before->{$_} } grep { !/restarts/ } sort keys %$before), '', 'an unclean restart takes back no count that was shown');
note("after the crash: $after->{'outbox_endpoint_delivered_total late'}, of all: $after->{outbox_delivered_total}");
$receiver->control(path => '/hold/late', behave => '/ok');
ask('SELECT outbox.alter_endpoint(\'late\', timeout => \'1 s\')');

# An endpoint that is dropped stays in the totals
ask("SELECT outbox.drop_endpoint('late', discard => true)");
ok(wait_until { !defined metrics()->{'outbox_endpoint_delivered_total late'} } 'its series end');
cmp_ok(metrics()->{outbox_delivered_total}, '>=', $after->{outbox_delivered_total}, 'and the total does not go down');

# Many
my $many = 10_000;
ask("SELECT outbox.create_endpoint('many' || i, '" . $receiver->url('/ok/many') . "', topics => '{many.*}') FROM generate_series(1, $many) i");
ok(wait_sql($node, "SELECT value = 0 FROM outbox.metrics() WHERE name = 'outbox_endpoints' AND labels ->> 'state' = 'unknown'"),
	'every endpoint is published');
endpoint($node, $receiver, 'gone', '/status/410/gone', "topics => '{gone.*}'");
ask("BEGIN; SELECT outbox.create_endpoint('old', 'http://127.0.0.1:1/', topics => '{gone.*}');"
	  . " UPDATE outbox.endpoint_settings SET state = 'disabled', reason = 'by the test', state_since = now() - interval '2 days' WHERE name = 'old'; COMMIT");
emit($node, 'gone.x', '{}');
wait_metric('outbox_endpoints disabled', 2, 0);
$of = metrics(5);
is((grep { /^outbox_endpoint_state / } keys %$of), 5, 'so many series as were asked for');
ok(exists $of->{'outbox_endpoint_delivered_total bad'}, 'the one with dead letters is among them');
is((join ' ', grep { /^outbox_endpoint_state (?:paused|gone|old) / } keys %$of), 'outbox_endpoint_state gone disabled', 'and one that was just disabled, but none that is paused, or was disabled before');
is($of->{'outbox_endpoints active'} + $of->{'outbox_endpoints paused'} + $of->{'outbox_endpoints backing_off'}, $many + 3, 'all are in the sums');
is((grep { /^outbox_endpoint_/ } keys %{ metrics(0) }), 0, 'or none');
# The CPU time of the session is asked, because other processes may use the machine.
my ($wall, $ticks) = split /\|/, ask(<<'SQL');
CREATE TEMPORARY TABLE took (ms float8);
CREATE FUNCTION pg_temp.ticks() RETURNS int8 LANGUAGE sql VOLATILE AS $$
	SELECT f[12]::int8 + f[13]::int8
	FROM regexp_split_to_array(substring(pg_read_file('/proc/self/stat', 0, 1000) FROM '\) (.*)'), ' ') f
$$;
CREATE TEMPORARY TABLE began AS SELECT pg_temp.ticks();
DO $$
DECLARE
	t timestamptz;
BEGIN
	FOR i IN 1 .. 20 LOOP
		t := clock_timestamp();
		PERFORM count(*) FROM outbox.metrics();
		INSERT INTO took SELECT EXTRACT(epoch FROM clock_timestamp() - t) * 1000;
	END LOOP;
END $$;
SELECT min(ms), (SELECT pg_temp.ticks() - ticks FROM began) FROM took
SQL
note("a scrape with $many endpoints took at least $wall ms, and " . $ticks * 10 / 20 . ' ms of CPU time');
cmp_ok($ticks * 10 / 20, '<', 50, 'a scrape takes less than 50 ms');

$node->stop;
done_testing();
