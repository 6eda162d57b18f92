# A customer's certificates and key cost the worker a few milliseconds, or are refused.
use strict;
use warnings;

use MIME::Base64;
use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();

sub openssl { OutboxTest::Network::openssl(@_); return }

sub pem
{
	my ($label, $der) = @_;
	my $text = encode_base64($der, '') =~ s/(.{1,64})/$1\n/gr;
	return "-----BEGIN $label-----\n$text-----END $label-----\n";
}

make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
my %file = map { $_ => slurp_file("$dir/$_") } qw(authority.crt good.crt good.key);

# A key whose password is hashed eight million times, whatever the password is
openssl('pkcs8', '-topk8', '-in', "$dir/good.key", '-passout', 'pass:', '-iter', 0x10001, '-out', "$dir/locked.key");
my $locked = decode_base64(slurp_file("$dir/locked.key") =~ s/^-.*\n//gmr);
$locked =~ s/\x02\x03\x01\x00\x01/\x02\x03\x7f\xff\xff/ or die 'no such number of rounds';

# A key of DSA has no public key in PKCS #8: it is worked out, with a modulus of any size.
my $number = sub { '0x7' . join '', map { sprintf '%x', int rand 16 } 1 .. 8000 };
append_to_file("$dir/dsa.cnf", <<"CNF");
asn1=SEQUENCE:key
[key]
version=INTEGER:0
algorithm=SEQUENCE:algorithm
private=OCTWRAP,INTEGER:@{[ $number->() ]}
[algorithm]
name=OID:dsaEncryption
parameters=SEQUENCE:parameters
[parameters]
p=INTEGER:@{[ $number->() ]}f
q=INTEGER:@{[ $number->() ]}f
g=INTEGER:@{[ $number->() ]}
CNF
openssl('asn1parse', '-noout', '-genconf', "$dir/dsa.cnf", '-out', "$dir/dsa.der");
openssl('genpkey', '-algorithm', 'RSA', '-pkeyopt', 'rsa_keygen_bits:4104', '-pkeyopt', 'rsa_keygen_primes:3', '-out', "$dir/large.key");
openssl('rsa', '-aes256', '-passout', 'pass:former', '-traditional', '-in', "$dir/good.key", '-out', "$dir/former.key");
openssl('rsa', '-traditional', '-in', "$dir/good.key", '-out', "$dir/traditional.key");
openssl('ecparam', '-name', 'prime256v1', '-genkey', '-out', "$dir/curve.key");
openssl('genpkey', '-algorithm', 'ED25519', '-out', "$dir/edwards.key");
make_cert($dir, $_, 'authority', 'DNS:shop') foreach qw(curve edwards);
make_odd_key("$dir/exponent.key");
openssl('req', '-x509', '-key', "$dir/exponent.key", '-days', '30', '-subj', '/CN=exponent', '-out', "$dir/exponent.crt");

my $certificate = 'a certificate in credentials is not in PEM';
my $no_key = 'client_key is not in PEM, or neither for RSA nor for elliptic curves';
my @cases = (
	# name, client_certificate, client_key, ca_certificate, what the endpoint waits for (undef: it delivers)
	[ 'a password', 'good', pem('ENCRYPTED PRIVATE KEY', $locked), 'authority', 'client_key needs a password' ],
	[ 'a password that its label conceals', 'good', pem('PRIVATE KEY', $locked), 'authority', $no_key ],
	[ 'a password and no label', 'good', pem('ANY PRIVATE KEY', $locked), 'authority', $no_key ],
	[ 'a former kind of password', 'good', slurp_file("$dir/former.key"), 'authority', 'client_key needs a password' ],
	[ 'a key of DSA', 'good', pem('PRIVATE KEY', slurp_file("$dir/dsa.der")), 'authority', $no_key ],
	[ 'a key of DSA as one of RSA', 'good', pem('RSA PRIVATE KEY', slurp_file("$dir/dsa.der")), 'authority', $no_key ],
	[ 'a large key', 'good', slurp_file("$dir/large.key"), 'authority', 'client_key costs too much to sign with' ],
	[ 'no key', 'good', 'no key', 'authority', $no_key ],
	[ 'an authority with a long exponent', undef, undef, 'exponent', 'the key of a certificate costs too much to verify' ],
	[ 'a key as an authority', undef, undef, 'good.key', $certificate ],
	[ 'RSA', 'good', slurp_file("$dir/good.key"), 'authority', undef ],
	[ 'RSA as of old', 'good', slurp_file("$dir/traditional.key"), 'authority', undef ],
	[ 'a curve', 'curve', slurp_file("$dir/curve.key"), 'authority', undef ],
	[ 'another curve', 'edwards', slurp_file("$dir/edwards.key"), 'authority', undef ]);

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my $tls = start_hostile_tls('an answer', "$dir/good");

endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 100);
$receiver->wait_delivered(20, path => '/ok/fine');
my $worker = worker_pid($node);
ask(q[SELECT outbox.set_portal_limits(settings => '{topics,credentials}')]);

foreach (@cases)
{
	my ($name, $cert, $key, $authority, $reason) = @$_;
	my $text = sub { my ($file) = @_; return slurp_file(-e "$dir/$file" ? "$dir/$file" : "$dir/$file.crt") };
	my %given = (ca_certificate => $text->($authority));
	@given{qw(client_certificate client_key)} = ($text->($cert), $key) if $cert;
	my $credentials = join ',', map { "'$_', \$pem\$$given{$_}\$pem\$" } sort keys %given;
	my ($begun, $ticks) = (time, cpu_ticks($worker));
	my $fine = () = $receiver->delivered(path => '/ok/fine');

	my $endpoint = ask(qq[SELECT outbox.portal_create_endpoint('acme', 'https://localhost:$tls->{port}/',
		jsonb_build_object('topics', jsonb_build_array('one'), 'credentials', jsonb_build_object($credentials))) ->> 'name']);
	ask(q[SELECT outbox.emit('one', '{}', tenant => 'acme')]);
	my $now = "coalesce(reason, last_error, CASE WHEN delivered > 0 THEN 'delivered' END)";
	ok(wait_sql($node, "SELECT $now FROM outbox.stats WHERE endpoint = '$endpoint'", $reason // 'delivered'), $name);
	$receiver->wait_delivered($fine + 20, path => '/ok/fine');
	cmp_ok(cpu_ticks($worker) - $ticks, '<', 60 + 15 * (time - $begun), "$name: the worker has little work");
	is(worker_pid($node), $worker, "$name: the worker lives");
	ask("SELECT outbox.drop_endpoint('$endpoint', discard => true)");
	die "$name is not bounded\n" unless Test::More->builder->is_passing;    # the next would wait as long
}

stop_producer($producer);
check_history($node, $receiver, $log, endpoints => ['/ok/fine'], max_duplicates => 100, name => 'nothing lost, all in order');
$node->stop;
done_testing();
