# sql/source.sql does not use a schema that another role has made before.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE provided LOGIN; CREATE ROLE mallory LOGIN');
my $superuser = $node->safe_psql('postgres', 'SELECT current_user');

my $plant = <<'SQL';
CREATE FUNCTION outbox.source_version() RETURNS text LANGUAGE sql AS $$ SELECT '1.0' $$;
CREATE TABLE outbox.pieces (piece int2 PRIMARY KEY, opened_at timestamptz, closed_at timestamptz, closed_xmax xid8, done_lsn pg_lsn);
CREATE FUNCTION outbox.catch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'planted runs as %', current_user; RETURN NEW; END $$;
CREATE TRIGGER catch BEFORE INSERT ON outbox.pieces FOR EACH ROW EXECUTE FUNCTION outbox.catch();
GRANT ALL ON SCHEMA outbox TO PUBLIC;
GRANT ALL ON outbox.pieces TO PUBLIC;
SQL

sub run_script
{
	my ($db, $user) = @_;
	my ($rc, undef, $err) = $node->psql($db, "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', $user ], on_error_stop => 1);
	return ($rc, $err);
}

foreach my $user ('provided', $superuser)
{
	foreach my $owner ('mallory', $user)
	{
		my $db = "planted_${owner}_$user";
		$node->safe_psql('postgres', "CREATE DATABASE $db OWNER provided; GRANT CREATE ON DATABASE $db TO mallory");
		$node->safe_psql($db, "CREATE SCHEMA outbox AUTHORIZATION $owner; GRANT ALL ON SCHEMA outbox TO mallory");
		$node->safe_psql($db, $plant, extra_params => [ '-U', 'mallory' ]);
		my ($rc, $err) = run_script($db, $user);
		isnt($rc, 0, "$user: a schema of $owner with objects of mallory is not used");
		like($err, qr/schema outbox, or something in it, belongs to role "mallory"/, 'the role is named');
		unlike($err, qr/planted runs/, 'and nothing of it has run');
	}
}

# Its own may be there, and that of a superuser.
$node->safe_psql('postgres', 'CREATE DATABASE clean OWNER provided');
is((run_script('clean', 'provided'))[0], 0, 'an empty database');
is((run_script('clean', 'provided'))[0], 0, 'again');
like((run_script('clean', $superuser))[1], qr/HINT:  If that role has run this script before, run it as that role\./, 'as another role it is told how');
done_testing();
