# A condition of a reader is judged only on rows that it may read.
# What decides which rows these are comes first, however cheap the condition is: else
# its time, or the counts of EXPLAIN ANALYZE, tell what is in the other rows.
use strict;
use warnings;

use JSON::PP ();
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub as
{
	my ($role, $sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', $role ]);
	die "$sql: $err" if $rc != 0;
	return $out;
}

# The functions count how often they are called.  Like the operators of PostgreSQL that
# leak nothing, they may be called on rows that are not to be read, and they cost less
# than all of those.
ask(<<'SQL');
CREATE ROLE reader LOGIN;
GRANT pg_read_all_data TO reader;
CREATE ROLE app LOGIN;
SELECT outbox.grant_emit('app');
CREATE SEQUENCE calls;
GRANT USAGE, UPDATE, SELECT ON calls TO reader, app;
DO $$ DECLARE t text;
BEGIN
	FOREACH t IN ARRAY '{text,jsonb,uuid,int4,timestamptz,bytea}'::text[] LOOP
		EXECUTE format('CREATE FUNCTION judged(%s) RETURNS bool LANGUAGE plpgsql STABLE LEAKPROOF COST 0.000001'
			' AS $f$ BEGIN PERFORM nextval(''public.calls''); RETURN true; END $f$', t);
	END LOOP;
END $$;
SQL

# How often they are called while a role runs a query
sub calls
{
	my ($role, $sql) = @_;
	ask("SELECT setval('calls', 1, false)");
	as($role, $sql);
	return ask('SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM calls');
}

# All nodes of a plan
sub nodes
{
	my ($node) = @_;
	return ($node, map { nodes($_) } @{ $node->{Plans} // [] });
}

sub plan_of
{
	my ($role, $sql, $settings) = @_;
	my $json = as($role, ($settings // '') . "BEGIN; SELECT outbox.emit('own.event', '{}') \\g /dev/null\nEXPLAIN (FORMAT JSON, VERBOSE, ANALYZE) $sql; ROLLBACK")
	  if $role eq 'app';
	$json //= as($role, ($settings // '') . "EXPLAIN (FORMAT JSON, VERBOSE, ANALYZE) $sql");
	return nodes(JSON::PP::decode_json($json)->[0]{Plan});
}

my @settings = map { join '', map { "SET enable_$_ = off; " } split }
  '', 'seqscan', 'indexscan', 'seqscan indexscan', 'seqscan bitmapscan', 'nestloop', 'hashjoin mergejoin';

# --- Everything that hides rows is here

is(ask("SELECT string_agg(polrelid::regclass || ' ' || polname, ',') FROM pg_policy"), 'outbox.endpoint_secrets worker', 'one policy');
is(ask("SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND reloptions::text LIKE '%security_barrier%'"), 0, 'no barrier, which leakproof operators pass');
is( ask(<<'SQL'), 'outgoing', 'one view shows rows by what is asked');
SELECT string_agg(relname, ',') FROM pg_class WHERE relkind = 'v' AND relnamespace = 'outbox'::regnamespace
AND pg_get_viewdef(oid) ~* 'current_user|session_user|user_oid|current_role|has_\w+_privilege|pg_has_role|xact_id_if_assigned|inet_client'
SQL

# --- Secrets: pg_read_all_data judges no row

endpoint($node, $receiver, "e$_", '/ok') foreach 1 .. 20;
ask('ANALYZE outbox.endpoint_secrets');
cmp_ok(ask('SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(secret)'), '==', 20, 'the owner reads secrets');
cmp_ok(calls(ask('SELECT current_user'), 'SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(secret)'), '==', 20, 'and its condition is counted');
my %secret = (
	'a secret' => 'SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(secret)',
	'credentials' => 'SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(credentials)',
	'a number' => 'SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(endpoint_id)',
	'a former secret' => 'SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(previous) OR judged(previous_until)',
	'a comparison' => q{SELECT count(*) FROM outbox.endpoint_secrets WHERE judged(secret) AND secret > ANY (ARRAY['a', 'b'])},
	'no condition at all' => 'SELECT count(*) FROM outbox.endpoint_secrets WHERE secret IS NOT NULL AND judged(secret)',
	'a join' => 'SELECT count(*) FROM outbox.endpoint_settings s LEFT JOIN outbox.endpoint_secrets k ON k.endpoint_id = s.endpoint_id AND judged(k.secret)',
	'the other way round' => 'SELECT count(*) FROM outbox.endpoint_secrets k RIGHT JOIN outbox.endpoint_settings s ON k.endpoint_id = s.endpoint_id AND judged(k.secret)',
	'a sub-select' => 'SELECT count(*) FROM outbox.endpoint_settings s WHERE EXISTS (SELECT FROM outbox.endpoint_secrets k WHERE k.endpoint_id = s.endpoint_id AND judged(k.secret))',
	'no sub-select' => 'SELECT count(*) FROM outbox.endpoint_settings s WHERE NOT EXISTS (SELECT FROM outbox.endpoint_secrets k WHERE k.endpoint_id = s.endpoint_id AND judged(k.secret))',
	'LATERAL' => 'SELECT count(*) FROM outbox.endpoint_settings s, LATERAL (SELECT * FROM outbox.endpoint_secrets k WHERE k.endpoint_id = s.endpoint_id AND judged(k.secret) LIMIT 1) l',
	'one row' => 'SELECT count(*) FROM outbox.endpoint_secrets WHERE endpoint_id = 1 AND judged(secret)',
	'in order' => 'SELECT secret FROM outbox.endpoint_secrets WHERE judged(secret) ORDER BY endpoint_id LIMIT 1',
	'COPY' => 'COPY (SELECT secret FROM outbox.endpoint_secrets WHERE judged(secret)) TO STDOUT',
	'a sample' => 'SELECT count(*) FROM outbox.endpoint_secrets TABLESAMPLE BERNOULLI (100) WHERE judged(secret)');
foreach my $name (sort keys %secret)
{
	foreach my $settings (@settings)
	{
		is(calls('reader', "$settings$secret{$name}"), 0, "secrets, $name: no row is judged" . ($settings && " ($settings)"));
	}
	next if $secret{$name} =~ /^COPY/;
	my @scans = grep { ($_->{'Relation Name'} // '') eq 'endpoint_secrets' } plan_of('reader', $secret{$name});
	ok(@scans > 0 && !(grep { $_->{Filter} !~ /^\(*(?:\$\d+|\(InitPlan \w+\)\.col1)(?: AND |\)*$)/ } @scans), "secrets, $name: what the role may do is asked first")
	  or diag(map { "$_->{Filter}\n" } @scans);
}
is(as('reader', 'SELECT count(*) FROM outbox.endpoint_secrets'), 0, 'and has no row');

# Nor is there another place that has them, or a part of them.
is( ask("SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = 'outbox.endpoint_secrets'::regclass AND attnum > 0 AND attstorage <> 'p'"),
	'', 'nothing of it is moved to a TOAST table');
is( ask(<<'SQL'), '', 'nor statistics');
SELECT string_agg(attname, ',') FROM pg_statistic s JOIN pg_attribute a ON attrelid = starelid AND attnum = staattnum
WHERE starelid = 'outbox.endpoint_secrets'::regclass AND attname NOT IN ('endpoint_id', 'part', 'previous_until')
SQL
is(ask("SELECT count(*) FROM pg_statistic_ext WHERE stxrelid = 'outbox.endpoint_secrets'::regclass"), 0, 'nor extended ones');
is(ask("SELECT string_agg(indexrelid::regclass::text, ',') FROM pg_index WHERE indrelid = 'outbox.endpoint_secrets'::regclass"),
	'outbox.endpoint_secrets_pkey', 'nor an index');

# --- outbox.outgoing: an emitter judges its own rows

ask("SELECT count(outbox.emit('others.event', jsonb_build_object('card', n), key => 'card ' || n,"
	  . " tenant => CASE WHEN n % 2 = 0 THEN 'acme' ELSE 'globex' END)) FROM generate_series(1, 300) n");
ask('ANALYZE outbox.events');
my $other = ask("SELECT id FROM outbox.events WHERE topic = 'others.event' LIMIT 1");
my %own = (
	'a key' => 'judged(key)',
	'a payload' => 'judged(payload)',
	'an id' => 'judged(id)',
	'a time' => 'judged(expires_at)',
	'a body' => 'judged(body)',
	'a comparison' => q{key > 'card' AND judged(key)},
	'one id' => "id = '$other' AND judged(id)",
	'what is there' => 'key IS NOT NULL AND judged(topic)',
	'a topic' => q{topic = 'others.event' AND judged(topic)},
	'a tenant' => q{tenant = 'acme' AND judged(tenant)},
	'a list' => "id = ANY (ARRAY['$other']::uuid[]) AND judged(key)");
foreach my $name (sort keys %own)
{
	foreach my $settings (@settings)
	{
		cmp_ok(calls('app', "${settings}BEGIN; SELECT outbox.emit('own.event', '{}') \\g /dev/null\nSELECT count(*) FROM outbox.outgoing WHERE $own{$name}; ROLLBACK"),
			'<=', 1, "outgoing, $name: one row is judged at most" . ($settings && " ($settings)"));
	}
	my @nodes = plan_of('app', "SELECT * FROM outbox.outgoing WHERE $own{$name}");
	my @scans = grep { ($_->{'Relation Name'} // '') =~ /^events/ } @nodes;
	is((grep { my $scan = $_; grep { defined && /judged|card|$other|others|acme|IS NOT NULL/ } @$scan{ 'Filter', 'Index Cond', 'Recheck Cond' } } @scans),
		0, "outgoing, $name: nothing of it where the log is read");
	is(join(',', map { $_->{'Rows Removed by Filter'} || () } @scans), '', "outgoing, $name: no row of others is counted");
}
my @estimates = map { (plan_of('app', "SELECT * FROM outbox.outgoing WHERE $_"))[0]{'Plan Rows'} }
  q{tenant = 'acme'}, q{tenant = 'nowhere'}, q{topic = 'others.event' AND tenant = 'globex'}, q{topic = 'no.such' AND tenant = 'x'};
is($estimates[0], $estimates[1], 'nor guessed from statistics: a tenant');
is($estimates[2], $estimates[3], 'nor two columns');
is( calls('app', "BEGIN; SELECT count(outbox.emit('own.event', '{}')) FROM generate_series(1, 7) \\g /dev/null\nSELECT count(*) FROM outbox.outgoing WHERE judged(topic); ROLLBACK"),
	7, 'all of its own are judged');

$node->stop;
done_testing();
