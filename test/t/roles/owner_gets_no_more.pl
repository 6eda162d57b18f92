# The owner of the extension gets no more rights by code that the processes of outbox run.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_worker_processes = 12\n");

# What REASSIGN OWNED, or a service that gives away an extension, leads to
ask('CREATE ROLE boss SUPERUSER LOGIN; CREATE ROLE owner LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE owned OWNER owner');
$node->safe_psql('owned', 'CREATE EXTENSION outbox', extra_params => [ '-U', 'boss' ]);
$node->safe_psql('owned', 'REASSIGN OWNED BY boss TO owner');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.workers WHERE datname = 'owned' AND state = 'running'"), 'a worker serves the database');
ask("ALTER DATABASE owned SET $_")
  foreach "default_transaction_read_only = 'on'", "default_transaction_isolation = 'serializable'", "search_path = 'public'", "session_replication_role = 'replica'", "row_security = 'off'";
$node->safe_psql('owned', <<'SQL', extra_params => [ '-U', 'owner' ]);
SET default_transaction_read_only = off;
CREATE FUNCTION public.what_i_am(process text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        SET SESSION AUTHORIZATION postgres;
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END;
    RAISE LOG '% is % and %, and has %.', process, session_user, current_user, (
        SELECT string_agg(concat(s, '=', current_setting(s)), '; ')
        FROM unnest('{is_superuser,transaction_read_only,transaction_isolation,search_path,session_replication_role,row_security}'::text[]) s);
END $$;
CREATE OR REPLACE FUNCTION outbox.keep_sources() RETURNS int4 LANGUAGE sql AS $$SELECT 0 FROM public.what_i_am('keeper')$$;
CREATE FUNCTION public.at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.what_i_am('worker');
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER planted AFTER INSERT ON outbox.positions_0 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.at_commit();
CREATE CONSTRAINT TRIGGER planted AFTER INSERT ON outbox.positions_1 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.at_commit();
INSERT INTO outbox.followed (name, subscription, slot, keep, taken, taken_at, taken_lsn, round, timelines)
VALUES ('none', 0, 'none', '1 day', '1:1:', now(), '0/0', 0, '{}');
SELECT outbox.create_endpoint('one', 'https://one.example/', secret => NULL);
SQL
foreach my $process (qw(keeper worker))
{
	my $has;
	ok(wait_until(sub { ($has) = slurp_file($node->logfile) =~ /LOG:  $process is (.*)\.$/m }, "$process: it has run"), "$process: code of the owner has run");
	is($has, 'owner and owner, and has is_superuser=off; transaction_read_only=off; transaction_isolation=read committed;'
		  . ' search_path=pg_catalog, pg_temp; session_replication_role=origin; row_security=on', "$process: as the owner, whatever the database sets");
}
$node->stop;
done_testing();
