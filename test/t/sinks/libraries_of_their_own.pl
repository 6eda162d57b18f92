# A sink that is a library of its own gets each event once and in the order of its key.
# One that is missing, of another version or broken is named in words, and webhooks go on.
use strict;
use warnings;

use File::Path qw(make_path);
use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The sinks are built against the installed header, and installed where only this test's
# PostgreSQL finds them.
my $dir = PostgreSQL::Test::Utils::tempdir('sinks');
my ($build, $journal) = OutboxTest::Build->with_null_sink($dir);

my $node = outbox_node('main', build => $build);
my $receiver = OutboxTest::Receiver->new('main');

# The lines of the journal with this mode and result
sub sent
{
	my ($mode, $result) = @_;
	return unless -e $journal;
	return map { [ split /\t/ ] } grep { /^$mode\t$result\t/ } split /\n/, slurp_file($journal);
}

# Creating an endpoint
my ($rc, undef, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('early', 'null://h/')");
like($err, qr/invalid url: the URL's scheme is neither https nor http\nHINT:.* outbox\.sinks names/,
	'a scheme that no sink has is refused, and the hint names the setting');
($rc, undef, $err) = $node->psql('postgres', "ALTER SYSTEM SET outbox.sinks = '../null'");
like($err, qr/invalid value for parameter "outbox\.sinks": "\.\.\/null"\nDETAIL:.*letters and digits\.\nHINT:.*'webhook, kafka'/s,
	'a path is no name of a sink');
ask("CREATE ROLE clerk");
($rc, undef, $err) = $node->psql('postgres', "SET ROLE clerk; ALTER SYSTEM SET outbox.sinks = 'null'");
like($err, qr/permission denied/, 'only a superuser sets the sinks');

my $worker = worker_pid($node);
ask("ALTER SYSTEM SET outbox.sinks = 'webhook, null'");
ask('SELECT pg_reload_conf()');
new_worker($node, $worker);
foreach my $refused (
	[ "'null://user\@h/'", 'contains a user name or a password' ],
	[ "'null:///x'", 'has no host' ],
	[ "'null://h/ x'", 'contains a space' ],
	[ "'null://h/', batch_size => 10", 'batches are for webhooks only' ],
	[ "'null://h/', format => 'cloudevents-binary'", 'the sink of this URL has no format' ])
{
	($rc, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('no', $refused->[0])");
	like($err, qr/ERROR:  22023: .*\Q$refused->[1]\E.*HINT:/s, "$refused->[0] is refused");
}

# The whole path: order, count, headers
ask("SELECT outbox.create_endpoint('null', 'null://h/ok', '{load.*}', format => 'raw')");
my $id = emit($node, 'load.one', '{"n": "ü"}', q{key => 'ключ', headers => '{"x-a": "b"}'});
wait_status($node, $id, 'delivered', 'an event is delivered to a library');
my ($got) = sent('ok', 0);
is(join("\n", @$got[2 .. $#$got]),
	join("\n", $id, 'load.one', 'ключ', 1, '{"n": "ü"}', 'content-type=application/json', "outbox-id=$id",
		'outbox-topic=load.one', 'outbox-type=load.one', 'outbox-attempt=1', 'x-a=b'),
	'key, body and headers are as they were emitted');

my $n = 20_000;
ask("SELECT count(outbox.emit('load.many', jsonb_build_object('n', n), key => 'k' || n % 50)) FROM generate_series(1, $n) n");
ok(wait_sql($node, "SELECT delivered = $n + 1 AND pending = 0 FROM outbox.stats WHERE endpoint = 'null'"), "$n events are delivered");
my (%last, $disorder);
my @many = grep { $_->[3] eq 'load.many' } sent('ok', 0);
foreach my $line (@many)
{
	my ($number) = $line->[6] =~ /"n": (\d+)/;
	$disorder++ if ($last{ $line->[4] } // 0) >= $number;
	$last{ $line->[4] } = $number;
}
is(scalar @many, $n, 'each once');
is($disorder // 0, 0, 'in the order of their keys');

# config and credentials: closed lists of the sink, which it gets
foreach my $refused (
	[ "'null://h/', config => '{\"colour\": 1}'", 'unknown name "colour" in config', 'The sink null knows: auth, comment.' ],
	[ "'null://h/', config => '[1]'", 'config must be a JSON object', 'Write it as' ],
	[ "'null://h/', config => '{\"comment\": {}}'", 'invalid value of "comment" in config', 'Use a string, a number, true or false' ],
	[ "'null://h/', config => '{\"comment\": \"a\\nb\"}'", 'invalid value of "comment" in config', 'without control characters' ],
	[ "'null://h/', credentials => '{\"s3cr3t\": \"token\"}'", 'unknown name in credentials', 'The sink null knows: user, token.' ],
	[ "'null://h/', credentials => '{\"token\": 17}'", 'a value in credentials is not a string', 'a flat object of strings' ],
	[ "'null://h/', credentials => '{\"token\": \"\"}'", 'a value in credentials is not a string of 1 to 65536 bytes', 'a flat object' ],
	(map { [ "'null://h/', credentials => '{\"token\": \"$_\"}'", 'a value in credentials has a control character', 'Remove line breaks' ] } 's3cr3t\n', 'a\r\nb: s3cr3t', 'a\u007f'),
	[ "'null://h/', credentials => '\"s3cr3t\"'", 'credentials must be a JSON object', 'Write it as' ],
	[ "'null://h/', config => '{\"auth\": \"token\"}'", 'the sink null cannot have this endpoint: auth is token, and credentials has none', 'Pass credentials' ],
	[ "'https://a.example/', config => '{\"auth\": \"token\"}'", 'unknown name "auth" in config', 'The sink webhook knows: http_version, method, ' ],
	[ "'https://a.example/', config => '{\"http_version\": 3}'", 'the sink webhook cannot have this endpoint: http_version is no version', 'Use auto, 1.1 or 2.' ],
	[ "'http://127.0.0.1/', config => '{\"http_version\": 2}'", 'the sink webhook cannot have this endpoint: HTTP/2 is spoken over https only', 'Use https' ],
	[ "'https://a.example/', credentials => '{\"key\": \"t\"}'", 'unknown name in credentials', 'The sink webhook knows: username, ' ])
{
	($rc, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('no', $refused->[0])");
	like($err, qr/ERROR:  22023: \Q$refused->[1]\E.*HINT:  .*\Q$refused->[2]\E/s, "$refused->[0] is refused");
	unlike(join("\n", grep { !/^LINE/ } split /\n/, $err), qr/s3cr3t/, '... without repeating what may be a secret');
}
is(ask("SELECT count(*) FROM outbox.endpoints WHERE name = 'no'"), '0', 'and nothing was made');
($rc, undef, $err) = $node->psql('postgres', <<'SQL');
SELECT outbox.create_endpoint('told', 'null://h/told', '{told.*}', credentials => '{"token": "t-one", "user": "ü"}', config => '{"comment": 17}')
SQL
like($err, qr/NOTICE:  the null sink has a token, and does not use it/, 'a sink may say something about an endpoint that it accepts');
ok(wait_until(sub { (slurp_file($journal) // '') =~ /^told\topen\tcomment=17\tuser=ü\ttoken=t-one$/m }), 'the sink gets both');
is(ask("SELECT concat(config, ' ', credentials) FROM outbox.endpoints WHERE name = 'told'"), '{"comment": 17} {user,token}',
	'outbox.endpoints shows the config, and of the credentials the names');
ask(q[SELECT outbox.alter_endpoint('told', credentials => '{"token": "t-two"}')]);
ok(wait_until(sub { slurp_file($journal) =~ /^told\topen\tcomment=17\ttoken=t-two$/m }), 'new credentials replace the old ones as a whole');
ask(q[SELECT outbox.alter_endpoint('told', config => '{"auth": "token", "comment": true}')]);
ok(wait_until(sub { slurp_file($journal) =~ /^told\topen\tauth=token\tcomment=true\ttoken=t-two$/m }), 'a new config is used, and the credentials stay');
($rc, undef, $err) = $node->psql('postgres', q[SELECT outbox.alter_endpoint('told', reset => '{credentials}')]);
like($err, qr/auth is token, and credentials has none/, 'alter_endpoint asks the sink too');
($rc, undef, $err) = $node->psql('postgres', q[SELECT outbox.alter_endpoint('told', url => 'https://a.example/')]);
like($err, qr/unknown name "auth" in config/, 'also when the URL leads to another sink');
ask(q[SELECT outbox.alter_endpoint('told', reset => '{config,credentials}')]);
is(ask("SELECT count(config) + count(e.credentials) + count(k.credentials) FROM outbox.endpoint_settings e JOIN outbox.endpoint_secrets k USING (endpoint_id) WHERE name = 'told'"),
	'0', 'reset removes both');
$id = emit($node, 'told.x', '{}');
wait_status($node, $id, 'delivered', 'and events are delivered all the same');

# Failures
ask("SELECT outbox.create_endpoint('fail', 'null://h/fail', '{fail.*}', backoff_base => '10 ms')");
ask("SELECT outbox.create_endpoint('abort', 'null://h/abort', '{abort.*}')");
ask("SELECT count(outbox.emit('fail.x', jsonb_build_object('n', n), key => 'k')) FROM generate_series(1, 10) n");
$id = emit($node, 'abort.x', '{}');
ok(wait_sql($node, "SELECT delivered = 10 AND failed_attempts = 10 FROM outbox.stats WHERE endpoint = 'fail'"),
	'what failed is tried again');
is(join(' ', map { $_->[6] =~ /"n": (\d+)/ } sent('fail', 0)), join(' ', 1 .. 10), 'in the order of the key');
wait_status($node, $id, 'dead', 'what is never wanted is dead');
is(ask("SELECT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'abort'"),
	'aborted by receiver: the null sink does not want this event', 'with the reason and the words of the sink');

# What a sink says may be what its server says.  Everywhere it is text of the database, in one line.
foreach (
	[ 'postgres', 'UTF8', 'c3bcff20e282ac20800a1b5b324a61e282', 'c3bc3f20e282ac203f3f3f5b324a613f3f' ],
	[ 'euc', 'EUC_JP', 'c6fcff208fb0a1200a61e2828f', 'c6fc3f208fb0a1203f613f3f3f' ],
	[ 'latin', 'LATIN1', 'fc077f61', 'fc3f3f61' ],
	[ 'ascii', 'SQL_ASCII', 'fc0d61', '3f3f61' ])
{
	my ($dbname, $encoding, $says, $shown) = @$_;
	if ($dbname ne 'postgres')
	{
		ask("CREATE DATABASE $dbname ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
		$node->safe_psql($dbname, 'CREATE EXTENSION outbox');
	}
	$node->safe_psql($dbname, "SELECT outbox.create_endpoint('say', 'null://h/say', '{say}', format => 'raw')");
	$node->safe_psql($dbname, "SELECT outbox.emit_bytes('say', '\\x$says', 'text/plain')");
	ok(wait_sql($node, "SELECT dead = 1 AND EXISTS (SELECT FROM outbox.dead_letters WHERE endpoint = 'say') FROM outbox.stats WHERE endpoint = 'say'", 't', $dbname), "$encoding: what is never wanted is dead");
	is($node->safe_psql($dbname, "SELECT encode(textsend(last_error), 'hex') FROM outbox.$_ WHERE endpoint = 'say'"),
		$shown, "$encoding: outbox.$_ shows the words without bytes that are no characters")
	  foreach qw(stats dead_letters);
	is($node->safe_psql($dbname, "SELECT encode(textsend(error), 'hex') FROM outbox.attempts WHERE endpoint = 'say'"), $shown, '... and outbox.attempts');
}
is(scalar(grep { /"say" is dead: aborted by receiver: .*\?/ } split /\n/, slurp_file($node->logfile)), 4, 'and the log, with each in one line');
unlike(slurp_file($node->logfile), qr/[\x01-\x08\x0b-\x1f\x7f]/, '... and no control character');

# A link that is down is no failure of events
ask("SELECT outbox.create_endpoint('link', 'null://h/link', '{link.*}')");
append_to_file("$journal.down", '');
ok(wait_sql($node, "SELECT state = 'backing_off' AND reason = 'the null sink was told to be down' FROM outbox.stats WHERE endpoint = 'link'"),
	'a link that is down is shown with its reason');
ask("SELECT count(outbox.emit('link.x', jsonb_build_object('n', n), key => 'k' || n % 5)) FROM generate_series(1, 500) n");
ok(wait_sql($node, "SELECT pending = 500 AND processing = 0 FROM outbox.stats WHERE endpoint = 'link'"), 'its events wait');
unlink "$journal.down";
ok(wait_sql($node, "SELECT delivered = 500 AND state = 'active' AND reason IS NULL FROM outbox.stats WHERE endpoint = 'link'"),
	'and are delivered when it is up again');
is(ask("SELECT failed_attempts || ' ' || (SELECT count(*) FROM outbox.attempts WHERE endpoint = 'link' AND error IS NOT NULL) FROM outbox.stats WHERE endpoint = 'link'"),
	'0 0', 'no attempt was counted');

# Links go up and down under load: some events are started on a link that is about to go
my $flapping = 1;
foreach my $round (1 .. 20)
{
	ask("SELECT count(outbox.emit('link.flap', jsonb_build_object('n', n), key => 'f')) FROM generate_series($round * 100 + 1, $round * 100 + 100) n");
	$flapping ^= 1;
	$flapping ? unlink("$journal.down") : append_to_file("$journal.down", '');
}
unlink "$journal.down";
ok(wait_sql($node, "SELECT delivered = 2500 AND failed_attempts = 0 FROM outbox.stats WHERE endpoint = 'link'"), 'a link that flaps loses nothing');
is(join(' ', map { $_->[6] =~ /"n": (\d+)/ } grep { $_->[3] eq 'link.flap' } sent('link', 0)), join(' ', 101 .. 2100),
	'and keeps the order');

# Libraries that cannot be used, or whose load is cancelled
endpoint($node, $receiver, 'web', '/ok/web', "topics => '{web.*}'");
$worker = worker_pid($node);
ask("ALTER SYSTEM SET outbox.sinks = 'webhook, missing, old, broken, empty, slow, null'");
ask('SELECT pg_reload_conf()');
$worker = new_worker($node, $worker);
ask("SELECT outbox.create_endpoint('$_', '$_://h/', '{bad.*}')") foreach qw(missing old broken empty);
$id = emit($node, 'bad.x', '{}');
my %words = (
	missing => 'outbox_missing: could not access file "outbox_missing": No such file or directory',
	old => 'the library outbox_old was built for version 999 of the contract, and this is ' . (slurp_file("$top/src/transport/transport.h") =~ /OUTBOX_TRANSPORT_ABI (\d+)/)[0],
	broken => 'outbox_broken: the null sink was built to fail',
	empty => 'the library outbox_empty is no sink: it has no outbox_sink()');
foreach my $sink (sort keys %words)
{
	ok(wait_sql($node, "SELECT state = 'held' AND reason = '" . ($words{$sink} =~ s/\\//gr) . "' FROM outbox.stats WHERE endpoint = '$sink'"),
		"the endpoint of the sink $sink is held, and the reason says why")
	  or diag(ask("SELECT state, reason FROM outbox.stats WHERE endpoint = '$sink'"));
	like(slurp_file($node->logfile), qr/LOG:  outbox worker cannot use the sink "$sink": $words{$sink}/, '... and the log');
}
($rc, undef, $err) = $node->psql('postgres', "SET statement_timeout = '100 ms'; SELECT outbox.create_endpoint('slow', 'slow://h/')");
like($err, qr/canceling statement due to statement timeout/, 'a cancel while a library is loaded is one of the statement');
is(ask("SELECT count(*) FROM outbox.endpoints WHERE name = 'slow'"), 0, 'and nothing is created');
($rc, undef, $err) = $node->psql('postgres', q[\set VERBOSITY verbose
SELECT outbox.create_endpoint('no', 'missing://h/', config => '{"auth": "token"}')]);
like($err, qr/55000: config and credentials cannot be checked: outbox_missing: could not access file.*HINT:/s,
	'without its library a sink has no config');
my $web = emit($node, 'web.x', '{}');
wait_status($node, $web, 'delivered', 'webhooks go on');
$web = emit($node, 'load.x', '{}');
wait_status($node, $web, 'delivered', 'and the sink that can be used');
is(worker_pid($node), $worker, 'in the same worker');
unlike(slurp_file($node->logfile), qr/FATAL|PANIC/, 'no process has ended by an error');

# The library comes later: a reload loads it
OutboxTest::Build::run('cp', $build->{library} =~ s/outbox\.so$/outbox_null.so/r, $build->{library} =~ s/outbox\.so$/outbox_missing.so/r);
ask('SELECT pg_reload_conf()');
new_worker($node, $worker);
ok(wait_sql($node, "SELECT state = 'active' AND delivered = 1 FROM outbox.stats WHERE endpoint = 'missing'"),
	'a library that was missing is loaded at a reload, and its events are delivered');

# A sink that is no longer set
ask("ALTER SYSTEM SET outbox.sinks = 'null'");
ask('SELECT pg_reload_conf()');
ok(wait_sql($node, "SELECT state = 'held' AND reason = 'outbox.sinks names no sink for the scheme of its URL' FROM outbox.stats WHERE endpoint = 'web'"),
	'webhooks are held where the setting does not name them');
$web = emit($node, 'web.y', '{}');
ask("ALTER SYSTEM RESET outbox.sinks");
ask('SELECT pg_reload_conf()');
wait_status($node, $web, 'delivered', 'and go on when it does');
ask("SELECT outbox.drop_endpoint('null', discard => true)");

# A worker that ends has threads of sinks still running, perhaps.  An exit handler of a
# library, such as OpenSSL's, would free what these use: the null sink's is abort().
$node->safe_psql('latin', 'DROP EXTENSION outbox');
ok(wait_sql($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'outbox worker%' AND datname = 'latin'"),
	'a worker ends whose extension was dropped');
$worker = worker_pid($node);
ask("SELECT pg_terminate_backend($worker)");
new_worker($node, $worker);
$node->stop;
unlike(slurp_file($node->logfile), qr/terminated by signal/, 'no exit handler of a library runs in a worker');

# Sinks elsewhere than in the server's own directories.  From PostgreSQL 18 on, which has
# extension_control_path, all of outbox is there, as with a volume that has an image's files.
my $image = "$dir/image";
my ($library, @files) = ($build->{library} =~ s{/outbox\.so$}{}r, 'outbox_null.so');
push @files, 'outbox.so' if $node->pg_version >= 18;
make_path("$image/lib", "$image/share/extension");
OutboxTest::Build::run('mv', map({ "$library/$_" } @files), "$image/lib/");
OutboxTest::Build::run('mv', glob("$build->{extensions}/outbox*"), "$image/share/extension/") if $node->pg_version >= 18;
$node->append_conf('postgresql.conf', "outbox.sinks = 'webhook, null'\ndynamic_library_path = '\$libdir:$image/lib'\n");
$node->append_conf('postgresql.conf', "extension_control_path = '\$system:$image/share'\n") if $node->pg_version >= 18;
$node->start;
$web = emit($node, 'web.z', '{}');
$id = emit($node, 'link.z', '{}');
wait_status($node, $_, 'delivered', 'found by dynamic_library_path') foreach $web, $id;
ask('CREATE DATABASE image');
is(($node->psql('image', 'CREATE EXTENSION outbox; SELECT outbox.emit($$a.b$$, $${}$$)'))[0], 0, 'and the extension by extension_control_path');
$node->stop;
done_testing();
