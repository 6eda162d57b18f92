# A request goes only to a server whose certificate is valid for the host of the URL.
# There is no switch that turns the verification off.  What the worker shows of itself,
# client certificates and the versions of HTTP are tried here, too.
use strict;
use warnings;

use IO::Socket::INET;
use OutboxTest;
use OutboxTest::Network;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $names = 'DNS:localhost,IP:127.0.0.1';

make_ca($dir, $_) foreach qw(authority other);
make_cert($dir, 'good', 'authority', $names);
make_cert($dir, 'expired', 'authority', $names, -30, -1);
make_cert($dir, 'early', 'authority', $names, 2, 30);
make_cert($dir, 'stranger', 'other', $names);
make_cert($dir, 'selfsigned', undef, $names);
make_cert($dir, 'elsewhere', 'authority', 'DNS:elsewhere.test,DNS:localhost.elsewhere.test,IP:127.0.0.2');
make_cert($dir, 'client', 'authority', 'DNS:client.test');
make_cert($dir, 'intruder', 'other', 'DNS:intruder.test');

my $receiver = OutboxTest::Receiver->new('main');
my %front;

sub front
{
	my ($name, $cert, %option) = @_;
	$front{$name} = start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/$cert.crt", key => "$dir/$cert.key", %option);
	return;
}

front($_, $_) foreach qw(good expired early stranger selfsigned elsewhere);
front('old', 'good', only => 'TLSv1');
front('old1', 'good', only => 'TLSv1_1');
front('two', 'good', only => 'TLSv1_2');
front('asks', 'good', 'client-ca' => "$dir/authority.crt");
front('stranger_asks', 'good', 'client-ca' => "$dir/other.crt");

my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\n");

# An endpoint for the events of a topic of its own name, with one attempt each.
sub create
{
	my ($name, $port, $host, $more) = @_;
	$host //= 'localhost';
	$more //= ", connect_timeout => '1 min', timeout => '1 min'";
	ask("SELECT outbox.create_endpoint('$name', 'https://$host:$port/ok/$name', topics => '{$name.*}', max_attempts => 1 $more)");
	return;
}

# What becomes of one event: "delivered", or the error.
sub outcome
{
	my ($endpoint) = @_;
	my $id = emit($node, "$endpoint.one", '{}');

	wait_sql($node, "SELECT status IN ('delivered', 'dead') FROM outbox.deliveries WHERE event_id = '$id'");
	return ask("SELECT CASE status WHEN 'delivered' THEN status ELSE last_error END FROM outbox.deliveries WHERE event_id = '$id'");
}

sub arrived { return scalar(() = $receiver->requests(path => "/ok/$_[0]")) }

# Changes settings, and waits until the worker has heard of it.
sub set
{
	my (%value) = @_;
	ask("ALTER SYSTEM SET outbox.$_ = '$value{$_}'") foreach sort keys %value;
	$node->reload;
	return;
}

sub soon
{
	my ($endpoint, $expected, $name) = @_;
	my $got;

	wait_until { ($got = outcome($endpoint)) =~ $expected } $name;
	like($got, $expected, $name);
	return;
}

# --- Certificates ------------------------------------------------------------

create($_, $front{$_}{port}) foreach keys %front;
create('by_address', $front{good}{port}, '127.0.0.1');
is(outcome('good'), 'delivered', 'a certificate of the authority in outbox.ssl_ca_file');
is(outcome('by_address'), 'delivered', 'for an address');
my %complaint = (
	expired => qr/^TLS: .*expired/,
	early => qr/^TLS: .*not yet valid/,
	stranger => qr/^TLS: .*unable to get local issuer/,
	selfsigned => qr/^TLS: .*self.signed/,
	elsewhere => qr/^TLS: the certificate is for another name$/,
	old => qr/^TLS: .*(?:version|protocol)/,
	old1 => qr/^TLS: .*(?:version|protocol)/);
foreach my $name (sort keys %complaint)
{
	like(outcome($name), $complaint{$name}, "$name: refused, and it is said why");
	is(arrived($name), 0, "$name: nothing was sent");
}
create('elsewhere_by_address', $front{elsewhere}{port}, '127.0.0.1');
like(outcome('elsewhere_by_address'), $complaint{elsewhere}, 'an address that the certificate does not name');
is(arrived('elsewhere_by_address'), 0, 'nothing was sent');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE last_error ~ '(localhost|127[.]0[.]0[.]1)'"), 0,
	'no error shows where an endpoint is');

is(ask("SELECT string_agg(name, ' ') FROM pg_settings WHERE name LIKE 'outbox.%' AND name ~ 'verif|insecure|trust'"),
	'', 'no setting to turn the verification off');
my ($rc, $out, $err) = $node->psql('postgres',
	"SELECT outbox.create_endpoint('lax', 'https://localhost/', verify => false)");
like($err, qr/does not exist/, 'nor an argument');

# --- Versions ----------------------------------------------------------------

is(outcome('two'), 'delivered', 'TLS 1.2 will do');
is(scalar(() = lines_of($front{two}{journal}, qr/^tls TLSv1\.2 /)), 1, 'and was spoken');
set(ssl_min_protocol_version => 'TLSv1.3');
soon('two', qr/^TLS: .*(?:version|protocol)/, 'unless 1.3 is asked for');
is(outcome('good'), 'delivered', 'which the others speak');
ok(lines_of($front{good}{journal}, qr/^tls TLSv1\.3 /), 'indeed');
set(ssl_min_protocol_version => 'TLSv1.2');
soon('two', qr/^delivered$/, 'and 1.2 will do again');

# --- Client certificates -----------------------------------------------------

isnt(outcome('asks'), 'delivered', 'a client certificate is asked for, and there is none');
is(arrived('asks'), 0, 'nothing got through');
set(ssl_cert_file => "$dir/client.crt", ssl_key_file => "$dir/client.key");
soon('asks', qr/^delivered$/, 'with outbox.ssl_cert_file');
ok(lines_of($front{asks}{journal}, qr/^tls \S+ client$/), 'it is that one');
isnt(outcome('stranger_asks'), 'delivered', 'a server that wants one of another authority gets nothing');
set(ssl_cert_file => "$dir/intruder.crt", ssl_key_file => "$dir/intruder.key");
soon('stranger_asks', qr/^delivered$/, 'another certificate after a reload');
soon('asks', qr/^(?!delivered)/, 'which the first one does not like, once its connection is given up');
set(ssl_cert_file => "$dir/nowhere.crt", ssl_key_file => "$dir/nowhere.key");
soon('asks', qr/^TLS: the certificate, private key or authorities that are set here cannot be used$/, 'a file that does not exist is a failure of TLS, and stays unnamed');

set(ssl_cert_file => "$dir/client.crt", ssl_key_file => "$dir/client.key");
soon('asks', qr/^delivered$/, 'with the files that were there it goes on');

# With another stdin than /dev/null the worker would wait for the answer.
system_or_bail('openssl', 'pkey', '-in', "$dir/client.key", '-aes256', '-passout', 'pass:secret', '-out', "$dir/closed.key");
set(ssl_cert_file => "$dir/client.crt", ssl_key_file => "$dir/closed.key");
soon('asks', qr/private key/, 'with a key that has a passphrase');
unlike(slurp_file($node->logfile), qr/^Enter PEM/m, 'nobody is asked for the passphrase');
set(ssl_cert_file => '', ssl_key_file => '');
soon('good', qr/^delivered$/, 'and nothing that stays');

# --- Authorities -------------------------------------------------------------

set(ssl_ca_file => "$dir/other.crt");
soon('stranger', qr/^delivered$/, 'another authority after a reload');
like(outcome('good'), qr/^TLS: .*unable to get local issuer/, 'the one from before is not believed any more');
set(ssl_ca_file => '');
soon('stranger', qr/^TLS: /, "the system's know neither");
like(outcome('good'), qr/^TLS: /, 'of the two');
my $both = slurp_file("$dir/authority.crt") . slurp_file("$dir/other.crt");
append_to_file("$dir/bundle.crt", $both);
set(ssl_ca_file => "$dir/bundle.crt");
soon($_, qr/^delivered$/, "a bundle with two: $_") foreach qw(good stranger);

# The same file with other contents: neither an open connection, nor a stored
# session, nor a stored bundle may stand in for the authority that is gone.
my $handshakes = () = lines_of($front{stranger}{journal}, qr/^tls /);
is(outcome('stranger'), 'delivered', 'over the open connection');
is(scalar(() = lines_of($front{stranger}{journal}, qr/^tls /)), $handshakes, 'indeed');
append_to_file("$dir/bundle.new", slurp_file("$dir/authority.crt"));
rename "$dir/bundle.new", "$dir/bundle.crt" or die "rename: $!";
$node->reload;
soon('stranger', qr/^TLS: /, 'an authority that is taken out of the file is not believed after a reload');
is(outcome('good'), 'delivered', 'one that stays is');

# --- A proxy that ends its handshake ------------------------------------------

# It resets the connection, because it has not read all of it.
my $closes = IO::Socket::INET->new(Listen => 10, LocalAddr => '127.0.0.1') or die "listen: $!";
my $closing = fork // die "fork: $!";
if ($closing == 0)
{
	$SIG{TERM} = 'DEFAULT';
	while (my $connection = $closes->accept)
	{
		sysread $connection, my $byte, 1;
		close $connection;
	}
	POSIX::_exit(0);
}
push @OutboxTest::Receiver::started, $closing;
set(proxy => 'https://localhost:' . $closes->sockport);
create('behind', 8443, 'receiver.test', ", connect_timeout => '5 s'");
soon('behind', qr/^TLS: /, 'a proxy that ends its handshake is a failure of TLS');
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = 'behind' AND error ~ 'localhost'"), 0, 'which does not show where the proxy is');
set(proxy => '');
soon('good', qr/^delivered$/, 'without it they go on');

# --- Stalls ------------------------------------------------------------------

# One that takes connections and never says a word, and one that stops in the
# middle of the handshake
my $silent = IO::Socket::INET->new(Listen => 10, LocalAddr => '127.0.0.1') or die "listen: $!";
create('stalls', $silent->sockport, 'localhost', ", connect_timeout => '700 ms', timeout => '10 s'");
like(outcome('stalls'), qr/^timed out after 0\.7 s while connecting/, 'a handshake that stalls ends after connect_timeout');
is(outcome('good'), 'delivered', 'and the others go on');
is(ask("SELECT restarts FROM outbox.workers"), '0', 'the worker has lived through all of it');

# --- Versions of HTTP --------------------------------------------------------

SKIP:
{
	my $nginx = -x '/usr/sbin/nginx' ? '/usr/sbin/nginx' : 'nginx';
	my $built = `$nginx -V 2>&1` // '';
	my $libcurl = `curl-config --features 2>/dev/null` // '';

	if ($built !~ /http_v2/)
	{
		diag('NOT TESTED with HTTP/2: no nginx that speaks it');
		skip('no nginx that speaks HTTP/2', 1);
	}
	if ($libcurl && $libcurl !~ /HTTP2/)
	{
		diag('NOT TESTED with HTTP/2: libcurl does not speak it');
		skip('no libcurl that speaks HTTP/2', 1);
	}
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $narrow = PostgreSQL::Test::Cluster::get_free_port();
	my $brief = PostgreSQL::Test::Cluster::get_free_port();
	start_nginx($nginx, $dir, <<"HTTP");
	log_format protocol '\$server_protocol \$connection \$ssl_session_reused \$request_uri';
	access_log $dir/nginx/access protocol;
	ssl_session_cache shared:sessions:1m;
	ssl_protocols TLSv1.2 TLSv1.3;
	server { listen 127.0.0.1:$port ssl http2; location / { proxy_pass http://127.0.0.1:$receiver->{port}; } }
	server { listen 127.0.0.1:$narrow ssl http2; http2_max_concurrent_streams 1; location / { proxy_pass http://127.0.0.1:$receiver->{port}; } }
	server { listen 127.0.0.1:$brief ssl http2; keepalive_requests 7; location / { proxy_pass http://127.0.0.1:$receiver->{port}; } }
HTTP

	my %two = (h2 => $port, h2_narrow => $narrow, h2_brief => $brief);
	my $version = q[, config => '{"http_version": "%s"}'];

	# The lines of nginx's log about a hundred events at once, each with a key of its own
	my $hundred = sub {
		my ($name) = @_;
		my $before = () = $receiver->requests(path => "/ok/$name");

		ask("SELECT count(outbox.emit('$name.n', '{}'::jsonb, key => 'k' || n)) FROM generate_series(1, 100) n");
		$receiver->wait_delivered($before + 100, path => "/ok/$name");
		wait_settled($node);
		is(scalar(() = $receiver->requests(path => "/ok/$name")), $before + 100, "$name: each event once");
		my @lines = lines_of("$dir/nginx/access", qr{/ok/$name$});
		return @lines[$before .. $#lines];
	};
	my $versions = sub { return join(' ', sort keys %{ { map { (split / /)[0] => 1 } @_ } }) };

	foreach my $name (sort keys %two)
	{
		create($name, $two{$name}, 'localhost', ", max_in_flight => 32" . sprintf($version, 2));
		ask("SELECT outbox.alter_endpoint('$name', max_attempts => 20, backoff_base => '50 ms', backoff_max => '200 ms')");
		my @lines = $hundred->($name);
		is($versions->(@lines), 'HTTP/2.0', "$name: all of it over HTTP/2");
		my %connections = map { (split / /)[1] => 1 } @lines;
		my $n = keys %connections;
		note("$name: $n connections");
		if ($name eq 'h2') { is($n, 1, 'h2: one connection for all') }
		elsif ($name eq 'h2_brief') { cmp_ok($n, '>=', 100 / 8, 'h2_brief: GOAWAY after seven requests, and on with another connection') }
	}
	is(ask("SELECT string_agg(format('%s: %s', endpoint, error), E'\n') FROM outbox.attempts WHERE endpoint LIKE 'h2%' AND error IS NOT NULL"
			  . " AND (endpoint = 'h2' OR error !~ 'closed (before the answer|the connection, and it was sent again)')"),
		'', 'without a failure, but for requests that a GOAWAY overtook, or that had no stream');

	# HTTP/1.1 unless HTTP/2 is asked for.  Both are spoken with one host, and each has
	# connections of its own.
	create('h1', $port, 'localhost', sprintf($version, '1.1'));
	create('auto', $port);
	foreach my $round (1, 2)
	{
		is($versions->($hundred->($_)), 'HTTP/1.1', "$_: all of it over HTTP/1.1") foreach qw(auto h1);
		is($versions->($hundred->('h2')), 'HTTP/2.0', 'h2: all of it over HTTP/2, beside the others');
	}

	# Sessions are not resumed: that would take a certificate for good which has become bad since.
	create('h1_brief', $brief, 'localhost', ', max_in_flight => 1' . sprintf($version, '1.1'));
	my %again = map { (split / /)[1] => 1 } $hundred->('h1_brief');
	cmp_ok(scalar(keys %again), '>=', 100 / 8, 'h1_brief: another connection after seven requests');
	is(scalar(() = lines_of("$dir/nginx/access", qr/^\S+ \d+ r /)), 0, 'and each of them has a handshake with a certificate');
	cmp_ok(scalar(() = lines_of("$dir/nginx/access", qr/^\S+ \d+ \. /)), '>', 0, 'as the receiver sees it');

	# A receiver that speaks HTTP/2 alone gets it if the endpoint's config says so
	my $only = start_front('127.0.0.1:0', $port, 'only-alpn' => 'h2');
	create('only_two', $only->{port}, 'localhost', sprintf($version, 2));
	is($versions->($hundred->('only_two')), 'HTTP/2.0', 'HTTP/2 as asked for');
	foreach my $not ('auto', '1.1')
	{
		my $name = "only_" . $not =~ tr/./_/r;

		create($name, $only->{port}, 'localhost', sprintf($version, $not));
		is(outcome($name), 'TLS: the receiver does not speak the version of HTTP that it is asked for', "$not: nothing else than what is asked for");
	}
}

# --- A libcurl that was built with a directory of authorities

mkdir "$dir/directory" or die "$dir: $!";
link "$dir/other.crt", "$dir/directory/other.pem" or die "$dir: $!";
system_or_bail('openssl', 'rehash', "$dir/directory");
set(ssl_ca_file => '');
$node->stop;
$ENV{OUTBOX_CA_DIRECTORY} = "$dir/directory";
$ENV{LD_PRELOAD} = shim('ca_directory');
$node->start;
delete $ENV{LD_PRELOAD};
create('of_directory', $front{stranger}{port});
is(outcome('of_directory'), 'delivered', 'an authority of the directory');
my $own = slurp_file("$dir/authority.crt");
create("own_$_", $front{$_}{port}, 'localhost', qq{, credentials => '{"ca_certificate": "@{[$own =~ s/\n/\\n/gr]}"}'}) foreach qw(good stranger);
is(outcome('own_good'), 'delivered', 'an authority of the endpoint');
like(outcome('own_stranger'), $complaint{stranger}, 'beside which those of the directory do not count');
is(arrived('own_stranger'), 0, 'nothing was sent');
$node->stop;
done_testing();
