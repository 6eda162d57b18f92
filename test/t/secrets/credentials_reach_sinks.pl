# Credentials of an endpoint reach its sink, and nothing else shows them.
# No view, log line, plan, error, statistic or dump has one.  A restored endpoint says that
# they are missing, and goes on with new ones.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('credentials');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);
append_to_file($journal, '');

# What looks into statements, where it is installed
my $modules = join ', ', 'outbox', grep { -e $build->{library} =~ s/outbox\.so$/$_.so/r } qw(auto_explain pg_stat_statements);
my $node = outbox_node('main', build => $build, conf => "shared_preload_libraries = '$modules'\n" . <<'CONF');
outbox.sinks = 'webhook, null'
log_min_messages = debug5
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_verbose = on
pg_stat_statements.track = all
debug_print_parse = on
debug_print_rewritten = on
debug_print_plan = on
log_statement = all
log_min_duration_statement = 0
log_error_verbosity = verbose
CONF
my ($rc, $out, $err);

# In a table, and so in no statement
ask(<<'SQL');
CREATE TABLE chosen AS
SELECT n, jsonb_build_object('user', 'user-' || md5(random()::text), 'token', 'token-' || md5(random()::text)) AS c
FROM generate_series(1, 4) n
SQL
my @secrets = split /\n/, ask("SELECT v FROM chosen, jsonb_each_text(c) e (k, v) ORDER BY n, k DESC");

# The sink was opened with the credentials of this number in the table
sub opened
{
	my ($n, $name) = @_;
	my ($user, $token) = @secrets[ 2 * $n - 2, 2 * $n - 1 ];
	return ok(wait_until(sub { slurp_file($journal) =~ /^ok\topen\tauth=token\tuser=$user\ttoken=$token$/m }, $name), $name);
}

sub has_none
{
	my ($text, $name) = @_;
	my @found = grep { my $s = $_; index($text, $s) >= 0 || index($text, join(' ', map { ord } split //, substr($s, 0, 20))) >= 0 } @secrets;

	is(scalar @found, 0, "$name: no credential");
	return;
}

ask(q[SELECT outbox.create_endpoint('null', 'null://h/ok', config => '{"auth": "token"}', credentials => c) FROM chosen WHERE n = 1]);
opened(1, 'the sink has the credentials');
ask(q[SELECT outbox.alter_endpoint('null', credentials => c) FROM chosen WHERE n = 2]);
opened(2, 'and others after they were replaced');
my $id = emit($node, 'order.created', '{}');
wait_status($node, $id, 'delivered', 'an event is delivered with them');

# Interrupted in the middle, with others
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN');
$holder->query_safe('LOCK TABLE outbox.endpoint_secrets IN SHARE MODE');
my $errors = '';
foreach my $call ("alter_endpoint('null', credentials => c)", "create_endpoint('other', 'null://h/ok', credentials => c)")
{
	($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSET lock_timeout = '10ms';\nSET client_min_messages = debug5;\n"
		  . "SELECT outbox.$call FROM chosen WHERE n = 3");
	like($err, qr/55P03: canceling statement due to lock timeout/, "$call: broken off");
	$errors .= $err;
}
$holder->query_safe('ROLLBACK');
$holder->quit;
foreach my $refused ("jsonb_build_object('password', c ->> 'token')", "jsonb_build_object('token', c)",
	"jsonb_build_object(c ->> 'token', 'token')", "jsonb_build_array(c ->> 'token')", "to_jsonb(c ->> 'token')")
{
	($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT outbox.alter_endpoint('null', credentials => $refused) FROM chosen WHERE n = 3");
	like($err, qr/ERROR:  22023: .*HINT:/s, "$refused is refused");
	$errors .= $err;
}
has_none($errors, 'errors');

# They are what is looked for, and then they are in one table only
is(ask('SELECT credentials = c FROM outbox.endpoint_secrets, chosen WHERE n = 2'), 't', 'they are stored, where nothing seals them');
ask('DROP TABLE chosen');
ask('ANALYZE');

# Views, tables and activity as a superuser: only the one table
my @relations = all_relations($node, 'outbox.endpoint_secrets');
cmp_ok(scalar @relations, '>', 100, 'there are many relations');
($rc, $out, $err) = $node->psql('postgres', join(";\n", map { "TABLE $_" } @relations), on_error_stop => 0);
has_none("$out$err", 'all tables and views but the one');

ask($_) foreach documented_roles();
ask(<<'SQL');
ALTER ROLE operator LOGIN; ALTER ROLE watcher LOGIN;
CREATE ROLE reader LOGIN; GRANT pg_read_all_data, pg_write_all_data TO reader;
SQL
foreach my $role (qw(reader watcher operator))
{
	($rc, $out, $err) = $node->psql('postgres',
		join(";\n", (map { "TABLE $_" } @relations, 'outbox.endpoint_secrets'),
			'COPY outbox.endpoint_secrets TO STDOUT', 'SELECT credentials::text::int FROM outbox.endpoint_secrets',
			q{SELECT * FROM pg_stats WHERE tablename = 'endpoint_secrets'}),
		on_error_stop => 0, extra_params => [ '-U', $role ]);
	has_none("$out$err", $role);
}
is($node->safe_psql('postgres', q{SELECT credentials FROM outbox.endpoints}, extra_params => [ '-U', 'operator' ]),
	'{user,token}', 'an operator sees which ones there are');

# Long ones are in several rows of that table, and none is in its TOAST table, which
# row-level security does not guard: certificates and keys, and tokens in any script.
my $toast = ask("SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'outbox.endpoint_secrets'::regclass");
my $large = q[(SELECT jsonb_object_agg(k, CASE WHEN k = 'user' THEN long ELSE repeat(chr(8364) || chr(128512), 3000) || long END)
	FROM unnest('{user,token}'::text[]) k, (SELECT string_agg(md5(i::text), '') AS long FROM generate_series(1, 1000) i) l)];
foreach my $case ([ $large, 'long ones' ], [ q['{"user": "short", "token": "one"}'::jsonb], 'short ones' ], [ $large, 'long ones again' ])
{
	my ($value, $name) = @$case;
	ask("CREATE TABLE asked AS SELECT $value AS c");
	if ($name eq 'long ones')
	{
		ask("SELECT outbox.create_endpoint('long', 'null://h/ok', topics => '{long}', credentials => c) FROM asked");
	}
	else
	{
		ask("SELECT outbox.alter_endpoint('long', credentials => c) FROM asked");
	}
	is(ask("SELECT outbox.stored_credentials(endpoint_id) = c FROM outbox.endpoint_settings, asked WHERE name = 'long'"), 't', "$name: stored");
	is(ask("SELECT count(*) > 1 FROM outbox.endpoint_secrets JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'long'"),
		$name =~ /^long/ ? 't' : 'f', "$name: in as many rows as they need");
	is(ask("SELECT pg_relation_size('$toast')"), '0', "$name: and nothing in the TOAST table") if $toast ne '-';
	ask('DROP TABLE asked');
	my $sent = emit($node, 'long', '{}');
	wait_status($node, $sent, 'delivered', "$name: the sink takes them");
}
my $token = ask("SELECT outbox.stored_credentials(endpoint_id) ->> 'user' FROM outbox.endpoint_settings WHERE name = 'long'");
ok(wait_until(sub { index(slurp_file($journal), "user=$token") >= 0 }, 'journal'), 'and gets them whole');
is($node->safe_psql('postgres', "SELECT count(*) FROM $toast", extra_params => [ '-U', 'reader' ]), '0', 'a reader of all data finds none')
  if $toast ne '-';
ok(wait_settled($node), 'settled');
ask("SELECT outbox.drop_endpoint('long')");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.endpoint_secrets"), 'dropped with all rows');

# What is stored goes to the servers that it was given for, and to no other.
ask(q[SELECT outbox.create_endpoint('moved', 'null://h/ok', topics => '{moved}', credentials => '{"token": "of h"}')]);
foreach my $url ('null://evil/ok', 'null://h,evil/ok', 'null://h:1/ok')
{
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.alter_endpoint('moved', url => '$url')");
	like($err, qr/22023: the credentials of endpoint "moved" are not for this URL and config.*HINT/s, "$url: refused with the stored credentials");
}
ask(q[SELECT outbox.alter_endpoint('moved', url => 'null://H/ok?other')]);
ask(q[SELECT outbox.alter_endpoint('moved', url => 'null://g/ok', credentials => '{"token": "of g"}')]);
ask(q[SELECT outbox.alter_endpoint('moved', url => 'null://h/ok', reset => '{credentials}')]);
ask(q[SELECT outbox.alter_endpoint('moved', url => 'null://g/ok')]);
pass('fine with new ones, with none, and at the same server');
is(ask(q[SELECT string_agg(outbox.keeps_credentials(o, c, n, d)::text, ' ') FROM (VALUES ('null://h/', NULL::jsonb, 'null://h/', NULL::jsonb),
	('null://h/', NULL, NULL, NULL), (NULL, NULL, 'null://h/', NULL), ('null://h/', NULL, 'https://h/', NULL), ('nulls://h/', NULL, 'null://h/', NULL), ('null:?://h/', NULL, 'null://h/', NULL),
	('other://h/', '{"a": 1, "b": 2}', 'other://h/', '{"b": 2, "a": 1}'), ('other://h/', '{"a": 1}', 'other://h/', '{"a": 2}'), ('other://h/', NULL, 'other://h/t', NULL)) v (o, c, n, d)]),
	'true false false false false false true false false', 'what is not known to be the same is not the same');
ask("SELECT outbox.drop_endpoint('moved')");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.endpoint_secrets"), 'dropped');

# Dumps
my $plain = '';
foreach my $options ([ '--inserts', '--enable-row-security' ], ['--data-only'], [])
{
	$plain = '';
	IPC::Run::run([ 'pg_dump', '-h', $node->host, '-p', $node->port, @$options, 'postgres' ], '>', \$plain, '2>', \$err);
	like($plain, qr/endpoint_settings/, "pg_dump @$options: the endpoint");
	has_none("$plain$err", "pg_dump @$options");
}

# A copy of it
append_to_file("$dir/dump.sql", $plain);
ask('CREATE DATABASE copy');
$node->command_ok([ 'psql', '-qX1', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-f', "$dir/dump.sql", 'copy' ],
	'the dump is restored');
ask('SELECT outbox.adopt()', 'copy');
$id = emit($node, 'order.copied', '{}', undef, 'copy');
ok(wait_sql($node, "SELECT state = 'held' AND reason = 'credentials missing' FROM outbox.stats", 't', 'copy'),
	'the restored endpoint says that its credentials are missing')
  or diag(ask('SELECT state, reason FROM outbox.stats', 'copy'));
ask("SELECT outbox.alter_endpoint('null', timeout => '20 s')", 'copy');
ok(wait_sql($node, "SELECT state = 'held' AND reason = 'credentials missing' AND pending = 1 FROM outbox.stats", 't', 'copy'),
	'also after another change');
ask(q[SELECT outbox.alter_endpoint('null', credentials => '{"token": "of the copy"}')], 'copy');
ok(wait_sql($node, "SELECT state = 'active' AND delivered = 5 AND pending = 0 FROM outbox.stats", 't', 'copy'), 'with new ones it goes on');
like(slurp_file($journal), qr/^ok\topen\tauth=token\ttoken=of the copy$/m, 'and uses them');

# The whole log
my $log = slurp_file($node->logfile);
like($log, qr/DEBUG:.*alter_endpoint/s, 'the log has debugging messages and statements');
has_none($log, 'the server log');

# Sealed
my $file = "$dir/outbox.keys";
append_to_file($file, `openssl rand -base64 32`);
chmod 0600, $file;
ask("ALTER SYSTEM SET outbox.secret_key_file = '$file'");
ask('SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT current_setting('outbox.secret_key_file') <> ''"), 'a key file is set');
my $opened = () = slurp_file($journal) =~ /\Q$secrets[3]\E/g;
is(ask('SELECT sealed FROM outbox.reseal_secrets()'), '1', 'what is stored is sealed');
my $sealed = q[SELECT bool_and(v LIKE 'sealed:1:%') AND count(*) = 2 FROM outbox.endpoint_secrets, jsonb_each_text(credentials) e (k, v)];
is(ask($sealed), 't', 'each credential is');
ok(wait_until(sub { (() = slurp_file($journal) =~ /\Q$secrets[3]\E/g) > $opened }), 'the sink gets them in clear');
$id = emit($node, 'order.sealed', '{}');
wait_status($node, $id, 'delivered', 'and events are delivered');
ask(q[SELECT outbox.alter_endpoint('null', credentials => '{"token": "new", "user": "new"}')]);
is(ask($sealed), 't', 'new ones are sealed at once');
ask("CREATE TABLE asked AS SELECT $large AS c");
$opened = () = slurp_file($journal) =~ /user=\Q$token\E/g;
ask("SELECT outbox.create_endpoint('long', 'null://h/ok', topics => '{long}', credentials => c) FROM asked");
ok(wait_until(sub { (() = slurp_file($journal) =~ /user=\Q$token\E/g) > $opened }), 'the sink gets long ones in clear');
is(ask("SELECT outbox.stored_credentials(endpoint_id) ->> 'user' LIKE 'sealed:1:%' FROM outbox.endpoint_settings WHERE name = 'long'"), 't', 'a long one is sealed');
is(ask("SELECT pg_relation_size('$toast')"), '0', 'and not in the TOAST table either') if $toast ne '-';
ask("SELECT outbox.drop_endpoint('long', discard => true); DROP TABLE asked");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.endpoint_secrets"), 'dropped');
ask(q[UPDATE outbox.endpoint_secrets SET credentials = jsonb_build_object('token', credentials ->> 'user', 'user', credentials ->> 'token')]);
ask('SELECT outbox.endpoint_changed(0)');
ok(wait_sql($node, "SELECT state = 'held' AND reason ~ 'sealed' FROM outbox.stats"), 'a sealed one does not open under another name')
  or diag(ask('SELECT state, reason FROM outbox.stats'));
unlike(slurp_file($journal), qr/sealed:1:/, 'and the sink is not opened with what is sealed');

$node->stop;
done_testing();
