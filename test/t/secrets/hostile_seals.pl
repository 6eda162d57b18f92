# A sealed text that was cut, changed or moved does not open, and harms no other endpoint.
# Bad key files, two databases, a worker that owns nothing, and a standby that is
# promoted without the file are tried here, too.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('keys');
my $file = "$dir/outbox.keys";
my $receiver = OutboxTest::Receiver->new('hostile');
my ($rc, $out, $err);

sub write_file
{
	my ($path, $text) = @_;
	unlink $path;
	PostgreSQL::Test::Utils::append_to_file($path, $text);
	chmod 0600, $path;
	return;
}
chomp(my $key = `openssl rand -base64 32`);
write_file($file, "$key\n");

my $node = outbox_node('main', streaming => 1, conf => "outbox.secret_key_file = '$file'\n");
sub reload { ask('SELECT pg_reload_conf()'); return }
sub field { return ask("SELECT $_[1] FROM outbox.endpoint_settings JOIN outbox.endpoint_secrets USING (endpoint_id) WHERE name = '$_[0]'") }
my $stats = 'SELECT state || COALESCE(\': \' || reason, \'\') FROM outbox.stats WHERE endpoint =';

foreach my $name (qw(one two calm))
{
	endpoint($node, $receiver, $name, "/ok/$name/token", "topics => '{$name.*}', headers => '{\"x-token\": \"of $name\"}'");
}

# Each of them as text that was stored: none of it opens, crashes, or stops others.
my $secret = field('one', 'secret');
my $url = field('one', 'url');
my ($head, $body) = $secret =~ /^(sealed:1:[0-9a-f]{16}:)(.*)$/;
my $flipped = $body;
substr($flipped, 20, 1) = substr($flipped, 20, 1) eq 'A' ? 'B' : 'A';
my $damaged = 'held: a sealed value is damaged';
my %secrets = (
	'another byte' => "$head$flipped",
	'cut by one' => substr($secret, 0, -1),
	'cut to half' => substr($secret, 0, length($secret) / 2),
	'no ciphertext' => $head . substr($body, 0, 36),
	'no tag' => $head . 'AAAA',
	'nothing' => $head,
	'only the prefix' => 'sealed:1:',
	'an id without an end' => substr($head, 0, -1),
	'an id in capitals' => uc($head) =~ s/SEALED/sealed/r . $body,
	'no base64' => $head . '!' x 80,
	'white space in it' => $head . substr($body, 0, 8) . "\n\t" . substr($body, 10),
	'very long' => $head . 'A' x 7_000,    # a row has no room for more
	'that of another endpoint' => field('two', 'secret'));
sub refused
{
	my ($name, $column, $value) = @_;
	my $table = $column eq 'secret' ? 'secrets' : 'settings';
	my $expected = $damaged;
	ask("UPDATE outbox.endpoint_$table SET $column = \$v\$$value\$v\$ WHERE endpoint_id ="
		  . " (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'one') \\g /dev/null\nSELECT outbox.endpoint_changed(0)");
	ok(wait_sql($node, "$stats 'one'", $expected), "$column, $name: held");
	is(ask("SELECT count(*) FROM outbox.endpoints WHERE name = 'one'"), '1', 'the view shows the endpoint');
	return;
}
foreach my $name (sort keys %secrets)
{
	my $value = $secrets{$name};
	refused($name, 'secret', $value);
	($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.endpoint_secret('one')");
	like($err, qr/cannot be opened: a sealed value is damaged/, 'endpoint_secret says so');
	is($out, '', 'and nothing else');
}
refused('moved from the URL', 'secret', $url =~ s{^http://[^/]*/}{}r);
ask("UPDATE outbox.endpoint_secrets SET secret = '$secret' WHERE endpoint_id ="
	  . " (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'one')");
my $moved = field('two', 'url');
refused('of another endpoint', 'url', $moved);
refused('with another host', 'url', $url =~ s/127\.0\.0\.1/127.0.0.2/r);
refused('with another port', 'url', $url =~ s/:(\d+)/':' . ($1 + 1)/er);
refused('with more behind it', 'url', "$url/more");
ask("UPDATE outbox.endpoint_settings SET url = '$url' WHERE name = 'one'");
my $headers = field('one', 'headers');
refused('of another endpoint', 'headers', field('two', 'headers'));
refused('with another name', 'headers', $headers =~ s/x-token/x-other/r);
refused('the secret in a header', 'headers', qq({"x-token": "$secret"}));
ask("UPDATE outbox.endpoint_settings SET headers = '$headers' WHERE name = 'one'");
is(ask('SELECT * FROM outbox.reseal_secrets()'), '0|3|0', 'as they were: all open');
ok(wait_sql($node, "$stats 'one'", 'active'), 'and it is active');
my $id = emit($node, 'calm.one', '{}');
$receiver->wait_delivered(1, id => $id);
$id = emit($node, 'one.one', '{}');
$receiver->wait_delivered(1, id => $id);
is(($receiver->requests(id => $id))[0]{signature}, 'valid', 'signed as before');

# Former and present secret are not each other's.
ask("SELECT outbox.rotate_secret('two')");
my $former = field('two', 'previous');
ask("UPDATE outbox.endpoint_secrets SET secret = previous WHERE previous IS NOT NULL \\g /dev/null\nSELECT outbox.endpoint_changed(0)");
ok(wait_sql($node, "$stats 'two'", $damaged), 'the former secret is no present one');
is($node->psql('postgres', "SELECT outbox.rotate_secret('two', '0')"), 0, 'without grace, another one is set');
ok(wait_sql($node, "$stats 'two'", 'active'), 'and it is active again');

# What looks sealed is not taken from a caller.
foreach my $call (
	qq{create_endpoint('e', 'https://a.example/sealed:1:x')},
	qq{create_endpoint('e', 'https://a.example/', headers => '{"a": "$secret"}')},
	qq{alter_endpoint('one', headers => '{"a": "sealed:1:"}')},
	qq{alter_endpoint('one', url => 'https://a.example/sealed:1:')})
{
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.$call");
	like($err, qr/22023: a value must not begin with "sealed:1:".*HINT/s, (split /,/, $call)[0] . ': refused');
}
($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.rotate_secret('one', secret => '$secret')");
like($err, qr/22023: invalid secret/, 'nor is a sealed secret');

# Every way to write a URL is sealed behind its host.
foreach my $case (
	[ 'https://a.example/token', 'https://a.example' ],
	[ 'https://a.example?token', 'https://a.example' ],
	[ 'https://a.example:8443/a/token?b=token#token', 'https://a.example:8443' ],
	[ 'HTTPS://A.example//token', 'HTTPS://A.example' ],
	[ 'https://[2606:4700::1]/token', 'https://[2606:4700::1]' ])
{
	my ($given, $host) = @$case;
	ask("SELECT outbox.create_endpoint('url', '$given', topics => '{url}')");
	like(field('url', 'url'), qr{^\Q$host\E/sealed:1:[0-9a-f]{16}:[A-Za-z0-9+/]+=*$}, "$given: sealed");
	is(ask("SELECT url FROM outbox.endpoints WHERE name = 'url'"), $given, 'and shown as it was given');
	ask("SELECT outbox.drop_endpoint('url')");
}
my $long = 'https://a.example/' . 'x' x (2048 - 18);
ask("SELECT outbox.create_endpoint('long', '$long', topics => '{long}')");
ask("SELECT outbox.alter_endpoint('long', max_in_flight => 3)");
is(ask("SELECT url = '$long' FROM outbox.endpoints WHERE name = 'long'"), 't', 'the longest URL is sealed, too');
($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.alter_endpoint('long', url => '${long}x')");
like($err, qr/2049 characters/, 'and not longer');
ask("SELECT outbox.alter_endpoint('long', headers => '{\"a\": \"\", \"b\": \"\xc3\xa4\"}')");
is(ask("SELECT headers FROM outbox.endpoints WHERE name = 'long'"), "{\"a\": \"\", \"b\": \"\xc3\xa4\"}", 'an empty header, and one that is not ASCII');
ask("SELECT outbox.drop_endpoint('long')");

# Key files that are not what they should be
my $data = $node->data_dir;
symlink("$data/keys", "$dir/link");
write_file("$data/keys", "$key\n");
write_file("$dir/zero", "$key\n\0\n");
write_file("$dir/zero2", substr($key, 0, 20) . "\0" . substr($key, 21) . "\n");
write_file("$dir/short", substr($key, 0, 40) . "\n");
write_file("$dir/twice", "$key$key\n");
write_file("$dir/spaces", "$key \t\r\n# more\n\n$key");
write_file("$dir/many", "$key\n" x 17);
write_file("$dir/large", "# much\n" x 10_000);
PostgreSQL::Test::Utils::system_or_bail('mkfifo', '-m', '600', "$dir/pipe");
foreach my $case (
	[ 'link', 'is inside the data directory' ],
	[ 'zero', 'has in line 2 something else than the base64 of 32 bytes' ],
	[ 'zero2', 'has in line 1 something else than the base64 of 32 bytes' ],
	[ 'short', 'has in line 1 something else than the base64 of 32 bytes' ],
	[ 'twice', 'has in line 1 something else than the base64 of 32 bytes' ],
	[ 'many', 'has more than 16 keys' ],
	[ 'large', 'is larger than 64 kB' ],
	[ 'pipe', 'is not a regular file' ],
	[ 'nowhere', 'cannot be opened: No such file or directory' ],
	[ 'nowhere/further', 'cannot be opened: No such file or directory' ])
{
	my ($name, $words) = @$case;
	ask("ALTER SYSTEM SET outbox.secret_key_file = '$dir/$name'");
	reload();
	ok(wait_sql($node, "$stats 'one'", "held: sealed, and the key file $words"), "$name: held");
	($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('e', 'https://a.example/x')");
	like($err, qr/the key file \Q$words\E/, "$name: nothing is stored");
}
ask("ALTER SYSTEM SET outbox.secret_key_file = '$dir/spaces'");
reload();
ok(wait_sql($node, "$stats 'one'", 'active'), 'spaces, comments and empty lines mean nothing');

# A path that cannot be right is refused at once, and a server that has it in
# its configuration starts, and stores nothing in clear.
foreach my $path ("$data/keys", "$data/base/../keys", "$dir/../../../../../../../../../$data/keys", 'outbox.keys', './keys')
{
	($rc, $out, $err) = $node->psql('postgres', "ALTER SYSTEM SET outbox.secret_key_file = '$path'");
	like($err, qr/invalid value for parameter.*DETAIL:  The file is (inside the data directory|not an absolute path).*HINT/s, 'a wrong path is refused');
}
ask('ALTER SYSTEM RESET outbox.secret_key_file');
$node->append_conf('postgresql.conf', "outbox.secret_key_file = '$data/keys'\n");
$node->restart;
ok(wait_sql($node, "$stats 'one'", 'held: sealed, and the key file is inside the data directory'), 'in the file of configuration: held after a restart');
($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('e', 'https://a.example/x')");
like($err, qr/the key file is inside the data directory/, 'and nothing is stored in clear');
like( ask("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;"
		  . " EXPLAIN (ANALYZE) SELECT count(*) FROM pg_attribute"),
	qr/Workers Launched: [1-9]/, 'parallel workers start with it');
$node->append_conf('postgresql.conf', "outbox.secret_key_file = '$file'\n");
reload();
ok(wait_sql($node, "$stats 'one'", 'active'), 'the right file: active');

# A role that may not reseal does not.
ask('CREATE ROLE nobody LOGIN');
foreach my $sql ('SHOW outbox.secret_key_file', 'ALTER SYSTEM SET outbox.secret_key_file = \'\'', 'SET outbox.secret_key_file = \'\'',
	"SELECT outbox.unseal(1, 'secret', 'x')", "SELECT outbox.shown(1, 'x'::text)", 'SELECT outbox.reseal_secrets()')
{
	($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', 'nobody' ]);
	like($err, qr/permission denied|must be superuser|must be able|cannot be changed/, "$sql: refused");
}

# A second database has the same file: its endpoints are its own.
ask('CREATE DATABASE second');
$node->safe_psql('second', 'CREATE EXTENSION outbox');
my $other = endpoint($node, $receiver, 'second', '/ok/second', "topics => '{second.*}'", 'second');
$id = emit($node, 'second.one', '{}', undef, 'second');
$receiver->wait_delivered(1, id => $id);
is(($receiver->requests(id => $id))[0]{signature}, 'valid', 'the second database seals and signs');
is($node->safe_psql('second', 'SELECT * FROM outbox.reseal_secrets()'), '0|1|0', 'and is resealed by itself');

# A worker that owns nothing
ask('CREATE ROLE outbox_worker;' . worker_grants()) unless $node->{has_worker_role};
$node->append_conf('postgresql.conf', "outbox.worker_role = 'outbox_worker'\n");
$node->restart;
$id = emit($node, 'one.two', '{}');
$receiver->wait_delivered(1, id => $id);
is(($receiver->requests(id => $id))[0]{signature}, 'valid', 'a worker role without privileges opens what is sealed');

# A standby that is promoted without the file holds, until it is there.
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "outbox.secret_key_file = '$dir/standby'\n");
$standby->start;
$id = emit($node, 'one.three', '{}');
$receiver->wait_delivered(1, id => $id);
$node->wait_for_catchup($standby);
$node->stop;
$standby->promote;
ok(wait_sql($standby, "$stats 'one'", 'held: sealed, and the key file cannot be opened: No such file or directory'), 'promoted without the file: held');
$id = emit($standby, 'one.four', '{}');
nothing_arrives($receiver, 'nothing is sent', 0.5, id => $id);
write_file("$dir/standby", "$key\n");
$standby->safe_psql('postgres', 'SELECT pg_reload_conf()');
$receiver->wait_delivered(1, id => $id);
is(($receiver->requests(id => $id))[0]{signature}, 'valid', 'with the file: delivered');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM outbox.workers WHERE restarts > 0'), '0', 'no worker has failed');
unlike(slurp_file($_->logfile), qr/\Q$key\E|was terminated by signal|TRAP/, 'no key in the log, and no crash') foreach $node, $standby;

$standby->stop;
done_testing();
