# A receiver gets the signature, the headers, the method and the query that it expects.
# The libraries that Stripe, GitHub, Shopify, Slack and Svix give to receivers judge them.
use strict;
use warnings;

use Digest::SHA qw(hmac_sha1_hex hmac_sha512_base64);
use IPC::Run ();
use JSON::PP;
use MIME::Base64 ();
use OutboxTest;
use OutboxTest::Clients;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('profiles');
my $receiver = OutboxTest::Receiver->new('profiles');
my $judge = OutboxTest::Clients::vendors_program('judge.mjs');
my $n = 0;

# An endpoint with that config, for the topics of its own name.
sub create
{
	my ($name, $config, $more) = @_;
	my $json = encode_json($config) =~ s/'/''/gr;

	ask("SELECT outbox.create_endpoint('$name', '" . $receiver->url("/ok/$name")
		  . "', topics => '{$name.*}', config => '$json'" . ($more ? ", $more" : '') . ')');
	return ask("SELECT outbox.endpoint_secret('$name')");
}

# The request that an event of the endpoint makes.
sub request
{
	my ($name, $more) = @_;
	my $sent = ++$n;

	ask("SELECT outbox.emit('$name.paid', '{\"n\": $sent}'" . ($more ? ", $more" : '') . ')');
	my ($request) = OutboxTest::Receiver::wait_found(
		1, 'requests',
		sub { grep { $_->{path} eq "/ok/$name" && $_->{body} =~ /"n": ?$sent\}/ } $receiver->requests });
	return $request;
}

# What the library of that vendor says about requests.
sub verdicts
{
	my (@cases) = @_;
	my ($in, $out, $err) = (join('', map { encode_json($_) . "\n" } @cases), '', '');

	IPC::Run::run([ 'node', $judge ], '<', \$in, '>', \$out, '2>', \$err) or die "judge.mjs: $err";
	note($err) if $err;
	return split /\n/, $out;
}

# ----- the vendors' own

my %more = (shopify => q[headers => '{"X-Shopify-Api-Version": "2025-10", "X-Shopify-Shop-Domain": "a.myshopify.com"}']);
my (@cases, @names);
foreach my $profile (qw(standard svix stripe github slack shopify))
{
	my $secret = create($profile, { signature => $profile, outbox_headers => 'none' }, join ', ', "tenant => 'acme'", $more{$profile} // ());
	my $r = request($profile, "tenant => 'acme'");
	my %case = (profile => $profile, secret => $secret, headers => $r->{headers}, body => $r->{body}, url => $r->{target});

	is_deeply([ grep { /^outbox-|^idempotency/ } sort keys %{ $r->{headers} } ], [], "$profile: no header of outbox");
	is_deeply([ grep { /^webhook-/ } sort keys %{ $r->{headers} } ], [], "$profile: nor of the standard")
	  if $profile ne 'standard';
	push @cases, \%case, { %case, body => $case{body} =~ s/"n"/"m"/r }, { %case, secret => ask('SELECT outbox.new_secret()') };
	push @names, $profile;
}
SKIP:
{
	diag("NOT TESTED against the vendors' libraries: make clients") unless $judge;
	skip('no libraries of vendors', 1) unless $judge;
	my @verdicts = verdicts(@cases);
	foreach my $profile (@names)
	{
		my @got = splice @verdicts, 0, 3;

		is("@got", 'true false false', "$profile: its own library accepts it, and neither another body nor another secret");
	}
}

# ----- during a rotation

create('next', { signature => 'github', signature_next => ' {signature}' }, "tenant => 'acme'");
create('no-next', { signature => 'stripe', signature_next => '' }, "tenant => 'acme'");
create('unsigned', { signature_header => '' }, "tenant => 'acme'");
my %signatures = (standard => 2, stripe => 2, svix => 2, github => 1, shopify => 1, slack => 1, next => 2, 'no-next' => 1, unsigned => 0);
foreach my $profile (sort keys %signatures)
{
	my $former = ask("SELECT outbox.endpoint_secret('$profile')");

	ask("SELECT outbox.rotate_secret('$profile')");
	my $r = request($profile, "tenant => 'acme'");
	my ($by) = map { $r->{headers}{$_} } grep { /signature|hmac/ } sort keys %{ $r->{headers} };
	my @signatures = ($by // '') =~ m{[A-Za-z0-9+/]{43,64}}g;
	is(scalar @signatures, $signatures{$profile}, "$profile: signatures during a rotation");
	is(ask("SELECT e ->> 'former_secret_until' IS NOT NULL FROM outbox.portal_endpoints('acme', '$profile') e"), @signatures > 1 ? 't' : 'f',
		"$profile: and it is shown whether the former secret signs");
	next unless $judge && $profile =~ /^(?:stripe|svix|github)$/;
	my $now = ask("SELECT outbox.endpoint_secret('$profile')");
	my @case = map { { profile => $profile, secret => $_, headers => $r->{headers}, body => $r->{body} } } $former, $now;
	my @got = verdicts(@case);
	is("@got", $profile eq 'github' ? 'false true' : 'true true', "$profile: which secrets verify it");
}

# ----- by template

my $secret = create('own',
	{
		signature => 'none', signature_header => 'X-Sum', id_header => 'X-Id', timestamp_header => 'X-Time',
		type_header => 'X-What', signed => 'a:{timestamp}:{id}:{body}', signature_value => 'sha1={signature};id={id}',
		signature_hash => 'sha1', signature_encoding => 'hex', signature_key => 'text',
		outbox_headers => 'topic,attempt', user_agent => 'Shop/2 (+https://shop.example)',
		method => 'PUT', query => 't={topic}&k={key}&fixed=1'
	},
	q[headers => '{"x-id": "the endpoint''s"}']);
my $r = request('own', q[key => 'Zoë &1', type => 'a b', headers => '{"x-sum": "forged", "X_Time": "1", "kept": "yes"}']);
my %h = %{ $r->{headers} };
is($h{'x-sum'}, 'sha1=' . hmac_sha1_hex("a:$h{'x-time'}:$h{'x-id'}:$r->{body}", $secret) . ";id=$h{'x-id'}",
	'a signature by template, which no event can forge');
like($h{'x-id'}, qr/^[0-9a-f-]{36}$/, 'the id, and not the header of the endpoint with that name');
ok(!exists $h{'x_time'}, 'nor one of the event');
is($h{kept}, 'yes', 'its others are sent');
is($h{'x-what'}, 'a%20b', 'the type');
is($h{'user-agent'}, 'outbox/1.0 Shop/2 (+https://shop.example)', 'User-Agent');
is_deeply([ grep { /^outbox-|^webhook-|^idempotency/ } sort keys %h ], [qw(outbox-attempt outbox-topic)], 'the wanted headers');
is($r->{method}, 'PUT', 'the method');
is($r->{target}, '/ok/own?t=own.paid&k=Zo%C3%AB%20%261&fixed=1', 'the query, escaped');

# The URL has a query and a fragment, the key is missing, and the rest is the standard.
ask("SELECT outbox.alter_endpoint('own', url => '" . $receiver->url('/ok/own?token=x#top') . q[', config => '{"query": "k={key}&i={id}", "method": "PATCH"}')]);
$r = request('own');
is($r->{target}, "/ok/own?token=x&k=&i=$r->{headers}{'webhook-id'}", 'behind a query of its own');
is($r->{method}, 'PATCH', 'the other method');
ask("SELECT outbox.alter_endpoint('own', reset => '{config}')");
$r = request('own');
is($r->{target} . $r->{method}, '/ok/own?token=xPOST', 'and as before without them');
like($r->{headers}{'webhook-signature'}, qr/^v1,/, 'with the standard signature');

# Bytes of the key in the secret, and a long hash
$secret = create('long', { signature_hash => 'sha512', signature_header => 'X-Long', signature_value => '{signature}', signed => '{body}' });
$r = request('long');
is($r->{headers}{'x-long'} =~ s/=+$//r, hmac_sha512_base64($r->{body}, MIME::Base64::decode_base64(substr $secret, 6)),
	'SHA-512 with the bytes of the secret');

# Secrets that were made elsewhere: of 75 bytes, without padding, and not in base64
my %made = (standard => 'whsec_' . 'QUJD' x 25, svix => 'whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo', github => 'one of our own, and its spaces');
foreach my $profile (sort keys %made)
{
	is(create("made-$profile", { signature => $profile, outbox_headers => 'none' }, "secret => '$made{$profile}'"), $made{$profile}, "$profile: such a secret");
	my $sent = request("made-$profile");
	next unless $judge;
	is(join(' ', verdicts({ profile => $profile, secret => $made{$profile}, headers => $sent->{headers}, body => $sent->{body} })), 'true', "$profile: its library accepts it");
}
foreach my $case ([ 'standard', $made{github} ], [ 'github', 'too short' ], [ 'github', "a tab\tin a text of thirty bytes" ], [ 'standard', 'whsec_' . 'QUJD' x 26 ])
{
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT outbox.alter_endpoint('made-$case->[0]', secret => '$case->[1]')");
	like($err, qr/22023/, "no secret for $case->[0]: $case->[1]");
}
is(ask("SELECT outbox.set_secrets('{\"made-github\": \"another one, in a text of its own\"}')"), '1', 'set_secrets() knows the form of each');
my (undef, undef, $unfit) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT outbox.alter_endpoint('made-github', config => '{\"signature\": \"standard\"}')");
like($unfit, qr/22023/, 'a config that the stored secret does not fit is refused');

# A batch
$secret = create('batch', { signature => 'github', outbox_headers => 'none', query => 'id={id}' }, 'batch_size => 10');
$r = request('batch');
is($r->{target}, "/ok/batch?id=$r->{headers}{'x-github-delivery'}", 'a batch has its id in the query');
is($r->{headers}{'x-hub-signature-256'}, 'sha256=' . Digest::SHA::hmac_sha256_hex($r->{body}, $secret), 'and is signed as a whole');

# ----- what is refused

foreach (
	[ { signature => 'gitlab' }, qr/signature is not known/ ],
	[ { method => 'GET' }, qr/method is not known/ ],
	[ { signature_header => "X: y\r\nHost" }, qr/invalid value/ ],
	[ { id_header => 'Content-Length' }, qr/a header in config cannot have this name/ ],
	[ { id_header => 'x', type_header => 'X' }, qr/the same name/ ],
	[ { query => 'a={payload}' }, qr/query is not valid/ ],
	[ { nothing => 1 }, qr/unknown name/ ])
{
	my ($config, $expected) = @$_;
	my (undef, undef, $error) = $node->psql('postgres',
		"SELECT outbox.create_endpoint('bad', 'http://127.0.0.1:9/', config => '" . encode_json($config) . "')");

	like($error, $expected, "refused: " . encode_json($config));
	like($error, qr/HINT: /, 'with a hint');
}
my (undef, undef, $error) = $node->psql('postgres',
	q[SELECT outbox.create_endpoint('bad', 'http://127.0.0.1:9/', batch_size => 2, config => '{"query": "k={key}"}')]);
like($error, qr/a batch has no topic, type, key or tenant/, 'a batch has no key for its query');

done_testing();
