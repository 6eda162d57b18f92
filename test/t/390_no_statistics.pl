# No statement of the worker needs statistics of the planner.
# Autovacuum is off, and the tables were vacuumed while they were empty, which is the worst that
# the planner can be told.  auto_explain shows what each statement has read.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'auto_explain is not installed' if !is_installed('auto_explain');

my $rows = $ENV{ROWS} // 6_000;
my $keys = $rows / 4;

# The longest slice of any step is 5,000 rows.
my $most_rows = 5_500;

my $node = outbox_node('main', conf => <<'CONF');
shared_preload_libraries = 'outbox, auto_explain'
autovacuum = off
log_line_prefix = '%m [%p] %b: '
auto_explain.log_min_duration = -1
auto_explain.log_analyze = on
auto_explain.log_timing = off
auto_explain.log_buffers = on
auto_explain.log_format = json
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

ask("SELECT format('VACUUM outbox.%I', relname) FROM pg_class"
	  . " WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' \\gexec");
$node->append_conf('postgresql.conf', 'auto_explain.log_min_duration = 0');
$node->reload;

# ------------------------------------------------------------ what was read

# Adds what a node of a plan has read to the sum, and that of the nodes below it.
sub read_by
{
	my ($plan) = @_;
	my $loops = $plan->{'Actual Loops'} // 1;
	my $sum = 0;

	$sum = $loops * (($plan->{'Actual Rows'} // 0) + ($plan->{'Rows Removed by Filter'} // 0)
		  + ($plan->{'Rows Removed by Index Recheck'} // 0))
	  if defined $plan->{'Relation Name'} && $plan->{'Node Type'} =~ /Scan/;
	$sum += read_by($_) foreach @{ $plan->{Plans} // [] };
	return $sum;
}

my $offset = -s $node->logfile;
my %worst;

# Judges the statements of the worker since the last call.
sub judge
{
	my ($what) = @_;
	my $log = slurp_file($node->logfile, $offset);
	my $n = 0;
	my @rows;

	$offset += length $log;
	while ($log =~ /^\S+ \S+ \S+ \[\d+\] outbox worker[^\n]*: LOG:  duration: [\d.]+ ms  plan:\n((?:\t[^\n]*\n)+)/mg)
	{
		my $explained = decode_json($1);
		my $plan = $explained->{Plan};
		my ($read, $pages) = (read_by($plan), $plan->{'Shared Hit Blocks'} + $plan->{'Shared Read Blocks'});
		my $text = $explained->{'Query Text'} =~ s/\s+/ /gr;

		$n++;
		# The next scheduled event is behind those of the tenant that is being forgotten.
		my $most = $text =~ /^SELECT s.deliver_at, s.id FROM outbox.scheduled/ ? 3 * $most_rows : $most_rows;
		push @rows, "$read: $text" if $read > $most;
		$worst{$text} //= [ 0, 0, 0 ];
		$worst{$text}[0] = $read if $worst{$text}[0] < $read;
		$worst{$text}[1] = $pages if $worst{$text}[1] < $pages;
		$worst{$text}[2]++;
	}
	cmp_ok($n, '>', 0, "$what: $n statements were explained");
	is(join("\n", @rows), '', "$what: none has read more than $most_rows rows");
	return;
}

sub stats_show
{
	my ($condition, $name) = @_;

	ok(wait_sql($node, "SELECT $condition FROM outbox.stats WHERE endpoint = 'bulk'"), $name);
	return;
}

# ------------------------------------------------- plans that were made for empty tables

endpoint($node, $receiver, 'first', '/flaky/first?first=1',
	"topics => '{first.*}', backoff_base => '10 ms', backoff_max => '10 ms'");
$receiver->wait_delivered(1, id => emit($node, 'first.n', '0', "key => 'k'"));
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.parked'), 'a retry of one event');

# With 40 endpoints, memory has 500 retries of each.
ask("SELECT outbox.create_endpoint('idle' || n, '" . $receiver->url('/ok') . "', topics => '{idle}')"
	  . " FROM generate_series(1, 38) n");
ask("SELECT count(outbox.emit('bulk.n', to_jsonb(n), key => 'k' || n % $keys)) FROM generate_series(1, $rows) n");
my $url = $receiver->url('/ok/bulk');
ask(<<"SQL");
BEGIN;
SELECT outbox.create_endpoint('bulk', '$url', topics => '{bulk.*}', max_in_flight => 64, on_exhausted => 'block');
INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, first_attempt_at, parked_at)
SELECT s.endpoint_id, e.seq, e.id, e.key, 'dead', 'max_attempts', 5, now(), now()
FROM outbox.endpoint_settings s, outbox.events e WHERE s.name = 'bulk' AND e.topic = 'bulk.n';
COMMIT;
SQL
stats_show("dead = $rows", "$rows dead letters");
judge('dead letters');
ask("SELECT outbox.retry('bulk')");
stats_show("dead = 0 AND retrying < $rows / 2", 'most of them are tried again, and half are delivered');
judge('retries with plans for empty tables');

# --------------------------------------------------------- plans that are made anew

replace_worker($node);
stats_show('retrying = 0 AND dead = 0', 'the rest');
judge('retries after a restart');

# ------------------------------------------------------------- the steps of chores

$node->append_conf('postgresql.conf', 'auto_explain.log_min_duration = -1');
$node->reload;
ask("SELECT count(outbox.emit('acme.n', to_jsonb(n), tenant => 'acme', dedup_key => 'd' || n)) FROM generate_series(1, $rows) n");
ask("SELECT count(outbox.emit('acme.n', to_jsonb(n), tenant => 'acme', deliver_at => now() + interval '1 day'))"
	  . " FROM generate_series(1, $rows) n");
ask(<<"SQL");
BEGIN;
SELECT outbox.create_endpoint(n, '$url', topics => '{acme.*}', tenant => 'acme') FROM unnest('{acme,gone}'::text[]) n;
INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, first_attempt_at, parked_at)
SELECT s.endpoint_id, e.seq, e.id, NULL, 'dead', 'max_attempts', 5, now(), now()
FROM outbox.endpoint_settings s, outbox.events e WHERE s.tenant = 'acme' AND e.topic = 'acme.n';
INSERT INTO outbox.attempt_log (seq, started_at, event_id, endpoint_id, attempt, duration_ms, piece, error)
SELECT p.seq, now(), p.event_id, p.endpoint_id, 1, 1, 0, 'refused' FROM outbox.parked p;
COMMIT;
SQL
ok(wait_sql($node, "SELECT sum(dead) = 2 * $rows FROM outbox.stats"), 'dead letters of a tenant');
$offset = -s $node->logfile;
$node->append_conf('postgresql.conf', "auto_explain.log_min_duration = 0\noutbox.retention = '2s'");
$node->reload;
ok(wait_sql($node, "SELECT count(*) = $rows FROM outbox.kept_events"), 'their piece of the log goes');
judge('rotation');
ask("SELECT outbox.drop_endpoint('gone', discard => true)");
ok(wait_sql($node, "SELECT count(*) = $rows FROM outbox.parked"), 'an endpoint is dropped');
judge('what a dropped endpoint leaves');
ask("SELECT outbox.discard('acme')");
ok(wait_sql($node, "SELECT sum(dead) = 0 FROM outbox.stats"), 'dead letters are discarded');
judge('discard');
ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, 'SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forgotten'), 'the tenant is forgotten');
judge('forget');

is(ask("SELECT count(*) FROM pg_statistic s JOIN pg_class c ON c.oid = s.starelid"
		  . " WHERE c.relnamespace = 'outbox'::regnamespace"), '0', 'there are no statistics');
note(sprintf '%6d rows %7d pages %7d times: %.200s', @{ $worst{$_} }, $_)
  foreach sort { $worst{$b}[1] <=> $worst{$a}[1] } keys %worst;
$node->stop;
done_testing();
