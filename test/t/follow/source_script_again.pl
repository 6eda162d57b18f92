# Running sql/source.sql again, or over an older one, changes and loses nothing.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask !emit);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new;
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

sub at_source { return $servers->at_source(@_) }
sub ask { return $servers->ask(@_) }
sub emit { return at_source("SELECT outbox.emit('order.n', '{}', key => 'k')", 'shop_app') }

# All rows, and the schema as pg_dump writes it
sub state_of
{
	my $rows = at_source('SELECT e::text FROM outbox.events e ORDER BY seq; SELECT s::text FROM outbox.scheduled s ORDER BY id; SELECT d::text FROM outbox.dedup d ORDER BY 1; SELECT p::text FROM outbox.pieces p ORDER BY 1');
	my ($dump, $err);

	IPC::Run::run([ 'pg_dump', '-s', '-h', $source->host, '-p', $source->port, 'shop' ], '>', \$dump, '2>', \$err);
	return $rows . $dump =~ s/^\\(un)?restrict .*$//gmr;
}

# Returns what was said, which is nothing.
sub run_again
{
	my ($rc, $out, $err) = $source->psql('shop', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ]);
	return "$rc$out$err";
}

# A publication FOR ALL TABLES has them, too.
is( at_source("SELECT string_agg(c.oid::regclass::text, ' ') FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace"
		  . " AND relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND indisprimary)"),
	'', 'every table has a primary key');
endpoint($follower, $receiver, 'all', '/ok/all');
$servers->follow;
my @ids = emit();
$receiver->wait_delivered(1, id => $ids[0]);
at_source('SELECT outbox.divide(2)');
ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
push @ids, map { emit() } 1 .. 3;
push @ids, at_source("SELECT outbox.emit('order.n', '{}', dedup_key => 'once')", 'shop_app');
my $later = at_source("SELECT outbox.emit('order.n', '{}', deliver_at => now() + interval '1 day')", 'shop_app');
my $before = state_of();
my $open = $source->background_psql('shop', on_error_stop => 1);
my $held = $open->query_safe("BEGIN; SELECT outbox.emit('order.n', '{}', key => 'open')");
is(run_again(), '0', 'it is run again, beside a transaction that has emitted');
$open->query_safe('COMMIT');
$open->quit;
at_source("DELETE FROM outbox.events WHERE id = '$held'");
is(state_of(), $before, 'tables, functions, grants, publications and rows are the same');

# As an older version: without some functions, another one less able
my $older = 'REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox FROM shop_app; GRANT EXECUTE ON FUNCTION outbox.key_text(anyelement), outbox.emit(text, jsonb, text, text, jsonb, timestamptz, timestamptz, text, text) TO shop_app; DROP FUNCTION outbox.remove_events(uuid[]); DROP FUNCTION outbox.remove_dedup_keys(text); CREATE OR REPLACE FUNCTION outbox.tidy(keep interval DEFAULT \'1 day\') RETURNS int4 LANGUAGE sql AS \'SELECT 0\'';
at_source($older);
isnt(state_of(), $before, 'an older one');
is(run_again(), '0', 'a newer one is run over it');
is(state_of() =~ s/^.*(?:SET|LANGUAGE).*$//gmr, $before =~ s/^.*(?:SET|LANGUAGE).*$//gmr, 'all is there, and no row is lost');
ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
push @ids, emit();
$receiver->wait_delivered(1, id => $_) foreach @ids;
ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.scheduled WHERE id = '$later'"), 'the subscription goes on');

# A schema of this name that is another's is left alone, also by a client that goes on after an error.
$source->safe_psql('postgres', 'CREATE DATABASE other OWNER provided');
$source->safe_psql('other', 'CREATE SCHEMA outbox AUTHORIZATION provided; CREATE TABLE outbox.events ()', extra_params => [ '-U', 'provided' ]);
my (undef, undef, $err) = $source->psql('other', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ], on_error_stop => 0);
like($err, qr/schema "outbox" already exists/, 'a schema of another is refused');
is($source->safe_psql('other', "SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"), 1, 'and nothing is made in it');

# Whatever new functions are granted to others by default, PUBLIC may call three.
$source->safe_psql('other', 'DROP SCHEMA outbox CASCADE; ALTER DEFAULT PRIVILEGES FOR ROLE provided GRANT EXECUTE ON FUNCTIONS TO shop_app');
is($source->psql('other', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ]), 0, 'it is installed there');
is($source->safe_psql('other', "SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p, aclexplode(p.proacl) a WHERE p.pronamespace = 'outbox'::regnamespace AND a.grantee = 0"), 'current_piece key_text new_event_id', 'and PUBLIC may call no others');
is($source->safe_psql('other', q{SELECT has_table_privilege('shop_app', 'outbox.outgoing', 'INSERT'), has_table_privilege('shop_app', 'outbox.emitted', 'SELECT')}), 'f|f', 'and that role may neither emit nor follow');
done_testing();
