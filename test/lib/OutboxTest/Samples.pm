package OutboxTest::Samples;

# The receivers of doc/receiving.md: taken from its text, started, and tried.

use strict;
use warnings;

use Digest::SHA qw(hmac_sha256);
use Encode ();
use Exporter 'import';
use IO::Socket::INET;
use JSON::PP;
use MIME::Base64 qw(decode_base64 encode_base64);
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

use OutboxTest;
use OutboxTest::Conformance;

our @EXPORT_OK = qw(sample missing prepare start_sample end_sample try_sample %samples);

my $cache = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/receivers';
my $json = JSON::PP->new->canonical->allow_nonref;
my $go = (grep { -x "$_/go" } split(/:/, $ENV{PATH}), '/usr/local/go/bin')[0];

# How each language runs its file.  text_only: its library takes the body for text.
# ascii_only: its server gives no answer to header values that are not ASCII.
our %samples = (
	python => { file => 'receiver.py', text_only => 1, command => [ 'python3', 'receiver.py' ] },
	js => { file => 'receiver.mjs', text_only => 1, command => [ 'node', 'receiver.mjs' ] },
	go => { file => 'receiver.go', command => ['./receiver'] },
	java => { file => 'Receiver.java', text_only => 1, command => [ 'java', '-cp', "$cache/java/*", 'Receiver.java' ] },
	ruby => {
		file => 'config.ru',
		command => [ 'sh', '-c', 'exec puma -q -e production -b tcp://127.0.0.1:$PORT config.ru' ] },
	php => { file => 'receiver.php', command => [ 'sh', '-c', 'exec php -S 127.0.0.1:$PORT receiver.php' ] },
	rust => { file => 'receiver.rs', text_only => 1, ascii_only => 1, command => ["$cache/rust/target/release/receiver"] },
	bash => { file => 'receiver.sh' });

# A block of the document, by its language.
sub sample
{
	my ($language) = @_;
	open(my $fh, '-|', "$top/test/receivers/extract", $language) or die "extract: $!";
	local $/;
	return <$fh>;
}

sub runs
{
	my ($command) = @_;
	return system("$command > /dev/null 2>&1") == 0;
}

# Why the receiver of a language cannot be run here.  Nothing if it can.
sub missing
{
	my ($language) = @_;
	my %pins = (
		python => 'requirements.txt',
		go => 'go/go.sum',
		java => 'java/pom.xml',
		rust => 'rust/Cargo.toml');

	return OutboxTest::Conformance::missing() if $language eq 'js';
	return 'puma is not installed' if $language eq 'ruby' && !runs('puma --version');
	return 'php with sqlite3 is not installed'
	  if $language eq 'php' && !runs(q{php -r 'exit(extension_loaded("pdo_sqlite") ? 0 : 1);'});
	return 'java is not installed' if $language eq 'java' && !runs('java -version');
	return 'go is not installed' if $language eq 'go' && !$go;
	if (my $file = $pins{$language})
	{
		my $wanted = slurp_file("$top/test/receivers/$file");
		$wanted .= sample('rust') if $language eq 'rust';
		return "what it needs is not in $cache/$language"
		  unless -e "$cache/$language/complete" && slurp_file("$cache/$language/complete") eq $wanted;
	}
	return '';
}

# Writes a receiver into a folder of its own, which is where it runs.  Returns that.
sub prepare
{
	my ($language, $code) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir($language);

	append_to_file("$dir/$samples{$language}{file}", $code);
	symlink("$top/test/conformance/node_modules", "$dir/node_modules") if $language eq 'js';
	if ($language eq 'go')
	{
		system('cp', "$top/test/receivers/go/go.mod", "$top/test/receivers/go/go.sum", $dir) == 0 or die 'cp';
		local @ENV{qw(GOCACHE GOMODCACHE GOPROXY GOFLAGS)} =
		  ($ENV{GOCACHE} || "/tmp/outbox-go.$>", "$cache/go/mod", 'off', '-mod=readonly');
		is(system("cd '$dir' && '$go/go' build -o receiver receiver.go"), 0, 'go: it compiles');
	}
	return $dir;
}

# Calls "bash receiver.sh" for each connection, as inetd does.
sub serve_shell
{
	my ($port) = @_;
	my $socket = IO::Socket::INET->new(Listen => 20, LocalAddr => '127.0.0.1', LocalPort => $port, ReuseAddr => 1)
	  or POSIX::_exit(1);

	local $SIG{CHLD} = 'IGNORE';
	while (my $connection = $socket->accept)
	{
		next if fork // POSIX::_exit(1);
		$SIG{CHLD} = 'DEFAULT';
		open(STDIN, '<&', $connection);
		open(STDOUT, '>&', $connection);
		exec 'bash', 'receiver.sh' or POSIX::_exit(127);
	}
	POSIX::_exit(1);
}

# Starts what prepare() has made.  Returns its port and its process.
sub start_sample
{
	my ($language, $dir, $secret) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		# Perl's handler would end this copy of the test, and stop its servers.
		$SIG{TERM} = $SIG{INT} = 'DEFAULT';
		chdir $dir or POSIX::_exit(126);
		@ENV{qw(PORT WEBHOOK_SECRET PYTHONPATH)} = ($port, $secret, "$cache/python");
		open(STDOUT, '>>', "$dir/log");
		open(STDERR, '>&', \*STDOUT);
		serve_shell($port) if $language eq 'bash';
		exec @{ $samples{$language}{command} } or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	wait_until { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) ? 1 : 0 }
	"$language: it listens"
	  or diag(slurp_file("$dir/log"));
	return ($port, $pid);
}

sub end_sample
{
	my ($pid) = @_;

	kill 'TERM', $pid;
	waitpid($pid, 0);
	@OutboxTest::Receiver::started = grep { $_ != $pid } @OutboxTest::Receiver::started;
	return;
}

# Sends one request.  Returns the status of the answer.
sub request
{
	my ($port, $body, %headers) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or return "no connection: $!";

	print $socket "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n",
	  'Content-Length: ' . length($body) . "\r\n",
	  (map { "$_: $headers{$_}\r\n" } sort keys %headers), "\r\n", $body;
	my ($status) = (<$socket> // '') =~ m{^HTTP/1\.[01] (\d+)};
	return $status // 'none';
}

sub signed
{
	my ($secret, $id, $time, $body) = @_;
	my $key = decode_base64($secret =~ s/^whsec_//r);
	return (
		'webhook-id' => $id,
		'webhook-timestamp' => $time,
		'webhook-signature' => 'v1,' . encode_base64(hmac_sha256("$id.$time.$body", $key), ''));
}

# The lines of events.txt, and of what it was before, as { id, type, key, what }.  A receiver in shell writes the
# body instead of type and data.
sub worked
{
	my ($dir) = @_;
	my @events;

	foreach (map { split /\n/, slurp_file($_) } grep { -f $_ } "$dir/earlier.txt", "$dir/events.txt")
	{
		my ($id, $type, $key, $what) = split /\t/, $_, 4;

		if (!defined $what)
		{
			($key, my $body) = ($type, $key);
			($type) = $body =~ /"type":"([^"]*)"/;
			$what =
				$body =~ /"data_base64":"([^"]*)"\}$/ ? length(decode_base64($1)) . ' bytes'
			  : $body =~ /"data":(.*)\}$/ ? $1
			  :                             'nothing';
		}
		$what = $json->encode($json->decode(Encode::decode('UTF-8', $what))) unless $what =~ / bytes$/;
		push @events, { id => $id, type => $type, key => $key, what => $what };
	}
	return @events;
}

sub direct_requests
{
	my ($language, $port, $dir, $secret) = @_;
	my $now = int(time);
	my $body = '{"type":"direct","timestamp":"2026-01-02T03:04:05Z","data":1}';
	my $id = 'a1b2';
	my %good = signed($secret, $id, $now, $body);
	my $signature = $good{'webhook-signature'};
	my $other = 'whsec_' . encode_base64('x' x 32, '');

	is(request($port, $body, signed($secret, $id, $now - 400, $body)), '401', "$language: an old request is refused");
	is(request($port, $body, signed($secret, $id, $now + 400, $body)), '401', 'and one from the future');
	is(request($port, $body, signed($other, $id, $now, $body)), '401', 'one that is signed with another secret');
	is(request($port, $body =~ s/1\}$/2}/r, %good), '401', 'one with another body');
	is(request($port, $body, %good, 'webhook-id' => 'a1b3'), '401', 'one with another id');
	is(request($port, $body, %good, 'webhook-signature' => substr($signature, 0, 20)), '401', 'half a signature');
	is(request($port, $body, %good, 'webhook-signature' => 'v1,'), '401', 'the beginning of one');
	is_deeply([ worked($dir) ], [], 'and nothing is done');
	is(request($port, $body, %good, 'webhook-signature' => "v1,AAAA $signature"), '204', 'one of two signatures is enough');
	is(request($port, $body, %good), '204', 'the same request again');
	is_deeply([ worked($dir) ], [ { id => $id, type => 'direct', key => '', what => '1' } ], 'is done once');
	return;
}

# Delivers to a receiver all that it has to bear.  Each event comes twice at the same
# time, because two endpoints have one secret, and once more at the end.
sub try_sample
{
	my ($node, $language, %option) = @_;
	my $name = $option{name} // $language;
	my $how = $samples{$language};
	my $dir = prepare($language, $option{code} // sample($language));
	my $secret = $node->safe_psql('postgres', 'SELECT outbox.new_secret()');
	my ($port, $pid) = start_sample($language, $dir, $secret);
	my %expected;

	refuses_unsigned($port, $name, ascii_only => $how->{ascii_only});
	direct_requests($name, $port, $dir, $secret);
	unlink "$dir/events.txt";

	my $common = "topics => '{$name}', backoff_base => '50 ms', backoff_max => '100 ms'";
	$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name', 'http://127.0.0.1:$port/', $common, secret => '$secret');
SELECT outbox.create_endpoint('$name.again', 'http://127.0.0.1:$port/', $common, secret => '$secret');
SELECT outbox.create_endpoint('$name.forged', 'http://127.0.0.1:$port/', $common, max_attempts => 1);
SQL
	my $expect = sub {
		my ($id, $type, $of, $what) = @_;
		$expected{$id} = { id => $id, type => $type, key => $of, what => $what };
		return $id;
	};
	my $emitted = sub { return $node->safe_psql('postgres', "SELECT outbox.$_[0]") };
	$expect->(
		$emitted->(qq{emit('$name', '{"n": 1, "name": "Zo\\u00eb"}', key => U&'Zo\\00eb/7 100% +b')}),
		$name, "Zo\xc3\xab/7 100% +b", $json->encode({ n => 1, name => "Zo\x{eb}" }));
	$expect->($emitted->(qq{emit('$name', 'null'::jsonb, type => 'plain.v2')}), 'plain.v2', '', 'null');
	$expect->($emitted->(qq{emit('$name', '[1, null, "\\t"]')}), $name, '', '[1,null,"\t"]');
	$expect->($emitted->(qq{emit_bytes('$name', '\\x00ff80fe', 'application/x')}), $name, '', '4 bytes');
	$expect->($emitted->(qq{emit_bytes('$name', '', 'application/x')}), $name, '', '0 bytes');
	$expect->(
		$emitted->(qq{emit_bytes('$name', decode(repeat('00ff', 524288), 'hex'), 'application/x')}),
		$name, '', '1048576 bytes');
	wait_settled($node);

	# The work fails at first: its file cannot be written.
	rename "$dir/events.txt", "$dir/earlier.txt" or die "rename: $!";
	mkdir "$dir/events.txt" or die "mkdir: $!";
	my $failing = $expect->($emitted->(qq{emit('$name', '{"n": 2}', key => 'k')}), $name, 'k', '{"n":2}');
	wait_sql($node,
		"SELECT count(DISTINCT endpoint) = 2 FROM outbox.attempts WHERE event_id = '$failing' AND status_code = 500");
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM outbox.attempts WHERE event_id = '$failing' AND status_code < 300"),
		'0', "$name: work that fails is not taken for done");
	rmdir "$dir/events.txt" or die "rmdir: $!";
	wait_settled($node);

	# All of it once more
	$node->safe_psql('postgres', "SELECT outbox.replay('$name', now() - interval '1 hour')");
	my $all = keys %expected;
	ok( wait_sql($node,
			"SELECT count(*) >= 2 * $all FROM outbox.attempts WHERE endpoint = '$name' AND status_code BETWEEN 200 AND 299"),
		"$name: each event comes again, and is answered");
	is_deeply(
		[ sort { $a->{id} cmp $b->{id} } worked($dir) ],
		[ map { $expected{$_} } sort keys %expected ],
		'but its work is done once')
	  or diag(slurp_file("$dir/log"));
	is( $node->safe_psql('postgres',
			"SELECT count(*), min(last_status_code), max(last_status_code) FROM outbox.dead_letters WHERE endpoint LIKE '$name%'"),
		"$all|401|401", 'what is signed with another secret is refused, and nothing else');
	is( $node->safe_psql('postgres',
			"SELECT count(*) FROM outbox.deliveries WHERE endpoint IN ('$name', '$name.again') AND status = 'delivered'"),
		2 * $all, 'all others are delivered');

	# What doc/wire.md says of bytes that are not UTF-8, and of header values that are not ASCII
	$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name.raw', 'http://127.0.0.1:$port/', format => 'raw', topics => '{$name.raw}', secret => '$secret', max_attempts => 1);
SELECT outbox.create_endpoint('$name.odd', 'http://127.0.0.1:$port/', topics => '{$name.odd}', secret => '$secret', max_attempts => 1);
SQL
	my $raw = $emitted->(qq{emit_bytes('$name.raw', '\\x00ff80fe', 'application/x')});
	my $odd = $emitted->(qq{emit('$name.odd', '{}', headers => '{"x-city": "K\\u00f6ln"}')});
	my $type = $emitted->(qq{emit('$name.odd', '{}', type => U&'Gr\\00fcn 1')});
	wait_settled($node);
	my $status = sub {
		return $node->safe_psql('postgres', "SELECT status_code FROM outbox.attempts WHERE event_id = '$_[0]' ORDER BY attempt LIMIT 1");
	};
	if ($how->{text_only}) { is($status->($raw), '401', "$name: raw bytes cannot be verified") }
	else { isnt($status->($raw), '401', "$name: raw bytes can be verified") }
	is($status->($odd), $how->{ascii_only} ? '' : '204', 'header values that are not ASCII');
	is($status->($type), '204', 'a type that is not ASCII');

	end_sample($pid);

	# Its last answer may not have arrived.  The event would then be tried for ever.
	$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('$name$_', discard => true)")
	  foreach '', '.again', '.forged', '.raw', '.odd';
	return;
}

1;
