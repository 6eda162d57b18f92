# No statement of a role without any right stops the server.
# Among them are procedures that end the transaction, which frees the plan of their CALL.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_prepared_transactions = 10\n");
my $scripts = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', "CREATE ROLE anyone LOGIN; GRANT TEMP ON DATABASE postgres TO anyone");
$node->safe_psql('postgres', 'CREATE DATABASE without');
$node->safe_psql('without', 'CREATE EXTENSION pg_stat_statements') if is_installed('pg_stat_statements');
my $started = $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');

# What the procedure does after it has ended the transaction takes the memory that was freed.
my $reuse = <<'SQL' =~ s/\n/ /gr;
select count(*) into n from pg_class where oid = x; n := n * 2 + x;
select max(oid)::int into n from pg_proc where proname like 'x%';
for n in select oid::int from pg_am loop n := n + x; end loop;
select count(*) into n from pg_type where oid > x;
SQL

sub procedure
{
	my ($name, $body) = @_;
	return "create or replace procedure pg_temp.$name(x int) language plpgsql as \$\$ declare n int; begin $body end \$\$;\n";
}

sub do_block
{
	my ($body) = @_;
	return "do \$\$ declare n int; x int := 1; begin $body end \$\$;\n";
}

my $calls = "call pg_temp.p(:x);\n" x 3;
my %script = (
	'CALL that rolls back' => procedure('p', "rollback; $reuse") . $calls,
	'CALL that commits' => procedure('p', "commit; $reuse") . $calls,
	'CALL that does both in turn' => procedure('p', "commit; $reuse rollback; $reuse commit; $reuse") . $calls,
	'CALL within a CALL' => procedure('q', "rollback; $reuse commit;") . procedure('p', "call pg_temp.q(x); rollback; $reuse") . $calls,
	'CALL that replaces its own procedure' =>
	  procedure('q', 'null;') . procedure('p', "execute 'create or replace procedure pg_temp.q(x int) language sql as ''select 1'''; commit; $reuse call pg_temp.q(x);")
	  . $calls . "drop procedure pg_temp.q(int);\n",
	'CALL that drops its own procedure' => procedure('p', "drop procedure pg_temp.p(int); commit; $reuse") . "call pg_temp.p(:x);\n",
	'CALL that fails after it rolled back' =>
	  procedure('p', "rollback; begin perform x / 0; exception when division_by_zero then null; end; rollback; $reuse") . $calls,
	'CALL that discards its plans' => procedure('p', "rollback; execute 'set work_mem = ' || 1000 + x; execute 'discard plans'; commit; $reuse")
	  . $calls,
	'DO that rolls back' => do_block("rollback; $reuse") x 2,
	'DO that commits' => do_block("commit; $reuse") x 2,
	'DO with a CALL' => procedure('p', "rollback; $reuse") . do_block("call pg_temp.p(x); rollback; $reuse"));

sub survives
{
	my ($dbname, $mode, $name) = @_;
	my $file = "$scripts/" . ($name =~ s/\W/_/gr);

	PostgreSQL::Test::Utils::append_to_file($file, "\\set x random(1, 1000)\n$script{$name}") unless -e $file;
	my ($out, $err);
	IPC::Run::run(
		[ 'pgbench', '-n', '-M', $mode, '-U', 'anyone', '-h', $node->host, '-p', $node->port, '-f', $file, '-t', 20, $dbname ],
		'>', \$out, '2>', \$err);
	is($err =~ s/^pgbench: (?:warning|hint).*\n|^pgbench \(.*\n//mgr, '', "$name, $mode, in $dbname");
	return;
}

foreach my $dbname ('without', 'postgres')
{
	foreach my $mode ('extended', 'prepared', 'simple')
	{
		survives($dbname, $mode, $_) foreach sort keys %script;
	}
}

# Commands that the library looks at, by the owner of a database, as statements of a
# function, and where they fail.  The names of each are in a plan.
$node->safe_psql('postgres', 'ALTER ROLE anyone CREATEDB');
foreach my $command (
	'drop database if exists nothing',
	'create database postgres',
	'alter database nothing rename to nothing2',
	'alter database without set tablespace nothing',
	"prepare transaction 'gid'",
	"commit prepared 'nothing'",
	"rollback prepared 'nothing'",
	"create subscription s connection '' publication p",
	'alter subscription nothing disable')
{
	my $file = "$scripts/command";
	unlink $file;
	PostgreSQL::Test::Utils::append_to_file($file,
		"$command;\ndo \$\$ begin execute \$x\$ $command \$x\$; exception when others then rollback; end \$\$;\n");
	foreach my $mode ('extended', 'prepared', 'simple')
	{
		IPC::Run::run(
			[ 'pgbench', '-n', '-M', $mode, '-U', 'anyone', '-h', $node->host, '-p', $node->port, '-f', $file, '-t', 2, 'without' ],
			'>', \my $out, '2>', \my $err);
		unlike($err, qr/server closed the connection|terminating connection/, "$command, $mode");
	}
}

is($node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $started, 'the server has not started again');
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
unlike($log, qr/was terminated by signal|TRAP:/, 'no process was ended by a signal');
is(() = $log =~ /database system is ready to accept/g, 1, 'the server was ready once');
done_testing();
