# A secret that is passed as a parameter is in no log and no view of statements.
# The drivers' examples of doc/security.md pass it so, and its table of settings is right.
use strict;
use warnings;

use IO::Socket::UNIX;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $libraries = `pg_config --pkglibdir`);
my $preloaded = join ', ', 'outbox', grep { -e "$libraries/$_.so" } qw(auto_explain pg_stat_statements);
my $watches = $preloaded =~ /pg_stat_statements/;
diag("NOT TESTED: plans and statements, for only $preloaded are installed") unless $preloaded =~ /auto_explain.*pg_stat_statements/;
my $node = outbox_node('parameters', conf => "shared_preload_libraries = '$preloaded'\n" . <<'CONF');
log_statement = all
log_min_duration_statement = 0
log_parameter_max_length = 0
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
pg_stat_statements.track = all
track_activity_query_size = 16384
CONF
$node->append_conf('postgresql.conf', "auto_explain.log_parameter_max_length = 0\n") if $node->pg_version >= 16;
$node->restart;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements') if $watches;
$node->safe_psql('postgres', "SELECT outbox.create_endpoint('ledger', 'https://ledger.example/hook', topics => '{ledger.*}')");

my $count = 0;
sub new_secret
{
	return 'whsec_' . substr('Q2hvc2VuQnlBUmVjZWl2ZXI' . sprintf('%09d', ++$count) . 'A' x 32, 0, 40);
}

# Where statements are seen, since the last time it was asked
my $log_seen = 0;
sub seen
{
	my $log = slurp_file($node->logfile, $log_seen);
	$log_seen += length $log;
	return $log . ($watches ? ask('SELECT query FROM pg_stat_statements') : '') . ask('SELECT query FROM pg_stat_activity');
}

# One statement with one parameter by the extended protocol, as drivers send it.
sub with_parameter
{
	my ($statement, $parameter) = @_;
	my $socket = IO::Socket::UNIX->new($node->host . '/.s.PGSQL.' . $node->port) or die "socket: $!";
	my $user = ask('SELECT current_user');
	my $message = sub { my ($type, $body) = @_; return $type . pack('N', 4 + length $body) . $body };
	my $answer = '';

	print $socket $message->('', pack('N', 196608) . "user\0$user\0database\0postgres\0\0"),
	  $message->('P', "\0$statement\0" . pack('n', 0)),
	  $message->('B', "\0\0" . pack('nnN', 0, 1, length $parameter) . $parameter . pack('n', 0)),
	  $message->('E', "\0" . pack('N', 0)), $message->('S', ''), $message->('X', '');
	$socket->flush;
	$socket->shutdown(1);
	local $/;
	$answer = <$socket> // '';
	return $answer;
}

# As a literal it is seen: this test would notice.
my $literal = new_secret();
ask("SELECT outbox.rotate_secret('ledger', secret => '$literal')");
like(seen(), qr/\Q$literal\E/, 'a literal is in the log');
my $wrong = 'whsec_not-a-secret-at-all';
$node->psql('postgres', "SELECT outbox.rotate_secret('ledger', secret => '$wrong')");
like(seen(), qr/STATEMENT:  .*\Q$wrong\E/, 'also when the statement fails');

# As a parameter it is not, also when the statement fails.
foreach my $call (
	"outbox.rotate_secret('ledger', secret => \$1)",
	"outbox.alter_endpoint('ledger', secret => \$1)",
	"outbox.create_endpoint('ledger2', 'https://ledger.example/hook', secret => \$1)")
{
	my $secret = new_secret();
	my $answer = with_parameter("SELECT $call", $secret);
	like($answer, qr/SELECT 1/, "$call");
	my $name = $call =~ /ledger2/ ? 'ledger2' : 'ledger';
	is(ask("SELECT md5(outbox.endpoint_secret('$name'))"), ask("SELECT md5('$secret')"), 'it is the secret');
	$secret = substr(new_secret(), 0, 39) . '!';
	$answer = with_parameter("SELECT $call", $secret);
	like($answer, qr/C22023\0/, 'an invalid one is refused');
	unlike($answer, qr/\Q$secret\E/, 'without being repeated');
	unlike(seen() =~ s/.*md5\(.*//gr, qr/Q2hvc2VuQnlBUmVjZWl2ZXI0{5}/, "$call: nowhere");
}

# The settings of the table
foreach my $case (
	[ 'log_parameter_max_length = -1', 1, 0 ],
	[ 'log_parameter_max_length = 0', 0, 0 ],
	# The context of an error is that of whatever else is logged, as a plan.
	[ "log_parameter_max_length = 0\nlog_parameter_max_length_on_error = -1", $preloaded =~ /auto_explain/ ? 1 : 0, 1 ],
	[ "log_parameter_max_length_on_error = 0", 0, 0 ])
{
	my ($conf, $logged, $logged_with_error) = @$case;
	$node->append_conf('postgresql.conf', "$conf\n");
	$node->reload;
	foreach my $line (split /\n/, $conf)
	{
		my ($name, $value) = split / = /, $line;
		ok(wait_sql($node, "SELECT current_setting('$name') = '$value'"), $line);
	}
	seen();
	my ($good, $bad) = (new_secret(), substr(new_secret(), 0, 39) . '!');
	with_parameter("SELECT outbox.rotate_secret('ledger', secret => \$1)", $good);
	my $log = seen();
	is(index($log, $good) >= 0 ? 1 : 0, $logged, "$conf: with the statement");
	$node->append_conf('postgresql.conf', "log_statement = none\nlog_min_duration_statement = -1\n");
	$node->reload;
	ok(wait_sql($node, "SELECT current_setting('log_min_duration_statement') = '-1'"), 'errors only');
	seen();
	with_parameter("SELECT outbox.rotate_secret('ledger', secret => \$1)", $bad);
	ok(wait_until { ($log .= seen()) =~ /ERROR:  invalid secret/ } 'it is in the log');
	is(index($log, $bad) >= 0 ? 1 : 0, $logged_with_error, "$conf: with an error");
	$node->append_conf('postgresql.conf', "log_statement = all\nlog_min_duration_statement = 0\n");
	$node->reload;
	ok(wait_sql($node, "SELECT current_setting('log_min_duration_statement') = '0'"), 'statements again');
}

# The examples: each with its driver, where that is installed
my $dir = PostgreSQL::Test::Utils::tempdir('drivers');
my ($other_psql) = grep { `'$_' --version` =~ / (\d+)/ && $1 >= 16 && system("'$_' -X -d '@{[$node->connstr('postgres')]}' -c '' >$dir/psql 2>&1") == 0 }
  $node->config_data('--bindir') . '/psql', reverse sort glob(($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/*/usr/lib/postgresql/*/bin/psql');
my ($jdbc) = grep { -e $_ } $ENV{OUTBOX_TEST_JDBC} // '', '/usr/share/java/postgresql.jar';
my $pgx = $ENV{OUTBOX_TEST_PGX} // '';    # a directory whose go.mod has pgx
my $modules = "$top/test/conformance/node_modules";
my $python = $ENV{OUTBOX_TEST_PYTHON} // 'python3';
my %driver = (
	psql => [ 'psql', $other_psql, sub { "'$other_psql' -X -v ON_ERROR_STOP=1 -f $_[0]" } ],
	python => [ 'py', system("'$python' -c 'import psycopg' 2>$dir/python") == 0, sub { "'$python' $_[0]" } ],
	js => [ 'js', -e "$modules/pg/package.json", sub { "NODE_PATH='$modules' node $_[0]" } ],
	java => [ 'java', $jdbc, sub { "java -cp '$jdbc' $_[0]" } ],
	go => [ 'go', $pgx && -e "$pgx/go.mod", sub { "cp $_[0] '$pgx/main.go' && cd '$pgx' && go run ." } ]);
# What the document only names, as programs
my %block = (js => <<'JS', java => <<'JAVA', go => <<'GO');
const { Client } = require("pg");

(async () => {
  const client = new Client();
  await client.connect();
  await client.query("SELECT outbox.rotate_secret('ledger', secret => $1)", [process.env.WEBHOOK_SECRET]);
  await client.end();
})();
JS
import java.sql.*;

public class Rotate {
    public static void main(String[] args) throws SQLException {
        try (Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"));
             PreparedStatement statement = connection.prepareStatement(
                 "SELECT outbox.rotate_secret('ledger', secret => ?)")) {
            statement.setString(1, System.getenv("WEBHOOK_SECRET"));
            statement.execute();
        }
    }
}
JAVA
package main

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5"
)

func main() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, "")
	if err != nil {
		panic(err)
	}
	defer connection.Close(ctx)
	if _, err := connection.Exec(ctx, "SELECT outbox.rotate_secret('ledger', secret => $1)", os.Getenv("WEBHOOK_SECRET")); err != nil {
		panic(err)
	}
}
GO
my $doc = slurp_file("$top/doc/security.md");
$block{$1} = $2 while $doc =~ /^```(\w+) driver\n(.*?)^```$/msg;
is(join(' ', sort keys %block), join(' ', sort keys %driver), 'an example for each driver');
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGDATABASE} = 'postgres';
local $ENV{PGUSER} = ask('SELECT current_user');
foreach my $language (sort keys %block)
{
	my ($suffix, $there, $command) = @{ $driver{$language} };
	my $file = "$dir/Rotate.$suffix";
	my $secret = new_secret();

	if (!$there)
	{
		diag("NOT TESTED: the example for $language, whose driver is not installed");
		next;
	}
	append_to_file($file, $block{$language});
	if ($language eq 'java')
	{
		# It speaks TCP only
		$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\n");
		$node->append_conf('pg_hba.conf', "host all all 127.0.0.1/32 trust\n");
		$node->restart;
	}
	local $ENV{JDBC_URL} = "jdbc:postgresql://127.0.0.1:$ENV{PGPORT}/postgres?user=$ENV{PGUSER}";
	local $ENV{WEBHOOK_SECRET} = $secret;
	my $output = `(@{[$command->($file)]}) 2>&1`;
	is($?, 0, "$language: it runs") or diag($output);
	is(ask("SELECT outbox.endpoint_secret('ledger') IS NOT DISTINCT FROM concat('whsec_', '" . substr($secret, 6) . "')"),
		't', "$language: the secret is set");
	is(index(seen(), $secret), -1, "$language: it is in no statement");
}

$node->stop;
done_testing();
