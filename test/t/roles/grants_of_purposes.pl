# One call grants a role the privileges of a purpose, and a mere owner of the database can dump it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';
my ($rc, $out, $err);

sub fails_as
{
	my ($role, $sql, $sqlstate, $name) = @_;
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql", extra_params => [ '-U', $role ]);
	like($err, qr/\b$sqlstate\b/, $name);
	return;
}

# --- The name of a role, and the role that grants

ask('CREATE ROLE "App ""x""" LOGIN; CREATE ROLE outsider LOGIN; CREATE ROLE plain LOGIN');
ask(q{SELECT outbox.grant_emit('App "x"')});
is( $node->safe_psql('postgres', q{SELECT count(outbox.emit('a', '1', key => 7))}, extra_params => [ '-U', 'App "x"' ]),
	'1', 'any name of a role will do');
fails_as('App "x"', q{SELECT outbox.grant_emit('plain')}, 42501, 'an emitter grants nothing');
ask('GRANT USAGE ON SCHEMA outbox TO outsider; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO outsider');
fails_as('outsider', q{SELECT outbox.grant_emit('plain')}, 42501, 'nor does a role that may only call the function');
fails_as('postgres', q{SELECT outbox.grant_to('nobody here', 'operate')}, 42704, 'no such role: 42704');
fails_as('postgres', q{SELECT outbox.grant_to(NULL, 'watch')}, 22004, 'NULL: 22004');

# --- Some topics only, by whatever way

ask(q{CREATE ROLE clerk LOGIN; CREATE ROLE junior LOGIN IN ROLE clerk; SELECT outbox.grant_emit('clerk', topics => '{order.*,paid}')});
ask('CREATE TABLE public.thing (topic text); GRANT ALL ON public.thing TO clerk;'
	  . q{CREATE TRIGGER t AFTER INSERT ON public.thing FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('thing', 'topic')});
sub emits_as { return $node->safe_psql('postgres', $_[1], extra_params => [ '-U', $_[0] ]) }
my %ways = (
	'emit()' => q{SELECT outbox.emit('%s', '1')},
	'emit_bytes()' => q{SELECT outbox.emit_bytes('%s', 'x', 'text/plain')},
	'a later time' => q{SELECT outbox.emit('%s', '1', deliver_at => now() + interval '1 hour')},
	'outgoing' => q{INSERT INTO outbox.outgoing (topic, payload) VALUES ('%s', '1')},
	'INSERT' => q{INSERT INTO outbox.events (topic, payload) VALUES ('%s', '1')},
	'COPY' => qq{COPY outbox.events (topic, payload) FROM STDIN;\n%s\t1\n\\.\n});
foreach my $way (sort keys %ways)
{
	ok(defined emits_as('junior', sprintf $ways{$way}, 'order.made'), "$way: what it may emit");
	fails_as('junior', sprintf($ways{$way}, 'secret'), 42501, "$way: and no more");
}
fails_as('clerk', q{INSERT INTO public.thing VALUES ('a')}, 42501, 'nor by a trigger');
ask('CREATE ROLE readers; GRANT readers TO clerk; CREATE VIEW public.free AS SELECT topic, payload FROM outbox.events; GRANT INSERT ON public.free TO outsider');
my %lent = (
	'a view of the log' => 'CREATE TEMP VIEW v AS SELECT topic, payload FROM outbox.events',
	'a view of outgoing' => 'CREATE TEMP VIEW v AS SELECT topic, payload FROM outbox.outgoing',
	'a rule' => 'CREATE TEMP TABLE v (topic text, payload jsonb); CREATE RULE r AS ON INSERT TO v'
	  . ' DO INSTEAD INSERT INTO outbox.events (topic, payload) VALUES (new.topic, new.payload)');
foreach my $way (sort keys %lent)
{
	my $view = "$lent{$way}; GRANT INSERT ON v TO readers; INSERT INTO v VALUES ('order.made', '1')";
	ok(defined emits_as('clerk', $view), "$way: what its owner may emit");
	fails_as('clerk', "$view; INSERT INTO v VALUES ('secret', '1')", 42501, "$way: and no more");
	fails_as('clerk', "$view; SET ROLE readers; INSERT INTO v VALUES ('secret', '1')", 42501, "$way: nor does another role");
}
foreach my $statement (
	q{INSERT INTO outbox.events (topic, payload) SELECT 'secret', '1'::jsonb FROM set_config('role', 'readers', false)},
	q{INSERT INTO outbox.outgoing (topic, payload) SELECT 'secret', '1'::jsonb FROM set_config('role', 'readers', false)},
	q{SELECT outbox.emit('secret', '1') FROM set_config('role', 'readers', false)},
	q{BEGIN; DECLARE c CURSOR FOR SELECT outbox.emit('secret', '1'); SET ROLE readers; FETCH c})
{
	fails_as('clerk', $statement, 42501, "nor one that it becomes: $statement");
}
ask('CREATE ROLE pooled LOGIN NOINHERIT; GRANT clerk, readers TO pooled');
foreach my $other (qw(readers none))
{
	fails_as('pooled', "SET ROLE clerk; INSERT INTO outbox.$_ (topic, payload) SELECT 'secret', '1'::jsonb FROM set_config('role', '$other', false)",
		42501, "$_: nor does a session become $other that inherits no rights") foreach qw(events outgoing);
}
ok(defined emits_as('pooled', q{SET ROLE clerk; INSERT INTO outbox.events (topic, payload) VALUES ('paid', '1')}), 'which emits by its role');
ok(defined emits_as('outsider', q{INSERT INTO public.free VALUES ('secret', '1')}), 'a view of a role that may emit all is not bound');
ask(q{ALTER ROLE clerk RENAME TO "Clerk"});
fails_as('junior', q{SELECT outbox.emit('secret', '1')}, 42501, 'nor by another name');
ask(q{CREATE ROLE clerk LOGIN});
fails_as('junior', q{SELECT outbox.emit('secret', '1')}, 42501, 'nor when another role has its name');
ask(q{SELECT outbox.grant_emit('clerk')});
ok(emits_as('clerk', q{SELECT outbox.emit('secret', '1')}), 'which may emit all when that is said');
fails_as('junior', q{SELECT outbox.emit('secret', '1')}, 42501, 'and frees no other role by that');
ask(q{SELECT outbox.revoke_all('clerk'); DROP ROLE clerk; ALTER ROLE "Clerk" RENAME TO clerk});
my $late = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'junior' ]);
$late->query_safe(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox.emit('paid', '1')});
ask(q{SELECT outbox.grant_emit('clerk', topics => '{order.*}')});
ask(q{CREATE ROLE thing LOGIN; SELECT outbox.grant_emit('thing', topics => '{thing}')});
is(($late->query(q{SELECT outbox.emit('paid', '1')}))[0], '', 'another list binds an older transaction');
like($late->{stderr}, qr/role "junior" may not emit topic "paid"/, 'and the error names the role and the topic');
$late->quit;
ask('GRANT thing TO junior');
ok(emits_as('junior', q{SELECT outbox.emit('thing', '1'), outbox.emit('order.a', '1')}), 'the rights of two roles');
ok(ask(q{SELECT outbox.emit('secret', '1')}), 'a superuser is not bound');
ask(q{SELECT outbox.grant_emit('clerk'), outbox.revoke_all('thing')});
is(ask('SELECT count(*) FROM outbox.emit_topics'), '0', 'without a list, or without rights, no role is bound');
ok(emits_as('junior', q{SELECT outbox.emit('secret', '1')}), 'and it emits anything');
fails_as('postgres', qq{SELECT outbox.grant_emit('clerk', topics => '$_')}, 22023, "no list: $_") foreach '{}', '{a b}';
ask(q{DROP TABLE public.thing; DROP ROLE thing, junior, readers, pooled; SELECT outbox.revoke_all('clerk'); DROP ROLE clerk});

# --- Which purposes a role has: all of one, or it does not count

ask('CREATE ROLE watcher; CREATE ROLE half');
ask(q{SELECT outbox.grant_to('watcher', 'watch'); SELECT outbox.grant_to('half', 'watch'); REVOKE SELECT ON outbox.workers FROM half});
is( ask(q{SELECT string_agg(purpose, ' ') FROM outbox.purposes_granted() WHERE role IN ('watcher', 'half')}),
	'watch', 'a role that lacks one privilege of a purpose does not have it');
ask(q{CREATE ROLE member; GRANT watcher TO member; SELECT outbox.grant_emit('member')});
is(ask(q{SELECT string_agg(purpose, ' ') FROM outbox.purposes_granted() WHERE role = 'member'}), 'emit', 'nor does one that has it by another role');
foreach my $purpose (qw(emit watch operate portal work dump))
{
	ask("CREATE ROLE for_$purpose; SELECT outbox.grant_to('for_$purpose', '$purpose')");
	my $has = ask("SELECT string_agg(purpose, ' ' ORDER BY purpose) FROM outbox.purposes_granted() WHERE role = 'for_$purpose'");
	like($has, qr/\b$purpose\b/, "$purpose: purposes_granted() says so");
	ask("SELECT outbox.revoke_all('for_$purpose')");
	is(ask("SELECT count(*) FROM outbox.purposes_granted() WHERE role = 'for_$purpose'"), '0', 'revoke_all() takes it back');
	ask("DROP ROLE for_$purpose");
}
is(ask("SELECT string_agg(purpose, ' ') FROM outbox.purposes_granted() WHERE role = 'App \"x\"'"), 'emit', 'an emitter is no more');

# --- A dump by the owner of the database

ask('CREATE ROLE landlord LOGIN');
ask('CREATE DATABASE owned OWNER landlord');
ask('CREATE EXTENSION outbox', 'owned');
my $secret = endpoint($node, $receiver, 'a', '/ok/a', undef, 'owned');
emit($node, 'a', '{"n": 1}', "key => 'k'", 'owned');
$receiver->wait_delivered(1, path => '/ok/a');
emit($node, 'a', '{"n": 2}', "deliver_at => now() + interval '1 day'", 'owned');
ask('SET ROLE landlord; CREATE TABLE public.orders AS SELECT 1 AS id', 'owned');
my @dump = ('pg_dump', '-h', $node->host, '-p', $node->port, '-U', 'landlord', '-Fc', '-f', $file, 'owned');
my $refused = IPC::Run::run(\@dump, '2>', \my $words);
ok(!$refused, 'without a grant it fails');
like($words, qr/permission denied for schema outbox|failed to get data for sequence/, 'as documented');
ask(q{SELECT outbox.grant_to('landlord', 'dump')}, 'owned');
ok(IPC::Run::run(\@dump, '2>', \$words), 'with the grant it works') or diag($words);
fails_as('landlord', 'SELECT * FROM outbox.endpoint_secrets', 42501, 'the role does not read secrets');

sub restore
{
	my ($dbname) = @_;
	ask("CREATE DATABASE $dbname");
	IPC::Run::run([ 'pg_restore', '-h', $node->host, '-p', $node->port, '-U', 'postgres', '-d', $dbname, $file ], '2>', \$words);
	is($words, '', "restored into $dbname without an error");
	return;
}
restore('copy');
is(ask('SELECT count(*) FROM outbox.events', 'copy'), ask('SELECT count(*) FROM outbox.events', 'owned'), 'with the log');
is(ask('SELECT count(*) FROM outbox.scheduled', 'copy'), '1', 'what is scheduled');
is(ask('SELECT string_agg(name, \' \') FROM outbox.endpoints', 'copy'), 'a', 'the endpoints');
is(ask('SELECT count(*) FROM public.orders', 'copy'), '1', 'and the tables of the user');
is(ask("SELECT count(*) FROM outbox.purposes_granted() WHERE role = 'landlord' AND purpose = 'dump'", 'copy'), '1', 'grants come along');
ok(wait_sql($node, "SELECT state = 'held' FROM outbox.status", 't', 'copy'), 'it sends nothing');

# --- A dump without outbox

unlink $file;
@dump = grep { $_ ne 'owned' } @dump;
ok(IPC::Run::run([ @dump, '-N', 'outbox', '--extension=plpgsql', 'owned' ], '2>', \$words), 'a dump without outbox') or diag($words);
restore('without');
is(ask('SELECT count(*) FROM public.orders', 'without'), '1', 'has the tables of the user');
is(ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'", 'without'), '0', 'and nothing else');
is(ask("SELECT outbox.revoke_all('landlord')", 'owned'), '', 'the grant is taken back');
ok(IPC::Run::run([ @dump, '-N', 'outbox', '--extension=plpgsql', 'owned' ], '2>', \$words), 'it needs no grant') or diag($words);
$node->stop;
done_testing();
