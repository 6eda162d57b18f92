# A credential may be in a file of outbox.secrets_directory, and another file takes effect by itself.
# No name leads to any other file.  A file that cannot be used holds up its own endpoint
# only, with the reason in words.  Nothing shows what is in a file.
use strict;
use warnings;

use IO::Socket::UNIX;
use MIME::Base64 ();
use OutboxTest;
use OutboxTest::Build;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('files');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);
append_to_file($journal, '');
my $files = "$dir/secrets";
mkdir $files or die "$files: $!";
my $node = outbox_node('main', build => $build, conf => <<'CONF');
outbox.sinks = 'webhook, null'
log_min_messages = debug2
log_statement = all
CONF
my %secret;

# A new file in the place of the old one, as a sidecar writes it, with a secret of its own
sub put
{
	my ($name, $text) = @_;
	my $secret = $secret{$name} = "secret-$name-" . unpack('H*', pack('N', int(rand(2**32)))) . '-' . (keys(%secret) + 1) . '-' . $$;

	append_to_file("$files/.new", $text // "$secret\n");
	rename "$files/.new", "$files/$name" or die "$name: $!";
	push @{ $secret{all} }, $secret;
	return $secret;
}

sub refused
{
	my ($credentials, $words, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('bad', 'null://h/', credentials => \$c\$$credentials\$c\$)");
	return like($err, qr/ERROR:  22023: $words.*HINT:/s, $name);
}

sub create
{
	my ($name, $file) = @_;
	return ask("SELECT outbox.create_endpoint('$name', 'null://h/$name', '{$name}', config => '{\"auth\": \"token\"}', credentials => jsonb_build_object('token', jsonb_build_object('file', '$file')))");
}

sub stopped
{
	my ($endpoint, $reason) = @_;
	return endpoint_shows($node, $endpoint, "state = 'backing_off' AND reason = 'token: $reason'", "$endpoint waits: $reason");
}

# How often the sink was opened for the endpoint with this token
sub opened
{
	my ($endpoint, $token) = @_;
	return scalar(() = slurp_file($journal) =~ /^\Q$endpoint\E\topen\tauth=token\ttoken=\Q$token\E$/mg);
}

sub reload
{
	my ($sql) = @_;
	ask($sql) if $sql;
	return ask('SELECT pg_reload_conf()');
}

# Without the setting no file can be named
put('one');
refused('{"token": {"file": "one"}}', 'credentials name a file, and outbox.secrets_directory is not set', 'no file without the setting');
my $data = $node->data_dir;
foreach my $path ('secrets', $data, "$data/secrets", "$data/../" . ($data =~ m{([^/]+)$})[0] . '/base')
{
	my ($rc, $out, $err) = $node->psql('postgres', "ALTER SYSTEM SET outbox.secrets_directory = '$path'");
	like($err, qr/ERROR:  invalid value for parameter "outbox.secrets_directory".*HINT:/s, 'a directory that cannot be used is refused');
}
reload("ALTER SYSTEM SET outbox.secrets_directory = '$files'");
ok(wait_sql($node, "SELECT current_setting('outbox.secrets_directory') <> ''"), 'the setting');

# Names
refused("{\"token\": {\"file\": \"$_->[0]\"}}", "a file in credentials cannot be used: its name $_->[1]", "the name \"" . substr($_->[0], 0, 30) . '" is refused')
  foreach ([ '', 'is empty' ], [ '.', 'begins with a dot' ], [ '..', 'begins with a dot' ], [ '.one', 'begins with a dot' ],
	[ '../one', 'begins with a dot' ], [ '/etc/passwd', 'has a slash' ], [ 'one/', 'has a slash' ], [ 'a/../one', 'has a slash' ],
	[ 'x' x 256, 'has more than 255 bytes' ], [ "\x{c3}\x{bc}" x 128, 'has more than 255 bytes' ], [ 'a\nb', 'has a control character' ], [ 'a\u007f', 'has a control character' ]);
refused($_->[0], 'a file in credentials cannot be used: it is not an object with "file" and a name', "$_->[0] is refused")
  foreach ([ '{"token": {}}' ], [ '{"token": {"file": 1}}' ], [ '{"token": {"file": null}}' ], [ '{"token": {"file": {"file": "one"}}}' ],
	[ '{"token": {"path": "one"}}' ], [ '{"token": {"file": "one", "more": "one"}}' ], [ '{"token": ["file", "one"]}' ], [ '{"token": [{"file": "one"}]}' ]);
refused('{"password": {"file": "one"}}', 'unknown name in credentials', 'a name that the sink does not know is refused');
my ($rc, $out, $err) = $node->psql('postgres', q[SELECT outbox.create_endpoint('hook', 'https://h.example/', credentials => '{"password_file": {"file": "one"}}')]);
like($err, qr/The sink webhook knows: username, /, 'nor one that a webhook does not know');
is(ask(q[SELECT count(*) FROM outbox.endpoints]), '0', 'no endpoint was made');

# What is in the file reaches the sink, without the newline at its end
create('one', 'one');
ok(wait_until(sub { opened('one', $secret{one}) }, 'opened'), 'the sink has what is in the file');
my $id = emit($node, 'one', '{}');
wait_status($node, $id, 'delivered', 'and an event is delivered');
is(ask(q[SELECT credentials FROM outbox.endpoint_secrets]), '{"token": {"file": "one"}}', 'the name of the file is stored');
is(ask(q[SELECT credentials FROM outbox.endpoints]), '{token}', 'the view has the name of the credential');

# Another file takes effect by itself, and once only
my $second = put('one');
ok(wait_until(sub { opened('one', $second) }, 'another file'), 'another file is used without a reload');
reload();
ok(wait_until(sub { opened('one', $second) >= 2 }, 'reloaded'), 'a reload reads it again');
put('one', "two\nlines\n\n");
ok(wait_until(sub { slurp_file($journal) =~ /token=two\nlines\n\n/ }, 'lines'), 'one newline at the end is not a part of it');
ask("SELECT outbox.alter_endpoint('one', credentials => '{\"token\": \"given\"}')");
ok(wait_until(sub { opened('one', 'given') }, 'given'), 'a value takes the place of the file');
ask("SELECT outbox.alter_endpoint('one', credentials => '{\"token\": {\"file\": \"one\"}, \"user\": \"u\"}')");
ok(wait_until(sub { slurp_file($journal) =~ /^one\topen\tauth=token\tuser=u\ttoken=two$/m }, 'both'), 'and the file that of a value, beside another value');

# Kubernetes: a link to a file in a directory that a link leads to, which changes
mkdir "$files/..1";
mkdir "$files/..2";
append_to_file("$files/..1/mounted", 'mounted 1');
append_to_file("$files/..2/mounted", 'mounted 2');
symlink '..1', "$files/..data" or die $!;
symlink '..data/mounted', "$files/mounted" or die $!;
create('mounted', 'mounted');
ok(wait_until(sub { opened('mounted', 'mounted 1') }, 'mounted'), 'links below the directory are followed');
symlink '..2', "$files/..data_tmp" or die $!;
rename "$files/..data_tmp", "$files/..data" or die $!;
ok(wait_until(sub { opened('mounted', 'mounted 2') }, 'mounted'), 'and followed again when they lead to another file');

# Files that cannot be used, each with its reason, while another endpoint goes on
append_to_file("$dir/outside", "outside-$$\n");
append_to_file("$dir/secrets_beside", "outside-$$\n");
mkdir "$files/directory";
symlink "$dir/outside", "$files/absolute" or die $!;
symlink '../outside', "$files/relative" or die $!;
symlink '../secrets_beside', "$files/beside" or die $!;
symlink '/etc/passwd', "$files/passwd" or die $!;
symlink "$data/PG_VERSION", "$files/data" or die $!;
symlink 'loop', "$files/loop" or die $!;
symlink '/dev/zero', "$files/device" or die $!;
POSIX::mkfifo("$files/pipe", 0600) or die $!;
my $socket = IO::Socket::UNIX->new(Local => "$files/socket", Listen => 1) or die $!;
append_to_file("$files/empty", '');
append_to_file("$files/newline", "\n");
append_to_file("$files/zero", "outside-$$\0");
append_to_file("$files/huge", 'x' x 65537);
append_to_file("$files/large", 'y' x 65536 . "\n");
open(my $sparse, '>', "$files/sparse") or die $!;
truncate $sparse, 2**40;
my %reason = (
	missing => 'does not exist', directory => 'is not a regular file', pipe => 'is not a regular file', device => 'is not a regular file',
	socket => 'is not a regular file', empty => 'is empty', newline => 'is empty', zero => 'has a byte that is 0', huge => 'is larger than 64 kB',
	sparse => 'is larger than 64 kB', loop => 'Too many levels of symbolic links',
	(map { $_ => 'leads out of outbox.secrets_directory' } qw(absolute relative beside passwd data)));
create($_, $_) foreach sort keys %reason;
stopped($_, "the file $_ $reason{$_}") foreach sort keys %reason;
my $waits = emit($node, 'missing', '{}');
$id = emit($node, 'one', '{}');
wait_status($node, $id, 'delivered', 'another endpoint goes on');
create('large', 'large');
ok(wait_until(sub { opened('large', 'y' x 65536) }, 'large'), '64 kB and a newline are not too much');
endpoint_shows($node, 'missing', "pending = 1 AND failed_attempts = 0 AND retrying = 0 AND state = 'backing_off'", 'the event waits, and no attempt is counted');

# It goes on by itself when the file is there, and stops when it is not
put('missing');
wait_status($node, $waits, 'delivered', 'the event is delivered when the file is there');
ok(opened('missing', $secret{missing}), 'with what is in it');
endpoint_shows($node, 'missing', "state = 'active' AND failed_attempts = 0", 'and the endpoint is active');
unlink "$files/missing";
stopped('missing', 'the file missing does not exist');
unlink "$files/pipe";
put('pipe');
endpoint_shows($node, 'pipe', "state = 'active'", 'an endpoint without events goes on by itself, too');
unlink "$files/huge";
put('huge', 'small');
endpoint_shows($node, 'huge', "state = 'active'", 'and one whose file was too large');

# Keys of the server are not for endpoints, by whatever name
foreach my $setting ('secret_key_file', 'ssl_key_file')
{
	append_to_file("$files/$setting", MIME::Base64::encode_base64('k' x 32));
	chmod 0600, "$files/$setting";
	link "$files/$setting", "$files/$setting.2" or die $!;
	reload("ALTER SYSTEM SET outbox.$setting = '$files/$setting'");
	ok(wait_sql($node, "SELECT current_setting('outbox.$setting') <> ''"), "outbox.$setting is set");
	foreach my $name ($setting, "$setting.2")
	{
		create($name, $name);
		stopped($name, "the file $name is the file of a key in the settings");
		ask("SELECT outbox.drop_endpoint('$name')");
	}
	reload("ALTER SYSTEM RESET outbox.$setting");
	ok(wait_sql($node, "SELECT current_setting('outbox.$setting') = ''"), "outbox.$setting is not set");
}
SKIP:
{
	skip 'root reads every file', 2 if $> == 0;
	put('locked');
	chmod 0, "$files/locked";
	create('locked', 'locked');
	stopped('locked', 'the file locked Permission denied');
	chmod 0600, "$files/locked";
	endpoint_shows($node, 'locked', "state = 'active'", 'until it may be read');
}

# The directory
rename $files, "$files.away";
reload();
stopped('one', 'outbox.secrets_directory cannot be opened: No such file or directory');
rename "$files.away", $files;
endpoint_shows($node, 'one', "state = 'active'", 'until the directory is there again');
reload('ALTER SYSTEM RESET outbox.secrets_directory');
stopped('one', 'the file one cannot be read: outbox.secrets_directory is not set');
endpoint_shows($node, 'mounted', "state = 'backing_off'", 'without the setting no file is read');
mkdir "$dir/others";
append_to_file("$dir/others/one", 'of the other directory');
reload("ALTER SYSTEM SET outbox.secrets_directory = '$dir/others'");
ok(wait_until(sub { slurp_file($journal) =~ /^one\topen\tauth=token\tuser=u\ttoken=of the other directory$/m }, 'another directory'), 'another directory');
reload("ALTER SYSTEM SET outbox.secrets_directory = '$files'");
my $last = put('one');
ok(wait_until(sub { slurp_file($journal) =~ /^one\topen\tauth=token\tuser=u\ttoken=\Q$last\E$/m }, 'back'), 'and back');
$node->restart;
ok(wait_until(sub { (() = slurp_file($journal) =~ /^one\topen\tauth=token\tuser=u\ttoken=\Q$last\E$/mg) >= 2 }, 'started'), 'a worker that starts reads it');

# Sealed beside it
append_to_file("$dir/keys", `openssl rand -base64 32`);
chmod 0600, "$dir/keys";
reload("ALTER SYSTEM SET outbox.secret_key_file = '$dir/keys'");
ok(wait_sql($node, "SELECT current_setting('outbox.secret_key_file') <> ''"), 'a key file is set');
ask('SELECT outbox.reseal_secrets()');
is(ask(q[SELECT k.credentials -> 'token' || jsonb_build_object('sealed', k.credentials ->> 'user' LIKE 'sealed:1:%') FROM outbox.endpoint_secrets k JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'one']),
	'{"file": "one", "sealed": true}', 'the name of a file is not sealed, and the value beside it is');
$last = put('one');
ok(wait_until(sub { slurp_file($journal) =~ /^one\topen\tauth=token\tuser=u\ttoken=\Q$last\E$/m }, 'sealed'), 'and the sink gets both');

# Who may name one, and see where they are
ask($_) foreach documented_roles();
ask('ALTER ROLE operator LOGIN; ALTER ROLE watcher LOGIN; ALTER ROLE portal LOGIN');
($rc, $out, $err) = $node->psql('postgres', q[SELECT outbox.alter_endpoint('one', credentials => '{"token": {"file": "mounted"}}')], extra_params => [ '-U', 'operator' ]);
is($rc, 0, 'an operator may name a file') or diag($err);
foreach my $role (qw(operator watcher portal))
{
	($rc, $out, $err) = $node->psql('postgres', 'SHOW outbox.secrets_directory', extra_params => [ '-U', $role ]);
	like($err, qr/must be superuser|permission denied/, "$role does not see where they are");
	($rc, $out, $err) = $node->psql('postgres', "SET outbox.secrets_directory = '/'", extra_params => [ '-U', $role ]);
	like($err, qr/cannot be changed now/, "nor may $role set it");
}
ask(q[SELECT outbox.create_endpoint('tenant', 'https://h.example/', tenant => 'acme')]);
foreach my $call (q[portal_create_endpoint('acme', 'https://h.example/', '{"credentials": {"token": {"file": "one"}}}')],
	q[portal_alter_endpoint('acme', 'tenant', '{"credentials": {"token": {"file": "one"}}}')])
{
	($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.$call", extra_params => [ '-U', 'portal' ]);
	like($err, qr/setting "credentials" is not for tenants to choose/, "the portal may not: $call");
}

# Nothing shows what was in a file
my @relations = all_relations($node);
($rc, $out, $err) = $node->psql('postgres', join(";\n", map { "TABLE $_" } @relations), on_error_stop => 0);
$node->stop;
my $log = slurp_file($node->logfile);
like($log, qr/sends nothing: token: the file pipe is not a regular file/, 'the log says what is wrong');
foreach my $where ([ 'tables and views', "$out$err" ], [ 'the log', $log ])
{
	is(scalar(grep { index($where->[1], $_) >= 0 } @{ $secret{all} }, "outside-$$", 'mounted 1', 'of the other directory'), 0, "$where->[0] have none of it");
}
unlike(slurp_file($journal), qr/outside-$$|root:/, 'no other file was read');
done_testing();
