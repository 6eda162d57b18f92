package OutboxTest::Network;

# What tests of the network need: certificates, fronts of the receiver (with or
# without TLS), a name server, and a network of one's own in which every address
# there is leads to this machine.

use strict;
use warnings;

use Exporter 'import';
use IPC::Run ();
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use OutboxTest::Receiver;

our @EXPORT = qw(own_network start_front start_nginx start_dns start_hostile start_hostile_tls lines_of make_ca make_cert make_odd_key);

# Runs the test again in a network namespace in which all addresses are local,
# with a resolv.conf that names the server of start_dns().  No privilege is
# needed where users may make namespaces.  Elsewhere the test is skipped.  The lines of
# shell, if there are any, change the network further.
sub own_network
{
	my ($more) = @_;
	return if $ENV{OUTBOX_OWN_NETWORK};

	my $dir = PostgreSQL::Test::Utils::tempdir('network');
	my %file = (
		'resolv.conf' => "nameserver 127.0.0.1\noptions timeout:30 attempts:2\n",
		'nsswitch.conf' => "hosts: files dns\n",
		'hosts' => "127.0.0.1 localhost\n");
	my $script = "set -e\n";

	foreach my $name (sort keys %file)
	{
		PostgreSQL::Test::Utils::append_to_file("$dir/$name", $file{$name});
		$script .= "mount --bind '$dir/$name' /etc/$name\n";
	}

	# Every user may listen on ports 53, 80 and 443 there.  The inner namespace gives the
	# test its own user back: PostgreSQL does not run as root.
	$script .= <<'SH' . ($more // '') . <<'SH';
ip link set lo up
ip route add local 0.0.0.0/0 dev lo
ip -6 route add local ::/0 dev lo
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
SH

exec unshare --user --map-user="$1" --map-group="$2" "$3" "$4"
SH
	my @enter = ('unshare', '--user', '--map-root-user', '--net', '--mount', 'sh', '-c', $script, 'sh',
		POSIX::getuid(), POSIX::getgid());

	my $out = '';
	if (!IPC::Run::run([ @enter, 'true', '' ], '>', \$out, '2>&1'))
	{
		chomp $out;
		diag("NOT TESTED in a network of its own: $out");
		plan(skip_all => "no network of its own: $out");
	}
	$ENV{OUTBOX_OWN_NETWORK} = 1;

	# PostgreSQL::Test::Utils has put its log in their place.
	open(STDOUT, '>&', Test::More->builder->output) or die "stdout: $!";
	open(STDERR, '>&', Test::More->builder->failure_output) or die "stderr: $!";
	exec @enter, $^X, $0 or die "unshare: $!";
}

sub start
{
	my ($ready, @command) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		exec @command or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	my $end = time + 30;
	until (-e $ready)
	{
		die "$command[1] does not start\n" if time > $end || waitpid($pid, POSIX::WNOHANG()) == $pid;
		usleep(10_000);
	}
	return $pid;
}

# A front of test/tools/front.py: { port => ..., journal => file, pid => ... }.  The
# options are those of front.py.  A true value of "proxy" is a flag.
sub start_front
{
	my ($listen, $to, %option) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('front');
	my @flags = delete $option{proxy} ? ('--proxy') : ();
	my $pid = start(
		"$dir/ready", 'python3', "$OutboxTest::top/test/tools/front.py", '--listen', $listen,
		'--to', $to, '--journal', "$dir/journal", '--ready', "$dir/ready", @flags,
		map { ("--$_", $option{$_}) } sort keys %option);

	chomp(my $port = PostgreSQL::Test::Utils::slurp_file("$dir/ready"));
	return { port => $port, journal => "$dir/journal", pid => $pid };
}

# Starts nginx with the certificate "good" of this directory, and with this in its http block.
sub start_nginx
{
	my ($nginx, $dir, $http) = @_;
	my $temp = join "\n\t", map { "${_}_temp_path $dir/nginx/$_;" } qw(client_body proxy fastcgi uwsgi scgi);

	mkdir "$dir/nginx" or die "$dir: $!";
	PostgreSQL::Test::Utils::append_to_file("$dir/nginx/conf", <<"CONF");
daemon off;
pid $dir/nginx/pid;
error_log stderr;
worker_processes 1;
events { worker_connections 512; }
http {
	$temp
	ssl_certificate $dir/good.crt;
	ssl_certificate_key $dir/good.key;
$http}
CONF
	# It writes its pid once it listens.
	start("$dir/nginx/pid", $nginx, '-c', "$dir/nginx/conf", '-p', "$dir/nginx");
	return;
}

# The name server of own_network(); returns a function that sets its names:
# $zone->('a.test' => '8.8.8.8 | 10.0.0.1', ...), and its journal.
sub start_dns
{
	my $dir = PostgreSQL::Test::Utils::tempdir('dns');
	my %names;
	my $zone = sub {
		%names = (%names, @_);
		open(my $fh, '>', "$dir/zone.new") or die "$dir: $!";
		print $fh map { "$_ $names{$_}\n" } sort keys %names;
		close $fh;
		rename "$dir/zone.new", "$dir/zone" or die "$dir: $!";
	};

	$zone->();
	start("$dir/ready", 'python3', "$OutboxTest::top/test/tools/dns.py", '--zone', "$dir/zone",
		'--journal', "$dir/journal", '--ready', "$dir/ready");
	return ($zone, "$dir/journal");
}

# The servers of test/KIND/hostile.py, all of them or those with these names:
# { port => { name => ... }, journal => file, pid => ... }
sub start_hostile
{
	my ($kind, @names) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('hostile');
	my $pid = start("$dir/ready", 'python3', "$OutboxTest::top/test/$kind/hostile.py", '--ready', "$dir/ready",
		'--journal', "$dir/journal", @names);
	my %port = map { /^(\d+) (.*)$/ ? ($2 => $1) : () } lines_of("$dir/ready", qr/./);

	return { port => \%port, journal => "$dir/journal", pid => $pid };
}

# A receiver of test/receivers/hostile_tls.c that behaves like this, with the certificate
# DIR/CERT.crt: { port => ..., journal => file, pid => ... }
my $hostile_tls;

sub start_hostile_tls
{
	my ($behaviour, $cert) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('hostile');

	unless ($hostile_tls)
	{
		$hostile_tls = "$dir/hostile_tls";
		system('cc', '-o', $hostile_tls, "$OutboxTest::top/test/receivers/hostile_tls.c", '-lssl', '-lcrypto', '-lpthread') == 0
		  or die "cc failed\n";
	}
	my $pid = start("$dir/ready", $hostile_tls, $behaviour, "$cert.crt", "$cert.key", "$dir/ready", "$dir/journal");
	chomp(my $port = PostgreSQL::Test::Utils::slurp_file("$dir/ready"));
	return { port => $port, journal => "$dir/journal", pid => $pid };
}

# The lines of a journal that match.
sub lines_of
{
	my ($journal, $pattern) = @_;
	return () unless -e $journal;
	return grep { /$pattern/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($journal);
}

sub openssl
{
	my (@arguments) = @_;
	my $out = '';
	IPC::Run::run([ 'openssl', @arguments ], '>', \$out, '2>&1') or die "openssl @arguments: $out";
	return;
}

# An authority: DIR/NAME.crt and .key.
sub make_ca
{
	my ($dir, $name) = @_;

	openssl('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '30', '-subj', "/CN=$name",
		'-keyout', "$dir/$name.key", '-out', "$dir/$name.crt");
	return;
}

# An RSA key whose public exponent is as long as its modulus: a signature costs as much to verify as to make.
sub make_odd_key
{
	my ($file) = @_;

	open(my $python, '|-', 'python3', '-', $file) or die "python3: $!";
	print $python <<'PY';
import subprocess, sys
p, q = (int(subprocess.check_output(['openssl', 'prime', '-generate', '-bits', '1024'])) for i in range(2))
d = 0x10000000000000000000000000001
while True:
    try:
        e = pow(d, -1, (p - 1) * (q - 1))
        break
    except ValueError:
        d += 2
numbers = [0, p * q, e, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p)]
config = 'asn1=SEQUENCE:k\n[k]\n' + ''.join(f'n{i}=INTEGER:0x{n:x}\n' for i, n in enumerate(numbers))
open(sys.argv[1] + '.cnf', 'w').write(config)
subprocess.check_call(['openssl', 'asn1parse', '-noout', '-genconf', sys.argv[1] + '.cnf', '-out', sys.argv[1] + '.der'])
subprocess.check_call(['openssl', 'rsa', '-inform', 'DER', '-in', sys.argv[1] + '.der', '-out', sys.argv[1]], stderr=subprocess.DEVNULL)
PY
	close $python or die "the odd key: $?";
	return;
}

# A certificate of an authority.  names: "DNS:a.test,IP:127.0.0.1"; days: from
# and to, counted from today (0 to 30 unless given); ca undef: signed by itself.  A key
# that is there is used.
sub make_cert
{
	my ($dir, $name, $ca, $names, $from, $to) = @_;
	my $day = sub { POSIX::strftime('%Y%m%d%H%M%SZ', gmtime(time + 86400 * $_[0])) };
	my $config = "$dir/$name.cnf";
	my $work = "$dir/$name.ca";

	openssl('req', '-new', -e "$dir/$name.key" ? ('-key', "$dir/$name.key") : ('-newkey', 'rsa:2048', '-nodes', '-keyout', "$dir/$name.key"),
		'-subj', "/CN=$name", '-out', "$dir/$name.csr");
	mkdir $work or die "$work: $!";
	PostgreSQL::Test::Utils::append_to_file("$work/index.txt", '');
	PostgreSQL::Test::Utils::append_to_file($config, <<"CNF");
[ca]
default_ca = here
[here]
dir = $work
database = $work/index.txt
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = more
[any]
commonName = supplied
[more]
subjectAltName = $names
CNF
	openssl('ca', '-batch', '-notext', '-config', $config, '-in', "$dir/$name.csr", '-out',
		"$dir/$name.crt", '-startdate', $day->($from // -1), '-enddate', $day->($to // 30),
		defined $ca
		? ('-cert', "$dir/$ca.crt", '-keyfile', "$dir/$ca.key")
		: ('-selfsign', '-keyfile', "$dir/$name.key"));
	return;
}

1;
