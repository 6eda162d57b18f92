# The pages that a function of the portal reads do not grow with the number of endpoints or events.
# Nor do the rows that a worker reads when one endpoint is changed.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the worker sends nothing, so that only the calls read and write
my $node = outbox_node('main', conf => "outbox.enabled = off\nautovacuum = off\n");

sub create
{
	my ($first, $last) = @_;
	ask("SELECT count(outbox.create_endpoint('e' || i, 'https://example.com/', topics => '{a}', tenant => 't' || i / 4))
	     FROM generate_series($first, $last) i");
}

my $replay = "SELECT outbox.portal_replay('t1', 'e4', now() - interval '1 hour', now())";
my @calls = (
	"SELECT outbox.portal_endpoints('t1')",
	"SELECT outbox.portal_endpoints('t1', 'e4')",
	"SELECT outbox.portal_secret('t1', 'e4')",
	"SELECT outbox.portal_deliveries('t1', 'e4')",
	"SELECT outbox.portal_deliveries('t1', 'e4', event => 'EVENT')",
	"SELECT outbox.portal_attempts('t1', 'e4')",
	"SELECT outbox.portal_attempts('t1', 'e4', event => 'EVENT')",
	"SELECT outbox.portal_figures('t1', 'e4')",
	"SELECT outbox.portal_create_endpoint('t1', 'https://example.com/', '{\"label\": \"x\", \"timeout\": \"5 s\"}', name => 'NEW', idempotency_key => 'NEW')",
	"SELECT outbox.portal_alter_endpoint('t1', 'e4', '{\"label\": \"NEW\"}')",
	"SELECT outbox.portal_alter_endpoint('t1', 'e4', '{\"url\": \"https://example.com/NEW\", \"topics\": [\"NEW\"]}')",
	"SELECT outbox.portal_alter_endpoint('t1', 'e4', '{\"label\": \"NEW, the hundredth change\"}')",
	"SELECT outbox.portal_pause_endpoint('t1', 'e4')",
	"SELECT outbox.portal_resume_endpoint('t1', 'e4')",
	"SELECT outbox.portal_rotate_secret('t1', 'e4')",
	"SELECT outbox.portal_send_test('t1', 'e4')",
	"SELECT outbox.portal_retry('t1', 'e4')",
	$replay,
	"SELECT outbox.portal_replays('t1', 'e4')",
	"SELECT outbox.portal_changes('t1', 'e4')",
	"SELECT outbox.portal_deliveries('t1', 'e6')",
	"SELECT outbox.portal_alter_endpoint('t1', 'e5', '{\"label\": \"NEW\"}')",
	"SELECT outbox.portal_delivery('t1', 'e5', 'EVENT')",
	"SELECT outbox.portal_create_endpoint('t1', 'https://example.com/', '{}', name => 'NEWb')",
	"SELECT outbox.portal_drop_endpoint('t1', 'NEWb')",
	"SELECT outbox.portal_drop_endpoint('t1', 'old_NEW')",
	"SELECT outbox.portal_drop_endpoint('t1', 'NEW', discard => true)");
my $made = 0;
my $event;

# Pages that each call reads once its session has been warmed up by the same calls
sub pages
{
	ask("SELECT outbox.set_portal_limits(max_endpoints => 100, settings => '{url,topics,label,timeout}')");
	my (@sql, %pages);
	foreach my $round (1, 2)
	{
		$made++;
		foreach my $call (@calls)
		{
			my $sql = $call =~ s/NEW/new$made/gr =~ s/EVENT/$event/gr;
			push @sql, "SELECT setval(pg_get_serial_sequence('outbox.endpoint_audit', 'change_id'), max(change_id) / 100 * 100 + 99) FROM outbox.endpoint_audit \\g /dev/null"
			  if $sql =~ /hundredth/;
			# The plan for all tenants must be bounded, too.
			push @sql, 'SET plan_cache_mode = ' . ($sql =~ /drop_endpoint\('t1', '\w+'\)/ ? 'force_generic_plan;' : 'auto;');
			push @sql, $round == 1 ? "$sql \\g /dev/null" : "EXPLAIN (ANALYZE, BUFFERS, TIMING off, COSTS off) $sql;";
		}
	}
	my @shown = split /^(?=(?:ProjectSet|Result) )/m, ask(join "\n", @sql);
	is(scalar @shown, scalar @calls, 'each call was explained');
	foreach my $call (@calls)
	{
		my ($line) = shift(@shown) =~ /(Buffers:.*)/;
		my %n = ($line // '') =~ /(hit|read)=(\d+)/g;
		$pages{$call} = ($n{hit} // 0) + ($n{read} // 0);
	}
	return \%pages;
}

ask("SELECT outbox.set_portal_limits(max_calls => 100000)");
create(1, 10);
# Of the tenant's own events, new endpoints need none of these.
ask("SELECT outbox.emit('a', '{}', tenant => 't1') FROM generate_series(1, 20000)");
# Their positions are before all others, and none is for them.
ask("SELECT outbox.create_endpoint('old_new' || i, 'https://example.com/', topics => '{none}', tenant => 't1') FROM generate_series(1, 4) i");
ask("SELECT outbox.alter_endpoint(name, ordering => 'strict', on_exhausted => 'block') FROM unnest('{e6,e8}'::text[]) name");
ask("SELECT outbox.emit('a', '{}', tenant => 't1') FROM generate_series(1, 50)");
$event = ask("SELECT id FROM outbox.events ORDER BY seq OFFSET 20000 LIMIT 1");
# A request before the changes, so that a delivery is shown with what has changed since
ask("INSERT INTO outbox.attempt_log (seq, started_at, event_id, endpoint_id, attempt, duration_ms, piece, cause)"
	  . " SELECT e.seq, e.created_at, e.id, s.endpoint_id, 1, 1, 0, 0 FROM outbox.events e, outbox.endpoint_settings s WHERE e.id = '$event' AND s.name = 'e5'");
ask("INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)"
	  . " SELECT endpoint_id, seq, event_id, 'dead', 'max_attempts', 1, now() FROM outbox.attempt_log");
# and some of these changes, each of many bytes
my $noted = "INSERT INTO outbox.endpoint_audit (tenant, endpoint, role, action, before, after)"
  . " SELECT 't1', 'e5', 'x', 'alter', c.v, c.v FROM (SELECT jsonb_build_object('metadata', string_agg(md5(concat(n, ' ', i)), '')) AS v"
  . " FROM generate_series(1, 1200) n, generate_series(1, 190) i GROUP BY n) c";
ask($noted);
my $few = pages();
ask($noted);
create(11, 5000);
# Of the endpoint itself, and then of another tenant's
ask("INSERT INTO outbox.replays (endpoint_id, from_time, to_time, read, read_seq_low, target, target_seq_high, finished_at)"
	  . " SELECT endpoint_id, now(), now(), '3:3:', 0, '3:3:', 0, now() FROM outbox.endpoint_settings, generate_series(1, 20000) WHERE name IN ('e4', 'e8') ORDER BY name");
ask("INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)"
	  . " SELECT endpoint_id, 1000000 + n, gen_random_uuid(), 'dead', 'max_attempts', 1, now() FROM outbox.endpoint_settings, generate_series(1, 20000) n WHERE name = 'e8'");
ask("SELECT outbox.emit('a', '{}', tenant => 't2') FROM generate_series(1, 20000)");
ask('VACUUM ANALYZE');
my $many = pages();

# Indexes are deeper.
foreach my $call (@calls)
{
	my $bound = $few->{$call} * 1.25 + 50;
	cmp_ok($many->{$call}, '<=', $bound, "$call, pages ($few->{$call} with 10 endpoints)");
}

# A worker at its start asks of each such row whether its endpoint is there.
ask('DELETE FROM outbox.replays; DELETE FROM outbox.parked WHERE seq > 1000000');

# The worker counts when it ends.
sub rows_read
{
	$node->restart;
	return ask("SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables WHERE relname IN ('endpoint_settings', 'endpoint_secrets')");
}

$node->append_conf('postgresql.conf', "outbox.enabled = on\n");
rows_read();
wait_sql($node, "SELECT state = 'running' FROM outbox.status");
rows_read();
my @ids = split /\n/, ask("SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = ANY (ARRAY(SELECT 'e' || 4 * n FROM generate_series(1, 60) n)) ORDER BY endpoint_id");
ask('SELECT pg_stat_reset()');
foreach my $n (1 .. @ids)
{
	ask("SELECT outbox.portal_pause_endpoint('t$n', 'e' || 4 * $n)");
	wait_sql($node, "SELECT state = 'paused' FROM outbox.endpoint_stats($ids[$n - 1])");
}
# A worker reads all at its start, and from time to time.
cmp_ok(rows_read(), '<=', 1000 * @ids, 'rows that ' . @ids . ' changes read');
$node->stop;

done_testing();
