# A request never goes to an address that is forbidden, however the address is written.
# All addresses of the internet are this machine's here, and a program listens on each
# of them: a request that is not refused gets through, and is seen.
use strict;
use warnings;

use IO::Socket::INET;
use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket qw(inet_aton inet_pton AF_INET6);
use Test::More;

own_network();

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'server', 'authority', join ',',
	map({ "DNS:$_.test" } qw(public mixed rebind proxied hole)), 'IP:8.8.8.8', 'IP:2606:4700::1');

my $receiver = OutboxTest::Receiver->new('main');
my $plain = start_front('[::]:80', $receiver->{port});
my $tls = start_front('[::]:443', $receiver->{port}, cert => "$dir/server.crt", key => "$dir/server.key");
my $environment = start_front('127.0.0.1:3128', 443, proxy => 1);
my $proxy = start_front('127.0.0.1:0', 443, proxy => 1);
my ($zone, $questions) = start_dns();

my $node = do
{
	local @ENV{qw(http_proxy https_proxy HTTPS_PROXY all_proxy ALL_PROXY)} = ('http://127.0.0.1:3128') x 5;
	local @ENV{qw(no_proxy NO_PROXY)} = ('*') x 2;
	outbox_node('main', conf => <<"CONF");
outbox.ssl_ca_file = '$dir/authority.crt'
outbox.allowed_networks = ''
max_connections = 20
CONF
};

sub ask { return $node->safe_psql('postgres', $_[0]) }

# Connections to the internet so far, or to the given addresses.
sub connections
{
	my (@addresses) = @_;
	my $these = join '|', map { quotemeta } @addresses;

	return grep { !@addresses || /^to (?:$these) / }
	  map { lines_of($_->{journal}, qr/^to /) } $plain, $tls;
}

# Sets outbox.allowed_networks, and waits until the worker knows: a name leads to
# an address that was not used before, and which is allowed from now on.
my $canaries = 0;

sub allow
{
	my ($networks) = @_;
	my $n = ++$canaries;
	my $all = join ', ', $networks || (), "127.0.1.$n";

	$zone->("canary$n.test" => "127.0.1.$n");
	ask("ALTER SYSTEM SET outbox.allowed_networks = '$all'");
	$node->reload;
	ok(wait_sql($node, "SELECT current_setting('outbox.allowed_networks') = '$all'"), 'sessions know the networks');
	ask("SELECT outbox.create_endpoint('canary$n', 'http://canary$n.test/ok/canary$n', topics => '{canary.n$n}',"
		  . " backoff_base => '20 ms', backoff_max => '50 ms')");
	return $receiver->wait_delivered(1, id => emit($node, "canary.n$n", '{}'));
}

# Emits one event for these endpoints' topic, and waits for the end of it.
sub attempt
{
	my ($topic) = @_;
	my $id = emit($node, $topic, '{}');

	wait_sql($node,
		"SELECT count(*) > 0 AND bool_and(status IN ('delivered', 'dead')) FROM outbox.deliveries WHERE event_id = '$id'");
	return $id;
}

# What became of the last event at an endpoint: "delivered", or the error.
sub outcome
{
	my ($endpoint, $topic) = @_;
	my $id = attempt($topic);

	return ask("SELECT CASE status WHEN 'delivered' THEN status ELSE last_error END FROM outbox.deliveries"
		  . " WHERE event_id = '$id' AND endpoint = '$endpoint'");
}

# An endpoint for the events of a topic of its own name.
sub create
{
	my ($name, $url) = @_;
	ask("SELECT outbox.create_endpoint('$name', '$url', topics => '{$name.*}', max_attempts => 1)");
	return;
}

my $public_v4 = '8.8.8.8';
my $refused = qr/outbox\.allowed_networks does not name it/;

# --- Forbidden addresses, in every spelling ---------------------------------

my @v4 = qw(0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.254 127.0.0.1 127.255.255.254
  169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.254 192.0.0.1 192.0.2.1 192.88.99.1 192.168.0.1
  192.168.255.254 198.18.0.1 198.19.255.254 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1
  255.255.255.255);
my @v6 = qw(:: ::1 ::2 ::127.0.0.1 fe80::1 febf::1 fec0::1 fc00::1 fd12:3456::1 ff02::1 ff0e::1 2001:db8::1
  100::1 5f00::1 3fff::1 2001::1 2001:0:7f00:1::1 2001:2::1 2001:10::1 64:ff9b:1::1 4000::1 1fff::1);

sub spellings_of_v4
{
	my ($address) = @_;
	my @b = split /\./, $address;
	my $n = unpack 'N', inet_aton($address);
	my ($high, $low) = ($n >> 16, $n & 0xffff);
	my $hex = sprintf '%x:%x', $high, $low;

	return (
		$address, "$address.", $n, sprintf('0x%x', $n), sprintf('0X%08X', $n), sprintf('0%o', $n),
		sprintf('%d.%d', $b[0], $n & 0xffffff), sprintf('%d.%d.%d', @b[ 0, 1 ], $low),
		sprintf('0x%x.0x%x.0x%x.0x%x', @b), sprintf('0%o.0%o.0%o.0%o', @b), sprintf('000%o.%d.0x%x.%d', @b),
		sprintf('0x%x.0%o', $b[0], $n & 0xffffff), '%3' . substr($address, 0, 1) . substr($address, 1),
		"[::ffff:$address]", "[::ffff:$hex]", "[0:0:0:0:0:FFFF:$hex]", "[0000:0000:0000:0000:0000:ffff:$address]",
		"[64:ff9b::$address]", "[64:ff9b::$hex]", "[2002:$hex\::1]");
}

sub spellings_of_v6
{
	my ($address) = @_;
	my @w = map { sprintf '%x', $_ } unpack 'n8', inet_pton(AF_INET6, $address);

	return ("[$address]", '[' . join(':', @w) . ']', '[' . uc(join ':', map { sprintf '%04s', $_ } @w) . ']');
}

my %host = map { $_ => 1 } (map { spellings_of_v4($_) } @v4), (map { spellings_of_v6($_) } @v6);
my @hosts = sort keys %host;
my @urls = map { ("http://$_/ok/literal", "https://$_/ok/literal", "https://$_:8443/ok/literal") } @hosts;
my $list = join ', ', map { "'$_'" } @urls;

ask(<<'SQL');
CREATE FUNCTION try(url text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE state text; words text; advice text;
BEGIN
	PERFORM outbox.create_endpoint('tried', url);
	RETURN 'created';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, words = MESSAGE_TEXT, advice = PG_EXCEPTION_HINT;
	RETURN format('%s %s: %s', state, words, advice);
END $$;
SQL
is( ask("SELECT string_agg(url || ' ' || said, E'\\n') FROM (SELECT url, try(url) AS said FROM unnest(ARRAY[$list]) url) x"
		  . " WHERE said NOT LIKE '22023 %address in the URL is %: %outbox.allowed_networks%'"),
	'', 'create_endpoint refuses every spelling, and says which setting allows it');

# The same, past that check: created while everything is allowed, used when
# nothing is.  (With a dot at its end it is a name to libcurl, and no such name exists.)
# Names that lead there cannot be refused earlier.
my %name = map { ("n$_" => $v4[$_]) } 0 .. $#v4;
$name{"m$_"} = $v6[$_] foreach 0 .. $#v6;
$zone->(map { ("$_.evil.test" => $name{$_}) } keys %name);
allow('0.0.0.0/0, ::/0');
my $n = 0;
my $sql = '';
foreach my $url ((grep { !/:8443/ } @urls), map { ("http://$_.evil.test/ok/name", "https://$_.evil.test/ok/name") } sort keys %name)
{
	$n++;
	$sql .= "SELECT outbox.create_endpoint('e$n', '$url', topics => '{ssrf.*}', max_attempts => 1);\n";
}
$sql =~ s/^\s*//;
ask($sql);
allow('');
my $before = () = connections();
my $id = attempt('ssrf.one');
is(ask("SELECT count(*) FROM outbox.attempts WHERE event_id = '$id'"), $n, "$n requests to forbidden addresses");
is( ask("SELECT string_agg(DISTINCT url || ' ' || coalesce(error, 'delivered'), E'\\n')"
		  . " FROM outbox.attempts a JOIN outbox.endpoints e ON e.name = a.endpoint"
		  . " WHERE event_id = '$id' AND coalesce(error, '') !~ 'address (in the URL|that the name resolves to) is .* outbox.allowed_networks does not name it'"
		  . " AND NOT (url ~ '[0-9][.]/' AND error = 'could not resolve host') AND error !~ 'while resolving the host'"),
	'', 'each is refused when it is to be connected to');
cmp_ok(ask("SELECT count(*) FROM outbox.attempts WHERE event_id = '$id' AND error ~ 'while resolving the host'"),
	'<', $n / 10, 'or its name was not known in time, on a machine that is busy');
is(scalar(() = connections()), $before, 'and no connection was made');
is( ask("SELECT count(DISTINCT error) > 10 FROM outbox.attempts WHERE event_id = '$id'"),
	't', 'with a reason for each range of addresses');

# The addresses that were refused can be reached
allow('0.0.0.0/0, ::/0');
attempt('ssrf.two');
my %reached = map { /^to (\S+) (\d+)/; ("$1 $2" => 1) } connections();
my @reachable = grep { !/^(?:0|22[4-9]|23|255|ff|fe80|febf|::$|10\.255)/ } @v4, @v6;
is_deeply([ grep { !$reached{"$_ 80"} || !$reached{"$_ 443"} } @reachable ],
	[], 'allowed, the same addresses are reached: ' . @reachable);
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name ~ '^e[0-9]'");

# --- Public addresses --------------------------------------------------------

allow('');
$zone->(
	'public.test' => "$public_v4 2606:4700::1",
	'mixed.test' => "10.0.0.1 fd00::1 $public_v4 127.0.0.1",
	'private.test' => '10.0.0.1 fd00::1 127.0.0.1',
	'rebind.test' => "$public_v4 | 169.254.169.254");
create('public', 'https://public.test/ok/public');
is(outcome('public', 'public.one'), 'delivered', 'a public address, over https');
create('literal', "https://$public_v4/ok/literal");
is(outcome('literal', 'literal.one'), 'delivered', 'as a literal, too');
create('literal6', 'https://[2606:4700::1]/ok/literal');
is(outcome('literal6', 'literal6.one'), 'delivered', 'IPv6 as well');

$before = () = connections();
create('plainly', 'http://public.test/ok/plain');
is(outcome('plainly', 'plainly.one'), 'plain http goes to addresses in outbox.allowed_networks only',
	'plain http to a public address is refused');
is(scalar(() = connections()), $before, 'and not even tried');
like(ask("SELECT try('http://$public_v4/')"), qr/^22023 invalid url: plain http is allowed to addresses in outbox.allowed_networks only: .*outbox.allowed_networks/,
	'a literal one by create_endpoint');

# --- Names -------------------------------------------------------------------

my @private = qw(10.0.0.1 fd00::1 127.0.0.1);
$before = () = connections(@private);
create('mixed', 'https://mixed.test/ok/mixed');
is(outcome('mixed', 'mixed.one'), 'delivered', 'a name with allowed and forbidden addresses');
is(scalar(() = connections(@private)), $before, 'leads to the allowed ones only');
create('private', 'https://private.test/ok/private');
like(outcome('private', 'private.one'), $refused, 'a name with forbidden addresses only');
is(scalar(() = connections(@private)), $before, 'leads nowhere');

# The second look-up yields another address than the first
create('rebind', 'https://rebind.test/ok/rebind');
is(outcome('rebind', 'rebind.one'), 'delivered', 'a name that will change');
my $looked_up = () = lines_of($questions, qr/^rebind\.test A$/);
$before = () = connections('169.254.169.254');
my $noticed = wait_until
{
	allow('');
	outcome('rebind', 'rebind.two') =~ $refused;
}
'a reload makes the worker look again';
ok($noticed, 'after it has changed: refused');
cmp_ok(scalar(() = lines_of($questions, qr/^rebind\.test A$/)), '>', $looked_up, 'it was looked up again');
is(scalar(() = connections('169.254.169.254')), $before, 'and not connected to');

# --- Pooled connections ------------------------------------------------------

allow('10.0.0.0/8');
create('pooled', 'http://10.0.0.7/ok/pooled');
is(outcome('pooled', 'pooled.one'), 'delivered', 'an allowed network');
is(outcome('pooled', 'pooled.two'), 'delivered', 'once more');
is(scalar(() = connections('10.0.0.7')), 1, 'over one connection');
is(outcome('pooled', 'pooled.three'), 'delivered', 'and once more');
allow('');
like(outcome('pooled', 'pooled.four'), $refused, 'no longer allowed: that holds for the open connection, too');
is(scalar(() = $receiver->requests(path => '/ok/pooled')), 3, 'nothing more arrived over it');

# --- Redirects ---------------------------------------------------------------

allow('10.0.0.0/8');
foreach my $status (300 .. 308)
{
	foreach my $to ('http://169.254.169.254/latest', 'http://10.0.0.9/ok/trap', '//169.254.169.254/', '/ok/trap')
	{
		(my $path = $to) =~ s/\W+/-/g;
		my $name = "to-$status$path";
		create($name =~ s/-/_/gr, "http://10.0.0.7/redirect/$name?status=$status&to=$to");
	}
}
$before = () = connections('169.254.169.254', '10.0.0.9');
ask("SELECT outbox.alter_endpoint(name, topics => '{redirect.*}') FROM outbox.endpoints WHERE name ~ '^to_'");
$id = attempt('redirect.one');
is( ask("SELECT string_agg(endpoint || ' ' || last_error, E'\\n') FROM outbox.deliveries WHERE event_id = '$id'"
		  . " AND (status, last_error) IS DISTINCT FROM ('dead', format('the receiver answered %s, and redirects are not followed', substr(endpoint, 4, 3)))"),
	'', 'no redirect is followed, of nine kinds');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE event_id = '$id'"), 36, 'to four places each');
is(scalar(() = connections('169.254.169.254', '10.0.0.9')), $before, 'no request went there');
is(scalar(() = $receiver->requests(path => '/ok/trap')), 0, 'the target of a redirect gets no request');

# --- Proxies -----------------------------------------------------------------

is(scalar(() = lines_of($environment->{journal}, qr/./)), 0, 'the proxy of the environment was never asked');

ask("ALTER SYSTEM SET outbox.proxy = 'http://127.0.0.1:$proxy->{port}'");
allow('10.0.0.0/8');
$zone->('proxied.test' => $public_v4);
create('proxied', 'https://proxied.test/ok/proxied');
is(outcome('proxied', 'proxied.one'), 'delivered', 'outbox.proxy');
is_deeply([ lines_of($proxy->{journal}, qr/^connect/) ], ['connect proxied.test:443'], 'is asked to connect, by name');
is(scalar(() = lines_of($questions, qr/^proxied/)), 0, 'which is not looked up here');
create('direct', 'http://10.0.0.7/ok/direct');
is(outcome('direct', 'direct.one'), 'delivered', 'plain http goes past it');
is(outcome('public', 'public.two'), 'delivered', 'an endpoint from before it');
is(scalar(() = lines_of($proxy->{journal}, qr/^connect public.test:443/)), 1, 'uses it from now on');
create('behind', 'https://10.0.0.7/ok/behind');
allow('');
like(outcome('behind', 'behind.one'), qr/the address in the URL is private/, 'literal addresses are judged before it');
like(outcome('direct', 'direct.two'), $refused, 'and plain http goes there directly, as before');
is(scalar(() = lines_of($proxy->{journal}, qr/^connect 10\./)), 0, 'the proxy is not asked for those');
is(scalar(() = lines_of($environment->{journal}, qr/./)), 0, 'nor is the one of the environment');

# A proxy by its name, and one whose name leads nowhere
$zone->('proxy.test' => '127.0.0.1');
ask("ALTER SYSTEM SET outbox.proxy = 'http://proxy.test:$proxy->{port}'");
allow('');
is(outcome('proxied', 'proxied.two'), 'delivered', 'a proxy by its name');
is(scalar(() = lines_of($proxy->{journal}, qr/^connect proxied.test:443/)), 2, 'which was looked up and asked');
ask("ALTER SYSTEM SET outbox.proxy = 'http://noproxy.test:$proxy->{port}'");
allow('');
is(outcome('proxied', 'proxied.three'), "could not resolve the proxy's name", 'a proxy whose name does not exist');

# A request that waits for the connection of another one while the proxy is set
my $silent = IO::Socket::INET->new(Listen => 10, LocalAddr => '0.0.0.0', LocalPort => 8443, ReuseAddr => 1) or die "listen: $!";
ask('ALTER SYSTEM RESET outbox.proxy');
$zone->('hole.test' => $public_v4);
allow('');
ask("SELECT outbox.create_endpoint('hole', 'https://hole.test:8443/ok/hole', topics => '{hole.*}', max_attempts => 1, connect_timeout => '20 s')");
ask("SELECT outbox.emit('hole.one', '{}'), outbox.emit('hole.two', '{}')");
my $first = $silent->accept;    # and never says a word
ok(wait_sql($node, 'SELECT in_flight = 2 FROM outbox.workers'), 'two requests to a server that stalls');
$zone->('hole.test' => '127.0.0.1');
ask("ALTER SYSTEM SET outbox.proxy = 'http://127.0.0.1:$proxy->{port}'");
allow('');
wait_sql($node, q[SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'hole' AND status IN ('delivered', 'dead')], 2);
my @to = $first->sockhost;
$silent->blocking(0);
while (my $connection = $silent->accept) { push @to, $connection->sockhost }
is("@to", $public_v4, 'the one that waited for the other while the proxy was set has not gone past it, to an address that is not judged');
is(ask(q[SELECT string_agg(status, ' ' ORDER BY status) FROM outbox.deliveries WHERE endpoint = 'hole']), 'dead delivered', 'but through it');

shown_in_security(scalar @hosts, 'spellings of forbidden addresses');
$node->stop;
done_testing();
