# A source that lies, floods or hangs harms no other source and no other table.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use IO::Socket::INET;
use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $servers = OutboxTest::Followed->new(follower => "max_worker_processes = 20\nmax_logical_replication_workers = 10\n");
my ($source, $follower) = @$servers{qw(source follower)};
my $large = 100;    # events of 1 MB

sub ask { return $servers->ask(@_) }
sub at { my ($db, $sql) = @_; return $source->safe_psql($db, $sql, extra_params => [ '-U', 'provided' ]) }
sub conninfo { my ($db) = @_; return $servers->{conninfo} =~ s/dbname='?shop'?/dbname=$db/r }
sub follow_sql { my ($db) = @_; return "SELECT outbox.follow('$db', " . OutboxTest::Followed::quoted(conninfo($db)) . ", keep => '0')" }

# Runs a statement, and returns the most memory (MB) that its session had, and what it said.
sub peak
{
	my ($sql) = @_;
	my $session = $follower->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my ($out) = $session->query($sql);
	my $said = $session->{stderr};
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m;

	$session->{stderr} = '';
	$session->quit;
	note "$sql: $kb kB";
	return ($kb / 1024, $said, $out);
}

foreach my $db (qw(large other))
{
	$source->safe_psql('postgres', "CREATE DATABASE $db OWNER provided");
	is(scalar $source->psql($db, "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ], on_error_stop => 1), 0, "$db: installed");
	at($db, "SELECT outbox.grant_emit('shop_app'); SELECT outbox.grant_follow('outbox_follower')");
}

# --- Locks that each role may take

ask('CREATE ROLE stranger LOGIN');
my $stranger = $follower->background_psql('postgres', extra_params => [ '-U', 'stranger' ]);
$stranger->query_safe("SELECT pg_advisory_lock(hashtext('outbox.follow'), hashtext('$_'))") foreach qw(shop large other);
my $application = $source->background_psql('shop', extra_params => [ '-U', 'shop_app' ]);
$application->query_safe("SELECT pg_advisory_lock(hashtext('$_'))") foreach qw(outbox.tidy outbox.marks);
is(ask("SET statement_timeout = '60s'; " . follow_sql('shop')), 0, 'no lock of a stranger holds up outbox.follow()');
isnt(ask("SELECT state FROM outbox.sources"), 'copying', 'or looks like it');
ok((wait_until { at('shop', "SELECT outbox.tidy('0')"); at('shop', 'SELECT count(*) FROM outbox.pieces WHERE closed_at IS NOT NULL') } 'closed'), 'a piece of the source is closed while the application has locks');
cmp_ok(at('shop', 'SELECT count(*) FROM outbox.marks'), '>', 0, 'and marks are set');
$_->quit foreach $stranger, $application;

# --- A page of large events

at('large', "SELECT count(outbox.emit('order.large', to_jsonb(repeat('x', 1000000) || i))) FROM generate_series(1, $large) i");
my ($mb, $said, $n) = peak(follow_sql('large'));
is($n, $large, 'large events are taken');
cmp_ok($mb, '<', 110, 'in pages that memory has room for') unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
ask(follow_sql('other'));

# --- A source that floods

my $version = at('large', "SELECT prosrc FROM pg_proc WHERE oid = 'outbox.source_version()'::regprocedure");
at('large', "CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text LANGUAGE sql AS \$\$ SELECT repeat('x', $_) \$\$"), peak($OutboxTest::Followed::round) foreach 2_000_000;
cmp_ok(ask("SELECT length(reason) FROM outbox.sources WHERE name = 'large'"), '<=', 1000, 'a long word is not stored');
like(ask("SELECT left(reason, 200) FROM outbox.sources WHERE name = 'large'"), qr/more than 1000000 bytes/, 'and the reason says so');
at('large', "CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text LANGUAGE sql AS \$\$ SELECT repeat('x', 400000000) \$\$");
($mb) = peak($OutboxTest::Followed::round);
cmp_ok($mb, '<', 250, 'an answer without end ends in an error') unless $ENV{OUTBOX_MEMORY_CHECKER};
ok(wait_sql($follower, "SELECT state = 'streaming' FROM outbox.sources WHERE name = 'other'"), 'the next source was asked');
at('large', "CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN RAISE EXCEPTION '%', repeat('x', 3000000); END \$\$");
ask($OutboxTest::Followed::round);
cmp_ok(ask("SELECT length(reason) FROM outbox.sources WHERE name = 'large'"), '<=', 1100, 'nor a long error');
at('large', "CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text LANGUAGE sql AS \$\$$version\$\$");

# --- A publication that brings rows into another table

ask('CREATE TABLE public.accounts (id int PRIMARY KEY, balance int); INSERT INTO public.accounts VALUES (1, 10)');
at('shop', "GRANT USAGE ON SCHEMA public TO outbox_follower; CREATE TABLE public.accounts (id int PRIMARY KEY, balance int); GRANT SELECT ON public.accounts TO outbox_follower; BEGIN; DROP PUBLICATION outbox; SELECT outbox.divide(1); ALTER PUBLICATION outbox ADD TABLE public.accounts; COMMIT");
my $other_tables = "SELECT reason ~ 'publication \"outbox\" has other tables' FROM outbox.sources WHERE name = 'shop'";
ok((wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask($other_tables) eq 't' } 'refused'), 'a publication that was made anew, with another table, is refused');
is(ask("SELECT string_agg(DISTINCT srrelid::regclass::text, ' ') FROM pg_subscription_rel"), 'outbox.deferred outbox.emitted', 'no subscription brings rows into it');
at('shop', 'ALTER PUBLICATION outbox DROP TABLE public.accounts');
ok((wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask("SELECT state = 'streaming' FROM outbox.sources WHERE name = 'shop'") eq 't' } 'streaming'), 'without it, it is followed anew');

# --- A row that is no text, or has no end

ask('CREATE CAST (bytea AS text) WITHOUT FUNCTION');
ask(<<'SQL');
INSERT INTO outbox.emitted (source, id, xid, topic, payload, key)
VALUES ('shop', '01a1f78c-4fa9-7dc2-8c85-9f589eaa3fb3', 'x', 'order.bad', '{}', '\x61ff'::bytea::text),
       ('shop', '01a1f78c-4fa9-7dc2-8c85-9f589eaa3fb4', '99', 'order.bad', '"' || repeat('x', 9000000) || '"', 'k')
SQL
is(ask("SELECT count(*) FROM outbox.all_events WHERE topic = 'order.bad'"), 0, 'rows that no honest source has: they are no events');
is(ask("SELECT string_agg(event ->> 'key', ' ' ORDER BY refused_id) || ' ' || max(pg_column_size(event::text)) / 1000000 FROM outbox.refused_events WHERE event ->> 'topic' = 'order.bad'"), 'a? k 4', 'they are set aside as text, and not all of it');

# --- Words of a server that are no text

my $listener = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "listen: $!";
my $liar = fork // die "fork: $!";
if ($liar == 0)
{
	$SIG{ALRM} = sub { POSIX::_exit(0) };
	alarm 600;
	while (my $client = $listener->accept)
	{
		my $words = "SFATAL\0C28000\0Mno \xff\xfe" . 'x' x 20000 . "\0\0";
		sysread $client, my $hello, 10000;
		syswrite $client, 'E' . pack('N', length($words) + 4) . $words;
		close $client;
	}
	POSIX::_exit(0);
}
my $honest = ask("SELECT subconninfo FROM pg_subscription WHERE subname = 'outbox_other'");
ask("ALTER SUBSCRIPTION outbox_other DISABLE; ALTER SUBSCRIPTION outbox_other CONNECTION 'host=127.0.0.1 port=" . $listener->sockport . " user=x dbname=x sslmode=disable gssencmode=disable'");
my ($rc, $out, $err);
wait_until
{
	ask('SELECT outbox.keep_sources()');    # it leaves a source to another process that asks it
	($rc, $out, $err) = $follower->psql('postgres', "SET client_encoding = 'LATIN1'; SELECT reason FROM outbox.sources WHERE name = 'other'");
	$out !~ /is disabled$/;
}
'it has answered';
like("$rc $err $out", qr/^0  .*no \?\?x{100}/, 'words that are no text are shown');
cmp_ok(length $out, '<', 1200, 'and no more than a few');
ask("ALTER SUBSCRIPTION outbox_other CONNECTION " . OutboxTest::Followed::quoted($honest) . '; ALTER SUBSCRIPTION outbox_other ENABLE');
kill 'KILL', $liar;
waitpid $liar, 0;

# --- A source that hangs while it is followed anew

ask("SELECT outbox.keep_sources()");
my $renew = at('shop', "SELECT pg_get_functiondef('outbox.renew()'::regprocedure)");
at($_, 'DROP PUBLICATION outbox; SELECT outbox.divide(1)') foreach qw(shop other);
at('shop', 'CREATE OR REPLACE FUNCTION outbox.renew() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ SELECT pg_sleep(3600) $$');
my $hanging = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'outbox_follower' AND query ~ 'renew'";
ok(wait_sql($source, $hanging, 1), 'a source hangs while it is followed anew');
my $hangs = ask('SELECT clock_timestamp()');
ok((wait_until { ask("SELECT state = 'streaming' FROM outbox.sources WHERE name = 'other'") eq 't' } 'streaming'), 'another one is followed anew soon');
ok(wait_sql($follower, "SELECT asked_at > '$hangs' FROM outbox.sources WHERE name = 'large'"), 'and others are asked');
like(ask("SELECT state FROM outbox.sources WHERE name = 'shop'"), qr{^(?:restored|copying)$}, 'the first one is not followed');
$source->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'outbox_follower' AND query ~ 'renew'");
at('shop', $renew);
ok((wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask("SELECT state = 'streaming' FROM outbox.sources WHERE name = 'shop'") eq 't' } 'streaming'), 'then it is followed anew, too');
$follower->stop;
$source->stop;
done_testing();
