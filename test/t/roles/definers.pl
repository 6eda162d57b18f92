# Each function that runs as the owner has to, is named in doc/security.md, and gives no name to SQL.
# Tried without SECURITY DEFINER, as a role that may call it: it is refused.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# --- The table

my $document = PostgreSQL::Test::Utils::slurp_file("$top/doc/security.md");
my ($table) = $document =~ /^## Functions that run as the owner$(.*?)(?=^## )/ms;
my @documented = sort map { /`(\w+)`/g } $table =~ /^\| [^|]+ \| ([^|]+) \|$/mg;
my @definers = split /\n/, ask(<<'SQL');
SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prosecdef ORDER BY 1
SQL
is_deeply(\@documented, [ sort @definers ], 'doc/security.md names the functions that run as the owner');

# --- What all of them keep

is(ask(<<'SQL'), '', 'each has a fixed search_path');
SELECT string_agg(p.oid::regprocedure::text, ' ') FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace AND prosecdef
AND NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']
SQL
is(ask(<<'SQL'), '', 'PUBLIC calls none');
SELECT string_agg(p.oid::regprocedure::text, ' ') FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace AND prosecdef
AND has_function_privilege('public', p.oid, 'EXECUTE')
SQL
is(ask(<<'SQL'), 'uuid text _text json jsonb jsonpath bool int4 int8 float4 interval timestamptz', 'no argument is an object, a row or of a type of the caller');
SELECT string_agg(t.typname, ' ' ORDER BY position(t.typname || ' ' IN 'uuid text _text json jsonb jsonpath bool int4 int8 float4 interval timestamptz '))
FROM (SELECT DISTINCT unnest(proargtypes) AS oid FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prosecdef
      UNION SELECT 'json'::regtype) a JOIN pg_type t USING (oid)
SQL
is(ask(<<'SQL'), 'default_settings', 'one makes SQL of text: the defaults of arguments, as the catalogue has them');
SELECT string_agg(DISTINCT proname, ' ') FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpgsql') AND prosrc ~* '\mEXECUTE\M(?!'')' AND proname NOT IN ('adopt', 'grant_to', 'privileges_of', 'revoke_all', 'copy_source', 'take_over', 'drop_subscription')
SQL

is(ask(<<'SQL'), 'note_change pause_endpoint portal_changes', 'the audit has the role of the session, and none is judged by it');
SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prosrc ~ '\msession_user\M'
SQL

# --- Each has to

ask("CREATE ROLE caller LOGIN; CREATE ROLE bystander LOGIN; GRANT USAGE ON SCHEMA outbox TO bystander");
endpoint($node, $receiver, 'e', '/ok/e', "tenant => 't'");
my $id = emit($node, 'a.b', '{}', "tenant => 't'");
$receiver->wait_delivered(1, path => '/ok/e', id => $id);
ok(wait_settled($node), 'an event is delivered');
ask("SELECT outbox.set_event_type('listed')");
ask("SELECT outbox.replay('e', now() - interval '1 hour')");
my $later = emit($node, 'a.later', '{}', "tenant => 't', deliver_at => now() + interval '1 day'");
my $url = $receiver->url('/ok/new');
my %arguments = (
	create_endpoint => "'new', '$url'", alter_endpoint => "'e', '$url'", seek_endpoint => "'e', 'now'", drop_endpoint => "'e', true",
	set_event_type => "'a.b'", drop_event_type => "'listed'", replay => "'e', now() - interval '1 hour'", cancel => "'$later'",
	resend => "'e', '$id'", forget => "'t'", 'outbox.forget(text,text)' => "'t', 'k'", set_retention => "'1 day'", tenant_limits => "'t'",
	wait_for => "'$id', '0'", set_tenant_limits => "'t', 1", portal_limits => "'t'", set_portal_limits => "'t', 1", deliveries_page => "'e'", attempts_page => "'e'", delivery_request => "'e', '$id'",
	portal_endpoints => "'t'", portal_create_endpoint => "'t', '$url'", portal_alter_endpoint => "'t', 'e', '{}'", portal_drop_endpoint => "'t', 'e', true",
	portal_deliveries => "'t'", portal_attempts => "'t'", portal_retry => "'t', 'e', '$id'", portal_delivery => "'t', 'e', '$id'", portal_cancel_replay => "'t', 'e', " . ask('SELECT outbox.portal_cipher(1, 26, false)'), cancel_replay => "'e', 1", set_secrets => "'{}'", portal_replay => "'t', 'e', now() - interval '1 hour'",
	portal_event_types => "'t'", log_size_now => '', farthest_behind => '1000', kept_for => "'events'", retention_held => '', scheduled_now => '', parked_counts => '1',
	follow_service => "'e', 'service=none', 'outbox', '1 day', '0'", take_over => "'e', '" . ($node->connstr('postgres') =~ s/'/''/gr) . "', 'outbox', '1 day', '0', true", metrics => '', tenant_usage => "'2026-01-01'");
# They get as far as to see that there is nothing to follow
my %ends = ((map { $_ => '08006 could not connect to the source' } 'follow_service', 'take_over'), unfollow => '42704 source "e" is not followed');
foreach my $function (@definers)
{
	my $arguments = $arguments{$function} // ($function =~ /^portal_/ ? "'t', 'e'" : "'e'");
	my $end = $ends{$function} // 'done';
	my $signatures = ask("SELECT string_agg(p.oid::regprocedure::text, ',' ORDER BY p.oid) FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace AND proname = '$function' AND prosecdef");
	my $call = "SELECT * FROM outbox.$function($arguments)";
	my $as = sub {
		my ($role, $sql) = @_;
		my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nBEGIN; $sql\nSET LOCAL ROLE $role; $call; ROLLBACK");
		return $err =~ /ERROR:  (\w+): (.*)/ ? "$1 $2" : 'done';
	};
	my $grant = "GRANT USAGE ON SCHEMA outbox TO caller;" . join '', map { " GRANT EXECUTE ON FUNCTION $_ TO caller;" } split /,(?=outbox\.)/, $signatures;
	like($as->('caller', $grant), qr/^\Q$end\E/, "$function(): a role that it is granted to may call it");
	like($as->('bystander', ''), qr/^42501 permission denied for function/, "$function(): a role without a grant is refused");
	foreach my $signature (split /,(?=outbox\.)/, $signatures)
	{
		$call = "SELECT * FROM outbox.$function(" . ($arguments{$signature} // $arguments) . ')';
		like($as->('caller', "$grant ALTER FUNCTION $signature SECURITY INVOKER;"), qr/^42501 permission denied/, "$signature: only as the owner");
	}
}

$node->stop;
done_testing();
