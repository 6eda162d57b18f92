# Figures of each endpoint are kept by time, for the customer, the operator and the bill.
# They survive a restart, another worker, and the endpoint. They cost no row a delivery.
use strict;
use warnings;

use JSON::PP;
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $clock = PostgreSQL::Test::Utils::tempdir() . '/clock';
write_clock($clock, 0);
$ENV{OUTBOX_CLOCK} = $clock;
my $shim = shim('clock');
my $node;
with_clock(sub { $node = outbox_node('main', conf => "outbox.wakeup_interval = '100 ms'\n") });
my $receiver = OutboxTest::Receiver->new('main');

sub with_clock
{
	local $ENV{LD_PRELOAD} = $shim;
	return $_[0]->();
}

sub ask
{
	my ($sql, $role) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role // 'postgres' ]);
}

# What a customer sees, or (no tenant) the operator
sub figures
{
	my ($tenant, @arguments) = @_;
	my $call = $tenant ? "portal_figures('$tenant'" : 'figures(NULL';
	return map { decode_json($_) } split /\n/,
	  ask("SELECT outbox.$call" . join('', map { ", $_" } @arguments) . ", to_time => now() + interval '1 hour')", $tenant ? 'portal' : 'postgres');
}

# Their sums
sub sum
{
	my ($member, @figures) = @_;
	my $n = 0;
	$n += $member =~ /(.*)\.(.*)/ ? $_->{$1}{$2} // 0 : $_->{$member} foreach @figures;
	return $n;
}

ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");

# The receiver is not told the secrets: it would find the signatures too old.
ask("SELECT outbox.create_endpoint('$_.a', '" . $receiver->url("/ok/$_") . "', tenant => '$_', max_attempts => 1)") foreach qw(acme globex);
ask("SELECT outbox.create_endpoint('acme.b', '" . $receiver->url('/ok/b') . "', tenant => 'acme', topics => '{none}')");

sub deliver
{
	my ($tenant, $n) = @_;
	ask("SELECT outbox.emit('a', '{}', tenant => '$tenant') FROM generate_series(1, $n)");
	return wait_settled($node);
}

# --- Counted by one worker, and written when it ends

ok(deliver('acme', 300) && deliver('globex', 7), 'delivered');
ask("SELECT outbox.create_endpoint('many' || n, '" . $receiver->url('/ok/many') . "', topics => '{many}') FROM generate_series(1, 20) n");
ask("SELECT outbox.emit('many', '{}')");
ok(wait_settled($node), 'one to each of twenty more');
$receiver->control(path => '/ok/acme', behave => '/status/503');
ask("SELECT outbox.emit('a', '{}', tenant => 'acme') FROM generate_series(1, 2)");
ok(wait_sql($node, "SELECT dead = 2 FROM outbox.stats WHERE endpoint = 'acme.a'"), 'and failed');
$receiver->control(path => '/ok/acme', behave => '/ok');
with_clock(sub { $node->restart });
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'another worker');
my @acme = figures('acme', "'acme.a'");
is(join(' ', map { sum($_, @acme) } qw(delivered failed_attempts died failures.http_5xx deaths.max_attempts)), '300 2 2 2 2', 'by class and reason');
is(join(' ', sort keys %{ $acme[0] }), 'at deaths delivered died failed_attempts failures latency_p50_ms latency_p95_ms latency_p99_ms', 'and more of it');
cmp_ok($acme[0]{latency_p50_ms}, '>', 0, 'with latencies');
cmp_ok($acme[0]{latency_p99_ms}, '>=', $acme[0]{latency_p50_ms}, 'in order');
cmp_ok(ask('SELECT count(*) FROM outbox.figures'), '<=', 6, 'a row for many endpoints');

# --- The same bucket again, by another worker, and by one that reads the endpoint anew

ok(deliver('acme', 10), 'more');
ask("SELECT outbox.alter_endpoint('acme.a', max_in_flight => 7)");
ok(deliver('acme', 10), 'more after a change of settings');
with_clock(sub { $node->restart });
is(sum('delivered', figures('acme', "'acme.a'", "'300'")), 320, 'counts are added, by five minutes');
is(sum('delivered', figures('acme', "'acme.a'", "'1 day'")), 320, 'or by the day');

# --- To each its own

is(sum('delivered', figures('acme')), 320, 'of all endpoints of a tenant');
is(sum('delivered', figures('acme', "'acme.b'")), 0, 'of one that had none');
is(sum('delivered', figures('globex')), 7, 'of another tenant');
is(sum('delivered', figures(undef)), 347, 'of all, for the operator');
is(sum('delivered', figures(undef, "'globex'")), 7, 'or of a tenant');
is(ask(q(SELECT sum((f -> 'delivered')::int) FROM outbox.figures('many7') f)), 1, 'or of one endpoint');
my $usage = "SELECT string_agg(concat_ws(' ', tenant, delivered, failed_attempts), ', ') FROM outbox.tenant_usage(now() - interval '1 day', now() + interval '1 hour')";
is(ask($usage), 'acme 320 2, globex 7 0', 'and for the bill');

# --- An idle endpoint's bucket ends by itself, and a dropped one counts

ok(deliver('acme', 5) && deliver('globex', 1), 'delivered');
ask("SELECT outbox.drop_endpoint('globex.a')");
write_clock($clock, 6 * 60);
ok(wait_sql($node, "SELECT ($usage) = 'acme 325 2, globex 8 0'"), 'without a restart');
is(sum('delivered', figures('globex')), 0, 'its tenant has no such endpoint');

# --- A crash loses the open bucket, and no other

ok(deliver('acme', 5), 'delivered');
$node->stop('immediate');
with_clock(sub { start_again($node) });
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'after a crash');
is(ask($usage), 'acme 325 2, globex 8 0', 'what was written is there');

# --- Dropped by pieces

# Entries of endpoint 999, with a delivery
ask("INSERT INTO outbox.figures (at, written, block, piece, entries)
	SELECT date_trunc('day', now()) - make_interval(days => CASE WHEN p < 3 THEN 3 ELSE 135 END), now(), 31, p, '\\xe70700028001' FROM generate_series(0, 5) p");
my $old = "SELECT string_agg(DISTINCT piece::text, ' ' ORDER BY piece::text) FROM outbox.figures WHERE block = 31";
is(ask($old), '0 1 2 3 4 5', 'rows of former turns');
ask('DELETE FROM outbox.figures WHERE block <> 31');
my $held = $node->background_psql('postgres');
$held->query_safe('BEGIN; SELECT count(*) FROM outbox.figures');
ok(deliver('acme', 5), 'delivered');
write_clock($clock, 12 * 60);
ok(deliver('acme', 5), 'delivered while a piece is read');
$held->query_safe('ROLLBACK');
$held->quit;
write_clock($clock, 18 * 60);
ok(wait_sql($node, 'SELECT count(*) > 0 FROM outbox.figures WHERE block <> 31 AND piece < 3'), 'written when the piece is free');
is(ask('SELECT count(*) FILTER (WHERE piece < 3) || $$ $$ || count(*) FILTER (WHERE at < now() - interval $$30 days$$) FROM outbox.figures WHERE block = 31'),
	'2 2', 'the pieces that are used next are emptied, and no other');
is(ask('SELECT sum(e.delivered) FROM outbox.figures f, outbox.figures_of(f.entries) e WHERE f.block = 31 AND f.piece > 2 AND f.at > now() - interval $$30 days$$'),
	3, 'and the hours of five minutes are made before');

# --- How the whole database was

# The clock is set to the beginning of five minutes, so that none end by themselves.
my $five = 300 * int((time + 18 * 60) / 300) + 300;
my $moved = $five + 30 - time;
write_clock($clock, $moved);
is($_->{oldest_pending_s}, undef, 'an endpoint has no figures of the whole database') foreach figures('acme', "'acme.a'");
ask("SELECT outbox.pause_endpoint('acme.a')");
ask("SELECT outbox.emit('a', '{}', tenant => 'acme')");
ok(wait_sql($node, "SELECT pending = 1 FROM outbox.stats WHERE endpoint = 'acme.a'"), 'an event waits');
my $looks = "SELECT count(*) FROM outbox.figures f, outbox.figures_of(f.entries) e WHERE e.endpoint_id = 0 AND f.piece < 3 AND f.at >= to_timestamp($five)";
write_clock($clock, $moved + 300);
ok(wait_sql($node, $looks, 1), 'it is looked at when five minutes have ended');
write_clock($clock, $moved + 600);
ok(wait_sql($node, $looks, 2), 'and again, though nothing is delivered');
my @oldest = map { $_->{oldest_pending_s} // () } figures(undef, 'NULL', "'300'");
cmp_ok($oldest[-1], '>=', 600, "it has waited for $oldest[-1] s");
cmp_ok($oldest[-1], '<', 700, 'and no longer');
cmp_ok($oldest[-2], '<', 400, 'and before that for less');
my @memory = grep { $_ } map { $_->{memory_bytes} } figures(undef);
cmp_ok($memory[-1], '>', 1_000_000, "the workers take $memory[-1] bytes");
cmp_ok($memory[-1], '<', 200_000_000, 'and an hour has their average');
is(sum('delivered', figures(undef)), sum('delivered', figures(undef, "'acme'")), 'other figures have nothing of it');
ask("SELECT outbox.resume_endpoint('acme.a')");
ok(wait_settled($node), 'it is delivered');
write_clock($clock, $moved + 900);
ok(wait_sql($node, $looks, 3), 'which is looked at, too');
write_clock($clock, $moved + 1200);
ok(deliver('acme', 1), 'later, with nothing done meanwhile');
is(ask($looks), 3, 'nothing is noted where nothing is done and nothing waits');

# --- Hours are made of five minutes

# What both callers see of hours before the present one, and the bill
sub hours
{
	my $until = "to_time => date_trunc('hour', now()))";
	return ask("SELECT outbox.figures(from_time => now() - interval '1 day', $until") . "\n"
	  . ask("SELECT outbox.figures('acme.a', bucket => '1 day', from_time => now() - interval '1 day', $until") . "\n"
	  . ask("SELECT outbox.figures(tenant => 'acme', from_time => now() - interval '1 day', $until") . "\n"
	  . ask(q(SELECT * FROM outbox.tenant_usage(now() - interval '1 day', date_trunc('hour', now()))));
}

# Ten minutes before an hour begins, and after that
my $begins = ask("SELECT extract(epoch FROM date_trunc('hour', now() + interval '2 hours'))::int8");
my $made = "SELECT count(*) FROM outbox.figures WHERE at = to_timestamp($begins - 3600)";
write_clock($clock, $begins - 600 - time);
ok(deliver('acme', 2), 'delivered');
write_clock($clock, $begins + 120 - time);
ok(deliver('acme', 2), 'and in the next hour');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.figures WHERE at = to_timestamp($begins - 600)"), 'five minutes are written');
is(ask($made), 0, 'an hour is not made before a later one has figures');
my $hours = hours();
like($hours, qr/"delivered": 2,/, 'its figures are those of its five minutes');
write_clock($clock, $begins + 480 - time);
ok(wait_sql($node, "SELECT ($made) = 1"), 'then it is');
is(hours(), $hours, 'its figures stay the same');

# A row of the present hour says that it is made.
ask("INSERT INTO outbox.figures (at, written, block, piece, entries)
	SELECT to_timestamp($begins), now(), 31, 3 + ($begins - 946684800) / 3888000 % 3, '\\xe7070000'");
my $fives = sum('delivered', figures('acme', 'NULL', "'300'"));
ok(deliver('acme', 3), 'delivered in an hour that is made');
with_clock(sub { $node->restart });
is(sum('delivered', figures('acme', 'NULL', "'300'")), $fives + 3, 'counts in its five minutes');
is((figures('acme'))[-1]{delivered}, 3, 'and in its hour');

# Two buckets of it are written by one transaction, because nothing could be written before.
$held = $node->background_psql('postgres');
$held->query_safe('BEGIN; LOCK TABLE outbox.figures IN SHARE MODE');
ok(deliver('acme', 2), 'delivered while figures are locked');
write_clock($clock, $begins + 780 - time);
ok(deliver('acme', 2), 'and in the next bucket');
write_clock($clock, $begins + 1080 - time);
$held->query_safe('ROLLBACK');
$held->quit;
write_clock($clock, $begins + 1100 - time);
ok((wait_until { sum('delivered', figures('acme', 'NULL', "'300'")) == $fives + 7 }), 'both count');
is((figures('acme'))[-1]{delivered}, 7, 'in their hour, too');

# --- What is given up counts, though nothing is sent

ask("SELECT outbox.create_endpoint('kept', '" . $receiver->url('/status/500') . "', tenant => 'kept', backoff_base => '1 day', backoff_max => '2 days')");
ask("SELECT outbox.emit('a', '{}', tenant => 'kept') FROM generate_series(1, 3)");
ok(wait_sql($node, "SELECT retrying = 3 FROM outbox.stats WHERE endpoint = 'kept'"), 'three wait');
ask("SELECT outbox.pause_endpoint('kept')");
write_clock($clock, $begins + 1500 - time);
ok((wait_until { sum('failed_attempts', figures('kept')) == 3 }), 'their bucket has ended');
ask("SELECT outbox.set_tenant_limits('kept', max_kept => 1)");
ok(wait_sql($node, "SELECT retrying = 1 FROM outbox.stats WHERE endpoint = 'kept'"), 'two are given up');
write_clock($clock, $begins + 1900 - time);
ok((wait_until { sum('deaths.backlog', figures('kept')) == 2 }), 'which a later bucket counts');

# --- What is refused

foreach my $case (
	[ q(portal_figures('globex', 'acme.a')), '42704: endpoint "acme.a" does not exist' ],
	[ q(portal_figures(NULL)), '22004: tenant must not be null' ],
	[ q(portal_figures('acme', bucket => '1 min')), '22023: invalid bucket' ],
	[ q(portal_figures('acme', bucket => '1 month')), '22023: invalid bucket' ],
	[ q(portal_figures('acme', bucket => '90 min')), '22023: invalid bucket' ],
	[ q(portal_figures('acme', bucket => NULL)), '22004: bucket must not be null' ],
	[ q(portal_figures('acme', from_time => '-infinity')), '22023: more than 2200 buckets' ],
	[ q(portal_figures('acme', from_time => '2001-01-01')), '22023: more than 2200 buckets' ])
{
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.$case->[0]", extra_params => [ '-U', 'portal' ]);
	like($err, qr/\Q$case->[1]\E.*\nHINT:  (?![^\n]*outbox\.)/s, $case->[0]);
	like($err, qr/^COLUMN NAME:  \w/m, 'and names the field') if $case->[1] =~ /^22/;
}

$node->stop;
done_testing();
