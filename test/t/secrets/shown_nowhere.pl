# A secret is in one table and comes out of one function, and nothing else shows it.
# No view, log line, plan, error, statistic, activity or dump has it.  Roles that watch
# or emit see no payload, no answer, no header and no URL.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# What looks into statements, where it is installed
chomp(my $libraries = `pg_config --pkglibdir`);
my @modules = grep { -e "$libraries/$_.so" } qw(auto_explain pg_stat_statements);
my $modules = join ', ', 'outbox', @modules;
diag("NOT TESTED: plans and statements, for only $modules are installed") if @modules < 2;

my $node = outbox_node('secrets', conf => "shared_preload_libraries = '$modules'\n" . <<'CONF');
log_min_messages = debug5
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_verbose = on
auto_explain.log_triggers = on
auto_explain.log_settings = on
pg_stat_statements.track = all
debug_print_parse = on
debug_print_rewritten = on
debug_print_plan = on
log_statement = all
log_min_duration_statement = 0
log_error_verbosity = verbose
track_activity_query_size = 16384
CONF
my $receiver = OutboxTest::Receiver->new('secrets');
my $token = 'token-of-the-endpoint';
my ($rc, $out, $err);
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements') if grep { $_ eq 'pg_stat_statements' } @modules;

# Three generated secrets, one that the caller chose, a rotation under way; and deliveries
# that go well and that fail
foreach my $name (qw(good failing rotating))
{
	my $path = $name eq 'failing' ? "/status/500/$name/path-$token?body=answer-marker&token=$token" : "/ok/$name?token=$token";
	my $url = $receiver->url($path);
	$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name', '$url', max_attempts => 2, backoff_base => '10 ms', headers => '{"x-bearer": "header-marker"}')
SQL
}
$node->safe_psql('postgres', "SELECT outbox.rotate_secret('rotating')");
$node->safe_psql('postgres', "SELECT outbox.rotate_secret('rotating', '1 hour')");
# Also by a plan that PostgreSQL has made before in the session
$node->safe_psql('postgres', join(';', map { "SELECT outbox.$_" } "alter_endpoint('good', max_in_flight => 5)", ("pause_endpoint('good')", "resume_endpoint('good')") x 2));

# A secret that the caller chose, in a table and so in no statement
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE chosen AS SELECT outbox.new_secret() AS secret;
SELECT outbox.rotate_secret('good', '1 hour', secret => secret) FROM chosen;
SELECT outbox.alter_endpoint('failing', secret => secret) FROM chosen;
SELECT outbox.create_endpoint('chosen', 'https://a.example/', topics => '{chosen}', secret => secret) FROM chosen;
ALTER TABLE chosen RENAME TO forgotten;
SQL
# Interrupted in the middle of it, with another secret
my $other = "overlay(secret PLACING translate(substr(secret, 7, 40), '"
  . join('', 'A' .. 'Z', 'a' .. 'z', 0 .. 9) . "', '" . join('', 'B' .. 'Z', 'a' .. 'z', 0 .. 9, 'A') . "') FROM 7)";
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN');
$holder->query_safe('LOCK TABLE outbox.endpoint_secrets IN SHARE MODE');
my $broken_off = '';
foreach my $call ("rotate_secret('good', '1 hour', secret => secret)", "alter_endpoint('good', secret => secret)",
	"create_endpoint('other', 'https://a.example/', secret => secret)")
{
	($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSET lock_timeout = '10ms';\nSET client_min_messages = debug5;\n"
		  . "SELECT outbox.$call FROM (SELECT $other FROM forgotten) f (secret)");
	like($err, qr/55P03: canceling statement due to lock timeout/, "$call: broken off");
	$broken_off .= $err;
}
$holder->query_safe('ROLLBACK');
$holder->quit;

my @secrets = split /\n/, $node->safe_psql('postgres',
	q{SELECT unnest(ARRAY[secret, previous]) FROM outbox.endpoint_secrets});
@secrets = grep { $_ ne '' } @secrets;
push @secrets, $node->safe_psql('postgres', "SELECT $other FROM forgotten");
$node->safe_psql('postgres', 'DROP TABLE forgotten');
@secrets = keys %{ { map { $_ => 1 } @secrets } };
cmp_ok(scalar @secrets, '>=', 5, 'generated and chosen secrets, and such as are on their way out');
like($_, qr{^whsec_[A-Za-z0-9+/]{43}=$}, 'a generated secret') foreach @secrets;
is($node->safe_psql('postgres', q{SELECT outbox.endpoint_secret('good')}),
	$node->safe_psql('postgres',
		q{SELECT secret FROM outbox.endpoint_secrets JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'good'}),
	'endpoint_secret tells it');

emit($node, 'order.created', '{"a": "payload-marker"}', q{headers => '{"x-own": "header-marker"}'}) foreach 1 .. 3;
wait_settled($node);
my $worker = worker_pid($node);
kill 'TERM', $worker;
new_worker($node, $worker);
emit($node, 'order.created', '{}');
wait_settled($node);

sub has_none
{
	my ($text, $name) = @_;
	my @found = grep {
		my $bytes = substr($_, length 'whsec_');

		# The secret as text, and as a constant in a printed plan
		index($text, $bytes) >= 0 || index($text, join(' ', map { ord } split //, substr($bytes, 0, 20))) >= 0
	} @secrets;

	is(scalar @found, 0, "$name: no secret");
	return;
}

# Views, tables and activity as a superuser: only the one table
my @relations = split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname IN ('outbox', 'pg_catalog') AND relkind IN ('r', 'v', 'm', 'p', 'S')
AND c.oid <> 'outbox.endpoint_secrets'::regclass OR relname LIKE 'pg_stat_statements%' AND relkind = 'v' ORDER BY relkind, relname
SQL
$node->safe_psql('postgres', 'ANALYZE');
cmp_ok(scalar @relations, '>', 100, 'there are many relations');
($rc, $out, $err) = $node->psql('postgres',
	join(";\n", map { "TABLE $_" } @relations), on_error_stop => 0);
has_none("$out$err", 'all tables and views but the one');

# A role that reads everything, one that watches everything, and the roles of doc/security.md
$node->safe_psql('postgres', $_) foreach documented_roles();
$node->safe_psql('postgres', <<'SQL');
ALTER ROLE app LOGIN; ALTER ROLE operator LOGIN; ALTER ROLE watcher LOGIN;
CREATE ROLE reader LOGIN; GRANT pg_read_all_data, pg_write_all_data TO reader;
CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor; GRANT watcher TO monitor;
CREATE ROLE statistician LOGIN; GRANT pg_read_all_stats TO statistician;
CREATE ROLE settler LOGIN; GRANT pg_read_all_settings TO settler;
SQL
has_none($broken_off, 'errors');
foreach my $role (qw(reader monitor statistician settler app watcher operator))
{
	my $sql = join ";\n", (
		(map { "TABLE $_" } @relations, 'outbox.endpoint_secrets'),
		'COPY outbox.endpoint_secrets TO STDOUT',
		'SELECT k.* FROM outbox.endpoint_secrets k, LATERAL (SELECT secret) x',
		'SET row_security = off; TABLE outbox.endpoint_secrets; RESET row_security',
		($role eq 'operator' ? () : (q{SELECT outbox.endpoint_secret('good')}, q{SELECT outbox.rotate_secret('good', '0')})),
		q{SELECT * FROM pg_statistic WHERE starelid = 'outbox.endpoint_secrets'::regclass},
		q{SELECT * FROM pg_stats WHERE tablename = 'endpoint_secrets'},
		q{EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM outbox.endpoint_secrets},
		q{SELECT secret::int FROM outbox.endpoint_secrets});
	($rc, $out, $err) = $node->psql('postgres', $sql,
		on_error_stop => 0, extra_params => [ '-U', $role ]);
	has_none("$out$err", $role);

	next if $role eq 'reader';
	($rc, $out, $err) = $node->psql('postgres', join(";\n", map { "TABLE $_" } grep { /^outbox\./ } @relations),
		on_error_stop => 0, extra_params => [ '-U', $role ]);
	my @seen = grep { "$out$err" =~ /\Q$_\E/ } $token, 'payload-marker', 'answer-marker', 'header-marker', '127.0.0.1';
	is( join(' ', @seen),
		$role eq 'operator' ? "$token payload-marker answer-marker header-marker 127.0.0.1" : '',
		"$role: " . ($role eq 'operator' ? 'sees it all' : 'no payload, answer, header or URL'));
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.endpoint_secrets', extra_params => [ '-U', 'reader' ]),
	'0', 'pg_read_all_data sees an empty table');
($rc, $out, $err) = $node->psql('postgres', q{SELECT outbox.endpoint_secret('good')}, extra_params => [ '-U', 'reader' ]);
like($err, qr/permission denied/, 'and may not ask for one');
($rc, $out, $err) = $node->psql('postgres', 'TABLE outbox.endpoint_secrets', extra_params => [ '-U', 'monitor' ]);
like($err, qr/permission denied/, 'pg_monitor sees no table');

# What monitors see of the URL and the token in it
is( $node->safe_psql('postgres', q{SELECT * FROM outbox.stats, outbox.status, outbox.workers}, extra_params => [ '-U', 'monitor' ]) =~ /\Q$token\E/ ? 1 : 0,
	0, 'stats, status and workers do not show the query of a URL');

# Errors do not repeat what was wrong with a secret
my $almost = 'whsec_' . ('QUJD' x 7) . '=';
foreach my $sql (
	qq{SELECT outbox.create_endpoint('e', 'https://example.com/', secret => :'secret')},
	qq{SELECT outbox.alter_endpoint('good', secret => :'secret')},
	qq{SELECT outbox.rotate_secret('good', secret => :'secret')})
{
	(my $call = $sql) =~ s/.*outbox\.(\w+).*/$1/;
	($rc, $out, $err) = $node->psql('postgres',
		"SET log_min_error_statement = panic;\n\\set VERBOSITY verbose\n$sql \\g",
		extra_params => [ '-v', "secret=$almost" ]);
	like($err, qr/22023: invalid secret/, "$call: an invalid secret is refused");
	unlike(join("\n", grep { !/^LINE/ } split /\n/, $err), qr/\Q$almost\E/, 'without repeating it');
}

# A dump has the endpoints and no secret, with whatever options
foreach my $options ([], ['--data-only'], ['--enable-row-security'], [ '--table', 'outbox.*' ], ['--inserts'])
{
	my $dump = '';
	IPC::Run::run([ 'pg_dump', '-h', $node->host, '-p', $node->port, @$options, 'postgres' ],
		'>', \$dump, '2>', \$err);
	is($err, '', "pg_dump @$options");
	like($dump, qr/endpoint_settings/, 'has the endpoints') unless "@$options" =~ /--table/;
	has_none($dump, "pg_dump @$options");
}
my $all = '';
IPC::Run::run([ 'pg_dumpall', '-h', $node->host, '-p', $node->port ], '>', \$all, '2>', \$err);
has_none($all, 'pg_dumpall');
my $as_reader = '';
IPC::Run::run([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-U', 'reader', 'postgres' ],
	'>', \$as_reader, '2>', \$err);
is($err, '', 'pg_dump as a member of pg_read_all_data');
has_none($as_reader, 'its dump');

# Another copy has the endpoint, held until it gets a secret
$node->safe_psql('postgres', 'CREATE DATABASE copy');
my $plain = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
PostgreSQL::Test::Utils::append_to_file($plain, $as_reader);
$node->command_ok([ 'psql', '-qX1', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-f', $plain, 'copy' ],
	'the dump can be restored');
is($node->safe_psql('copy', q{SELECT count(*), count(outbox.endpoint_secret(name)) FROM outbox.endpoints}),
	'4|0', 'the copy has the endpoints and no secret');
$node->safe_psql('copy', q{SELECT outbox.rotate_secret('good')});
like($node->safe_psql('copy', q{SELECT outbox.endpoint_secret('good')}), qr/^whsec_/,
	'rotate_secret sets one where it is missing');

# The log of the server, at debug1, with every statement
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
like($log, qr/rotate_secret/, 'the log has the statements');
like($log, qr/DEBUG:/, 'and debugging messages');
has_none($log, 'the server log');
my @lines = grep { /\Q$token\E/ && !/create_endpoint/ } split /\n/, $log;
is(join("\n", @lines), '', 'the log has the token in a URL only where it was typed in');

$node->stop;
done_testing();
