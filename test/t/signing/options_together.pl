# Every two options of an endpoint go together, whatever their values are.
# Formats, batches, signatures, headers, methods, queries, credentials, templates, filters, tenants, and tests.
use strict;
use warnings;

use Digest::SHA qw(hmac_sha256 hmac_sha256_hex);
use Encode ();
use JSON::PP;
use MIME::Base64;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('together', conf => "outbox.sinks = 'webhook, kafka'\n");
my $receiver = OutboxTest::Receiver->new('together');
my $json = JSON::PP->new->utf8->canonical->allow_nonref;

sub quoted { return "'" . ($_[0] =~ s/'/''/gr) . "'" }

# ----- the combinations: of few endpoints, each pair of values has one

my %values = (
	format => [ qw(standard raw cloudevents cloudevents-binary), 'standard,batches', 'cloudevents,batches' ],
	signature => [ qw(standard svix stripe github shopify slack none own), has_openssl($node) ? 'ed25519' : () ],
	headers => [ 'all', 'none', 'topic,attempt,test,sequence' ],
	method => [qw(POST PUT PATCH)],
	query => [qw(none id more)],
	credentials => [qw(none basic bearer oauth)],
	payload => [qw(as-it-is template)],
	filter => [qw(none some)],
	tenant => [qw(none acme)]);
my @factors = sort keys %values;

# A batch has no key for its query.
sub possible
{
	my (%row) = @_;
	return !(($row{format} // '') =~ /batches/ && ($row{query} // '') eq 'more');
}

my %open;
foreach my $i (0 .. $#factors)
{
	foreach my $j ($i + 1 .. $#factors)
	{
		my ($f, $g) = @factors[ $i, $j ];
		foreach my $v (@{ $values{$f} })
		{
			$open{"$f=$v $g=$_"} = 1 foreach grep { possible($f => $v, $g => $_) } @{ $values{$g} };
		}
	}
}
my $pairs = keys %open;

sub pairs_of
{
	my (%row) = @_;
	my @names = sort keys %row;
	return map { my $i = $_; map { "$names[$i]=$row{$names[$i]} $names[$_]=$row{$names[$_]}" } $i + 1 .. $#names } 0 .. $#names;
}

my @rows;
while (%open)
{
	my %row = map { split /=/ } split / /, (sort keys %open)[0];

	foreach my $f (grep { !exists $row{$_} } @factors)
	{
		my %gain = map { my $v = $_; $v => scalar(grep { $open{$_} } pairs_of(%row, $f => $v)) } grep { possible(%row, $f => $_) } @{ $values{$f} };
		$row{$f} = (sort { $gain{$b} <=> $gain{$a} || $a cmp $b } keys %gain)[0];
	}
	delete @open{ pairs_of(%row) };
	push @rows, \%row;
}
note("$pairs pairs in " . @rows . ' endpoints');

# ----- their endpoints

my %own = (
	signature => 'none', signature_header => 'X-Sum', id_header => 'X-Id', timestamp_header => 'X-Time',
	signed => '{id}|{timestamp}|{body}', signature_value => 'v={signature}', signature_encoding => 'hex', signature_key => 'text');
my %query = (id => 'i={id}', more => 'i={id}&t={topic}&y={type}&k={key}&n={tenant}');
my $token_url = $receiver->url('/status/200/token?body={%22access_token%22:%22t1%22,%22expires_in%22:3600,%22token_type%22:%22Bearer%22}');

foreach my $i (0 .. $#rows)
{
	my %row = %{ $rows[$i] };
	my ($format, $batches) = split /,/, $row{format};
	my %config = ($row{signature} eq 'own' ? %own : (signature => $row{signature}), outbox_headers => $row{headers}, method => $row{method});
	my $credentials;

	$config{query} = $query{ $row{query} } if $row{query} ne 'none';
	@config{qw(payload payload_missing)} = ({ n => '{$.n}', all => '{$}' }, 'dead') if $row{payload} eq 'template';
	@config{qw(token_url client_id)} = ($token_url, 'me') if $row{credentials} eq 'oauth';
	$credentials = { basic => { username => 'me', password => 'p:w' }, bearer => { token => 'b.1' }, oauth => { client_secret => 's' } }->{ $row{credentials} };
	$rows[$i]{name} = "e$i";
	ask("SELECT outbox.create_endpoint('e$i', '" . $receiver->url("/ok/e$i") . "', topics => '{together.*}', format => '$format',"
		  . ' config => ' . quoted($json->encode(\%config))
		  . ($credentials ? ', credentials => ' . quoted($json->encode($credentials)) : '')
		  . ($batches ? ', batch_size => 10' : '')
		  . ($row{filter} eq 'some' ? q{, filter => '$.n == 1'} : '')
		  . ($row{tenant} eq 'acme' ? q{, tenant => 'acme'} : '') . ')');
	$rows[$i]{secret} = ask("SELECT outbox.endpoint_secret('e$i')");
}

# ----- two events, of which a filter wants one, and a test

my %event;
foreach my $n (1, 2)
{
	$event{$n} = ask("SELECT outbox.emit('together.paid', '{\"n\": $n}', key => 'Zoë 7', type => 'Paid', tenant => 'acme', headers => '{\"xown\": \"a b\"}')");
}
my @named = map { $_->{name} } @rows;
my %test = map { split /\|/ } split /\n/, ask("SELECT name, outbox.send_test(name, 'together.test', '{\"n\": 3}') FROM unnest('{" . join(',', @named) . "}'::text[]) name");
ok(wait_settled($node), 'settled');
is(ask(q[SELECT string_agg(DISTINCT endpoint || ': ' || last_error, ', ') FROM outbox.dead_letters]), '', 'nothing is dead');

# ----- judged: each request by what its endpoint has

sub key_bytes { return decode_base64($_[0] =~ s/^whsec_//r) }

# True if the signature is what a receiver of this kind computes.
sub signed
{
	my ($row, $r) = @_;
	my ($kind, $secret, $body, %h) = ($row->{signature}, $row->{secret}, $r->{body}, %{ $r->{headers} });

	if ($kind =~ /^(standard|svix)$/)
	{
		my $p = $kind eq 'svix' ? 'svix' : 'webhook';
		return $h{"$p-signature"} eq 'v1,' . encode_base64(hmac_sha256(qq($h{"$p-id"}.$h{"$p-timestamp"}.$body), key_bytes($secret)), '');
	}
	return $h{'stripe-signature'} =~ /^t=(\d+),v1=(.*)$/ && $2 eq hmac_sha256_hex("$1.$body", $secret) if $kind eq 'stripe';
	return $h{'x-hub-signature-256'} eq 'sha256=' . hmac_sha256_hex($body, $secret) && exists $h{'x-github-delivery'} if $kind eq 'github';
	return $h{'x-shopify-hmac-sha256'} eq encode_base64(hmac_sha256($body, $secret), '') if $kind eq 'shopify';
	return $h{'x-slack-signature'} eq 'v0=' . hmac_sha256_hex(qq(v0:$h{'x-slack-request-timestamp'}:$body), $secret) if $kind eq 'slack';
	return $h{'x-sum'} eq 'v=' . hmac_sha256_hex("$h{'x-id'}|$h{'x-time'}|$body", $secret) if $kind eq 'own';
	return !grep { /signature|timestamp|(?<!ce)-id$/ } keys %h if $kind eq 'none';

	# 513 has OpenSSL verify it.
	return $h{'webhook-signature'} =~ /^v1a,[A-Za-z0-9+\/]{86}==$/;
}

# The events of a request: id, what is in them, whether they are tests, and members that count.
sub events_of
{
	my ($row, $r) = @_;
	my $body = $json->decode($r->{body});
	my %h = %{ $r->{headers} };
	my $mark = ($h{'outbox-test'} // '') eq 'true';

	return map { { id => $_->{id}, data => $_->{data}, test => ($_->{outboxtest} // $_->{headers}{'outbox-test'} // '') eq 'true', sequence => exists $_->{sequence} } } @$body
	  if $row->{format} =~ /batches/;
	return { data => $body->{data}, test => $mark } if $row->{format} eq 'standard';
	return { data => $body, test => $mark } if $row->{format} eq 'raw';
	return { id => $h{'ce-id'}, data => $body, test => ($h{'ce-outboxtest'} // '') eq 'true', sequence => exists $h{'ce-sequence'} } if $row->{format} eq 'cloudevents-binary';
	return { id => $body->{id}, data => $body->{data}, test => ($body->{outboxtest} // '') eq 'true', sequence => exists $body->{sequence} };
}

my %wrong;
foreach my $row (@rows)
{
	my $name = $row->{name};
	my $batches = $row->{format} =~ /batches/;
	my @requests = grep { $_->{path} eq "/ok/$name" } $receiver->requests;
	my @got;

	my $says = sub { push @{ $wrong{ $_[0] } }, join(' ', map { "$_=$row->{$_}" } @factors) . ": $_[1]" };
	foreach my $r (@requests)
	{
		my %h = %{ $r->{headers} };
		$r->{body} = Encode::encode('UTF-8', $r->{body});
		my @events = events_of($row, $r);
		my ($is_test) = map { $_->{data}{n} == 3 } @events;
		my $id = $batches ? undef : $is_test ? $test{$name} : $event{ $events[0]{data}{n} };
		my $named = $row->{signature};
		my $sent_id = $named eq 'own' ? $h{'x-id'} : $named eq 'svix' ? $h{'svix-id'} : $named eq 'github' ? $h{'x-github-delivery'} : $named eq 'shopify' ? $h{'x-shopify-webhook-id'} : $h{'webhook-id'};

		push @got, @events;
		$says->('signature', $r->{body}) unless signed($row, $r);
		$says->('method', $r->{method}) if $r->{method} ne $row->{method};
		$says->('credentials', $h{authorization} // 'none')
		  if ($h{authorization} // '') ne { none => '', basic => 'Basic ' . encode_base64('me:p:w', ''), bearer => 'Bearer b.1', oauth => 'Bearer t1' }->{ $row->{credentials} };
		my ($query) = $r->{target} =~ /\?(.*)/;
		my $i = $batches ? $sent_id // '[0-9a-f-]{36}' : $id;
		my ($topic, $key, $type) = $is_test ? ('together.test', '', 'together.test') : ('together.paid', 'Zo%C3%AB%207', 'Paid');
		my $whose = $is_test && $row->{tenant} eq 'none' ? '' : 'acme';
		my $query_is = { none => '', id => "i=$i", more => "i=$i&t=$topic&y=$type&k=$key&n=$whose" }->{ $row->{query} };
		$says->('query', $r->{target} . " and not $query_is") if ($query // '') !~ /^$query_is$/;
		$says->('id', $sent_id) if defined $sent_id && defined $id && $sent_id ne $id;

		my @own = sort grep { /^outbox-|^idempotency/ } keys %h;
		my @all = $batches ? qw(attempt) : (qw(topic type attempt), $is_test ? 'test' : 'key', $whose ? 'tenant' : 'sequence');
		my @expected = $row->{headers} eq 'none' ? () : $row->{headers} eq 'all' ? ('idempotency-key', map { "outbox-$_" } grep { $_ ne 'sequence' } @all) : map { "outbox-$_" } grep { /^(topic|attempt|test|sequence)$/ } @all;
		$says->('headers', "@own") if "@own" ne join ' ', sort @expected;
	}
	foreach my $e (@got)
	{
		my $n = $e->{data}{n};
		my $marked = $n == 3 && !($row->{headers} eq 'none' && $row->{format} =~ /^(standard|raw)$/);

		$says->('test', $json->encode($e)) if !!$e->{test} ne !!$marked;
		$says->('payload', $json->encode($e->{data})) if ($row->{payload} eq 'template') ne exists $e->{data}{all};
		$says->('sequence', $json->encode($e)) if $e->{sequence};
		$says->('event', $e->{id}) if defined $e->{id} && $e->{id} ne ($event{$n} // $test{$name});
	}
	my $got = join ' ', sort map { $_->{data}{n} } @got;
	$says->('filter', $got) if $got ne ($row->{filter} eq 'some' ? '1 3' : '1 2 3');
}
foreach my $what (qw(signature method credentials query id headers test payload sequence event filter))
{
	is(join("\n", @{ $wrong{$what} // [] }), '', "$what: as each endpoint has it");
}

# The table of the document has a row for each of these, and its columns are these formats.
my ($table) = PostgreSQL::Test::Utils::slurp_file("$top/doc/wire.md") =~ /^## What goes together\n\n(.*?)\n\n/ms;
is(join('; ', map { (split / *\| */)[1] =~ s/`//gr } grep { /^\| [^|]/ } (split /\n/, $table)), 'another signature, names of headers; outbox_headers; method; query; credentials; payload; filter',
	'what the document says was tried');

# Other sinks have none of these but templates and filters.
SKIP:
{
	skip 'outbox_kafka was not built', 1 unless is_installed('outbox_kafka');
	foreach my $entry (qw(signature=none outbox_headers=none method=PUT query=i={id}))
	{
		my ($name, $value) = split /=/, $entry, 2;
		my (undef, undef, $error) = $node->psql('postgres', qq(SELECT outbox.create_endpoint('other', 'kafka://127.0.0.1:9/t', config => '{"$name": "$value"}')));
		like($error, qr/\bunknown name\b|\b$name\b/, "Kafka has no $name");
	}
	ask(q(SELECT outbox.create_endpoint('other', 'kafka://127.0.0.1:9/t', filter => '$.n == 1', config => '{"payload": {"n": "{$.n}"}}')));
	is(ask(q(SELECT config ->> 'payload' FROM outbox.endpoints WHERE name = 'other')), '{"n": "{$.n}"}', 'but it has a template');
}

$node->stop;
done_testing();
