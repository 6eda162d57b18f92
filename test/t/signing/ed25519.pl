# An endpoint can sign with ed25519, as Standard Webhooks says, and OpenSSL verifies it.
# Its customer gets the public key, and never the private one.
use strict;
use warnings;

use IPC::Run;
use JSON::PP;
use MIME::Base64;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
plan skip_all => 'this PostgreSQL was built without OpenSSL' unless has_openssl($node);
my $receiver = OutboxTest::Receiver->new('main');
my $dir = PostgreSQL::Test::Utils::tempdir();

sub refused
{
	my ($sql, $state, $what) = @_;
	like(($node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql"))[2], qr/ERROR:  $state/, $what);
	return;
}

sub write_file
{
	my ($name, $data) = @_;
	open my $fh, '>:raw', "$dir/$name" or die "$name: $!";
	print $fh $data;
	close $fh or die "$name: $!";
	return "$dir/$name";
}

# True if a signature of this request is one by the owner of this public key.
sub verifies
{
	my ($request, $public) = @_;
	my %headers = %{ $request->{headers} };
	my $der = pack('H*', '302a300506032b6570032100') . decode_base64($public =~ s/^whpk_//r);
	my $pem = write_file('key', "-----BEGIN PUBLIC KEY-----\n" . encode_base64($der) . "-----END PUBLIC KEY-----\n");
	my $text = write_file('text', "$headers{'webhook-id'}.$headers{'webhook-timestamp'}.$request->{body}");

	foreach my $signature (split / /, $headers{'webhook-signature'})
	{
		my ($base64) = $signature =~ /^v1a,(.*)$/ or return 0;
		my $sig = write_file('signature', decode_base64($base64));
		return 1 if IPC::Run::run([ qw(openssl pkeyutl -verify -pubin -rawin -inkey), $pem, '-in', $text, '-sigfile', $sig ], '>&', \my $out);
	}
	return 0;
}

sub next_request
{
	my ($path) = @_;
	my $id = ask(q[SELECT outbox.emit('a', '{"n": 1}', tenant => 'acme')]);
	$receiver->wait_delivered(1, id => $id, path => $path);
	my ($request) = grep { ($_->{headers}{'webhook-id'} // '') eq $id && $_->{path} eq $path } $receiver->requests;
	return $request;
}

my $url = $receiver->url('/ok/acme');
ask(qq[SELECT outbox.create_endpoint('e', '$url', tenant => 'acme', config => '{"signature": "ed25519"}')]);
my $private = ask("SELECT outbox.endpoint_secret('e')");
my $public = ask("SELECT public_key FROM outbox.endpoints WHERE name = 'e'");
like($private, qr/^whsk_/, 'a private key was made');
like($public, qr/^whpk_[A-Za-z0-9+\/]{43}=$/, 'and its public key is there');
my $request = next_request('/ok/acme');
ok(verifies($request, $public), 'OpenSSL verifies a request');
$request->{body} .= ' ';
ok(!verifies($request, $public), 'and no other');

# Rotation: both sign
ask("SELECT outbox.rotate_secret('e')");
my $later = ask("SELECT public_key FROM outbox.endpoints WHERE name = 'e'");
isnt($later, $public, 'another key');
$request = next_request('/ok/acme');
ok(verifies($request, $_), 'both verify') foreach $later, $public;

# The customer
ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");
foreach my $call ("portal_secret('acme', 'e')", "portal_rotate_secret('acme', 'e')")
{
	my $text = ask("SET ROLE portal; SELECT outbox.$call");
	my $got = decode_json($text);
	is_deeply([ $got->{secret}, $got->{public_key} ], [ undef, ask("SELECT public_key FROM outbox.endpoints WHERE name = 'e'") ], "$call gives the public key");
	unlike($text, qr/whsk_/, 'and not the private one');
}
refused("SET ROLE portal; SELECT outbox.endpoint_public_key('e')", '42501', 'the portal asks for its own only');

# What is no key
refused("SELECT outbox.rotate_secret('e', secret => '$_')", '22023', "a secret like $_") foreach 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
  'whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'whsk_' . encode_base64('x' x 64, '');
ask("SELECT outbox.create_endpoint('plain', '$url/plain', topics => '{none}')");
is(ask("SELECT public_key FROM outbox.endpoints WHERE name = 'plain'"), '', 'another signature has no public key');
refused(q[SELECT outbox.alter_endpoint('plain', config => '{"signature": "ed25519"}')], '22023', 'the former secret does not fit');
ask(qq[SELECT outbox.alter_endpoint('plain', config => '{"signature": "ed25519"}', secret => '$private')]);
is(ask("SELECT public_key FROM outbox.endpoints WHERE name = 'plain'"), $public, 'a key that is given');

# Its text is no key: its customer could not verify, and what is signed would be a private key
foreach my $config ('{"signature": "stripe"}', '{"signature_key": "text"}')
{
	refused("SELECT outbox.alter_endpoint('e', config => '$config')", '22023', "a private key does not fit $config");
	refused("SELECT outbox.create_endpoint('text', '$url/text', topics => '{none}', config => '$config', secret => '$private')", '22023', 'nor does one that is given');
}
ask("UPDATE outbox.endpoint_secrets SET secret = 'sealed:1:damaged'");
is(ask("SELECT count(*), count(public_key) FROM outbox.endpoints"), '2|0', 'keys that cannot be opened are not shown, and the view is');
$node->stop;

done_testing();
