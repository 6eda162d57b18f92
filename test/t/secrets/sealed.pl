# With outbox.secret_key_file no secret leaves the database in clear.
# Neither its tables and files nor a dump, logical decoding or a publication have one.
# Requests are signed and carry their headers all the same.
use strict;
use warnings;

use File::Find;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('keys');
my $file = "$dir/outbox.keys";
my $receiver = OutboxTest::Receiver->new('sealed');
my ($rc, $out, $err);

# The keys of a file, each a line.  The first one seals.
sub write_keys
{
	my (@keys) = @_;
	unlink "$file.new";
	PostgreSQL::Test::Utils::append_to_file("$file.new", join('', map { "$_\n" } @keys));
	chmod 0600, "$file.new";
	rename "$file.new", $file or die "$file: $!";
	return;
}

sub new_key
{
	chomp(my $key = `openssl rand -base64 32`);
	return $key;
}

my $node = outbox_node('sealed', conf => "wal_level = logical\nmax_wal_senders = 4\nmax_replication_slots = 4\n");
sub reload { ask('SELECT pg_reload_conf()'); return }

# One secret of each kind, in an endpoint that is made with or without the file
my %marker = (header => 'header-marker', path => 'path-marker');
sub make
{
	my ($name) = @_;
	my $secret = endpoint($node, $receiver, $name, "/ok/$name/$marker{path}-$name",
		"topics => '{$name.*}', headers => '{\"authorization\": \"Bearer $marker{header}-$name\"}'");
	ask("SELECT outbox.rotate_secret('$name')");
	my $newer = ask("SELECT outbox.endpoint_secret('$name')");
	$receiver->control(path => "/ok/$name/$marker{path}-$name", secret => $newer);
	isnt($newer, $secret, "$name: rotated");
	return (substr($secret, 6, 40), substr($newer, 6, 40), "$marker{header}-$name", "$marker{path}-$name");
}

# An event of its topic arrives there, signed and with the header.
sub delivers
{
	my ($name, $what) = @_;
	my $id = emit($node, "$name.one", '{}');
	my ($got) = $receiver->wait_delivered(1, id => $id);
	is($got->{signature}, 'valid', "$what: signed") or diag(explain($got));
	is($got->{headers}{authorization}, "Bearer $marker{header}-$name", "$what: with its header");
	is($got->{path}, "/ok/$name/$marker{path}-$name", "$what: at its path");
	return;
}

sub count_in
{
	my ($text, @secrets) = @_;
	return scalar grep { index($text, $_) >= 0 } @secrets;
}

# All files of the data directory that have one of them.
sub files_with
{
	my (@secrets) = @_;
	my $pattern = join '|', map { quotemeta } @secrets;
	my @found;
	find(
		sub {
			return unless -f $_;
			open(my $fh, '<:raw', $_) or return;
			local $/;
			push @found, $File::Find::name if (<$fh> // '') =~ /$pattern/;
		},
		$node->data_dir);
	return @found;
}

# What logical decoding and a publication send of everything since.
my $decoding = $node->config_data('--pkglibdir') . '/test_decoding.so';
diag('NOT TESTED: test_decoding, which is not installed') unless -e $decoding;
ask('CREATE PUBLICATION everything FOR ALL TABLES');
ask(q{SELECT pg_create_logical_replication_slot('published', 'pgoutput')});
ask(q{SELECT pg_create_logical_replication_slot('decoded', 'test_decoding')}) if -e $decoding;

sub sent
{
	my $sent = pack 'H*', join '', split /\n/, ask(<<'SQL');
SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('published', NULL, NULL,
	'proto_version', '1', 'publication_names', 'everything')
SQL
	$sent .= ask(q{SELECT data FROM pg_logical_slot_get_changes('decoded', NULL, NULL)}) if -e $decoding;
	return $sent;
}

my $shown = 'SELECT url, headers FROM outbox.endpoints WHERE name =';
my $raw = 'SELECT s, k FROM outbox.endpoint_settings s JOIN outbox.endpoint_secrets k USING (endpoint_id)';
sub dump_of
{
	my $dump = '';
	IPC::Run::run([ 'pg_dump', '-h', $node->host, '-p', $node->port, '--inserts', 'postgres' ], '>', \$dump, '2>', \$err);
	is($err, '', 'pg_dump');
	return $dump;
}

# Without the file everything is in clear, and this test can see it.
my @clear = make('clear');
is(count_in(ask($raw), @clear), 4, 'without the file: in clear in the tables');
is(count_in(sent(), @clear), 4, 'without the file: sent in clear');
is(count_in(dump_of(), @clear), 2, 'without the file: a dump has headers and URL');
ask('CHECKPOINT');
cmp_ok(scalar files_with(@clear), '>', 0, 'without the file: in the files');
delivers('clear', 'without the file');

# With it nothing is, from the beginning.
my ($first, $second) = (new_key(), new_key());
write_keys('# made by the test', '', $first);
$node->append_conf('postgresql.conf', "outbox.secret_key_file = '$file'\n");
reload();
ok(wait_sql($node, "SELECT current_setting('outbox.secret_key_file') = '$file'"), 'the file is set');
my @sealed = make('sealed');
is(count_in(ask($raw), @sealed), 0, 'sealed: not in the tables');
is(count_in(ask("$shown 'sealed'"), @sealed), 2, 'but shown to roles that may read outbox.endpoints');
my $version = "SELECT version FROM outbox.endpoints WHERE name = 'sealed'";
my $given_back = "SELECT outbox.alter_endpoint(name, url => url, headers => headers) FROM outbox.endpoints WHERE name = 'sealed'";
my $made = ask($version);
ask($given_back);
is(ask($version), $made, 'what is shown can be given back, and is no change');
my $sent = sent();
cmp_ok(length $sent, '>', 100, 'changes are sent');
is(count_in($sent, @sealed), 0, 'not by a publication or by decoding');
my $dump = dump_of();
is(count_in($dump, @sealed), 0, 'not in a dump');
like($dump, qr/sealed:1:[0-9a-f]{16}:/, 'which has the sealed ones');
ask('CHECKPOINT');
is(join(' ', files_with(@sealed)), '', 'not in any file, the WAL among them');
delivers('sealed', 'sealed');
delivers('clear', 'in clear, from before');

# The same value is never sealed the same way twice, and an unchanged URL stays.
my $url = ask("SELECT url FROM outbox.endpoint_settings WHERE name = 'sealed'");
like($url, qr{^http://127\.0\.0\.1:\d+/sealed:1:[0-9a-f]{16}:[A-Za-z0-9+/]+=*$}, 'of a URL the host stays readable');
ask("SELECT outbox.alter_endpoint('sealed', url => url) FROM outbox.endpoints WHERE name = 'sealed'");
is(ask("SELECT url FROM outbox.endpoint_settings WHERE name = 'sealed'"), $url, 'the same URL: nothing changes');
ask("SELECT outbox.alter_endpoint('sealed', max_in_flight => 7)");
ask("SELECT outbox.alter_endpoint('sealed', headers => headers) FROM outbox.endpoints WHERE name = 'sealed'");
is(count_in(ask($raw), @sealed), 0, 'altered: still sealed');
delivers('sealed', 'altered');
is( ask("SELECT outbox.create_endpoint('plain', 'https://a.example/', topics => '{never}')"
		  . " \\g /dev/null\n SELECT url FROM outbox.endpoint_settings WHERE name = 'plain'"),
	'https://a.example/', 'nothing behind the host: nothing to seal');
ask("SELECT outbox.drop_endpoint('plain')");

# What was stored before is sealed by hand.  Its former rows go with VACUUM FULL.
is(ask('SELECT * FROM outbox.reseal_secrets()'), '1|1|0', 'reseal_secrets: one was in clear');
is(count_in(ask($raw), @clear), 0, 'resealed: not in the tables');
is(ask('SELECT * FROM outbox.reseal_secrets()'), '0|2|0', 'again: nothing to do');
delivers('clear', 'resealed');
sent();
ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots");
ask('VACUUM FULL outbox.endpoint_settings');
ask('VACUUM FULL outbox.endpoint_secrets');
ask('SELECT pg_switch_wal()') foreach 1 .. 2;
ask('CHECKPOINT') foreach 1 .. 3;
is(join(' ', grep { !m{/pg_wal/} } files_with(@clear)), '', 'resealed and vacuumed: in no file but old WAL');

# Rotation: a new key before the old one, reseal, then the old one goes.
write_keys($second, $first);
reload();
my $noted = 'SELECT (SELECT count(*) FROM outbox.endpoint_audit), sum(version), max(updated_at) FROM outbox.endpoints';
my $former = ask($noted);
is(ask('SELECT * FROM outbox.reseal_secrets()'), '2|0|0', 'with a new first key: both are sealed anew');
is(ask($noted), $former, 'which is no change of an endpoint');
my $as_if = q{UPDATE outbox.endpoint_settings SET url = 'https://example.com/', revision = 0};
is(ask("BEGIN; $as_if; $noted; ROLLBACK") =~ s/\|.*//sr - $former =~ s/\|.*//sr, 2, 'and what says so, with another URL, is noted');
ask('CREATE ROLE writer LOGIN; GRANT pg_write_all_data TO writer');
(undef, undef, my $refused) = $node->psql('postgres', $as_if, extra_params => [ '-U', 'writer' ]);
like($refused, qr/permission denied for function/, 'also where a member of pg_write_all_data says so');
write_keys($second);
reload();
is(ask("SELECT outbox.endpoint_secret('sealed') LIKE '%$sealed[1]%'"), 't', 'the former key is not needed any more');
delivers($_, "after rotation, $_") foreach qw(sealed clear);
my $worker = worker_pid($node);
kill 'TERM', $worker;
new_worker($node, $worker);
delivers('sealed', 'a new worker');

# A key that is missing holds what it sealed, and nothing else.
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");
write_keys($first);
ask("SELECT outbox.alter_endpoint('other', secret => outbox.new_secret())");
$receiver->control(path => '/ok/other', secret => ask("SELECT outbox.endpoint_secret('other')"));
ask("SELECT outbox.alter_endpoint('other', url => '" . $receiver->url('/ok/other?again') . "')");
reload();
my $held = "SELECT state || ': ' || reason FROM outbox.stats WHERE name = 'sealed'" =~ s/name/endpoint/r;
ok(wait_sql($node, "$held", ask("SELECT 'held: sealed with key ' || substr(secret, 10, 16) || ', which is not in the key file'"
			  . " FROM outbox.endpoint_secrets JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'sealed'")),
	'another key: held, with words');
my $waiting = emit($node, 'sealed.two', '{}');
my $id = emit($node, 'other.one', '{}');
$receiver->wait_delivered(1, id => $id);
is(($receiver->requests(id => $id))[0]{signature}, 'valid', 'the others go on');
nothing_arrives($receiver, 'the held one gets nothing', 0.5, id => $waiting);
is(ask('SELECT * FROM outbox.reseal_secrets()'), '0|1|2', 'reseal_secrets counts what it cannot open');
like(ask("$shown 'sealed'"), qr/sealed:1:.*sealed:1:/, 'outbox.endpoints shows what is stored');
($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.endpoint_secret('sealed')");
like($err, qr/cannot be opened: sealed with key [0-9a-f]{16}, which is not in the key file.*HINT:  Put the key back/s, 'endpoint_secret says why');
ask("SELECT outbox.alter_endpoint('sealed', max_in_flight => 9)");
pass('other settings can be changed meanwhile');
$made = ask($version);
($rc, $out, $err) = $node->psql('postgres', $given_back);
is("$rc $err " . ask($version), "0  $made", 'also with those that are shown as they are stored');
($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.rotate_secret('sealed')");
like($err, qr/55000.*cannot be opened.*grace => '0'/s, 'rotate_secret with grace is refused');
is($node->psql('postgres', "BEGIN; SELECT outbox.rotate_secret('sealed', '0'); ROLLBACK"), 0, 'without grace it is not');

# No file at all, or none that can be used: the same, and nothing is stored in clear.
foreach my $case (
	[ 'is gone', sub { unlink $file }, 'cannot be opened: No such file or directory' ],
	[ 'is for all', sub { write_keys($second); chmod 0644, $file }, 'has group or world access' ],
	[ 'is no file', sub { unlink $file; mkdir $file }, 'is not a regular file' ],
	[ 'is half a key', sub { rmdir $file; write_keys(substr $second, 0, 20) }, 'has in line 1 something else than the base64 of 32 bytes' ],
	[ 'is empty', sub { write_keys('# none') }, 'has no key' ])
{
	my ($name, $make, $words) = @$case;
	$make->();
	reload();
	ok(wait_sql($node, $held, "held: sealed, and the key file $words"), "the file $name: held");
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('new', 'https://a.example/x')");
	like($err, qr/55000: secrets cannot be sealed: the key file \Q$words\E.*HINT/s, "the file $name: nothing new is stored");
}
$node->restart;
ok(wait_sql($node, $held, 'held: sealed, and the key file has no key'), 'also after a restart');
ok(index(slurp_file($node->logfile), 'outbox.secret_key_file has no key') > 0, 'the server log says it');
nothing_arrives($receiver, 'still nothing', 0.5, id => $waiting);

# The file comes back: everything that waited is delivered.
write_keys($second, $first);
reload();
$receiver->wait_delivered(1, id => $waiting);
is(($receiver->requests(id => $waiting))[0]{signature}, 'valid', 'the keys are back: what waited is delivered');
delivers($_, "in the end, $_") foreach qw(sealed clear);
is(ask("SELECT count(*) FROM outbox.workers WHERE restarts > 0"), '0', 'no worker has failed');

$node->stop;
done_testing();
