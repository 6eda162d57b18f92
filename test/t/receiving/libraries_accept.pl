# The receivers' own libraries accept every request: standardwebhooks, svix, the CloudEvents SDK.
# The first two judge the signatures, the third both of its formats.
use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Encode ();
use JSON::PP;
use MIME::Base64 ();
use OutboxTest;
use OutboxTest::Conformance;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Conformance::skip_if_missing();

my $node = outbox_node('conformance');
my $receiver = OutboxTest::Conformance->new;
my $traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
my %path = (
	standard => '/standard',
	raw => '/raw',
	cloudevents => '/structured',
	'cloudevents-binary' => '/binary');
my %mode = (cloudevents => 'structured', 'cloudevents-binary' => 'binary');
my $wrong = $node->safe_psql('postgres', 'SELECT outbox.new_secret()');

sub create
{
	my ($name, $path, $more, %expected) = @_;
	my $url = $receiver->url($path);
	my $secret = $node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name', '$url', $more) \\g /dev/null
SELECT outbox.endpoint_secret('$name')
SQL
	$receiver->expect(
		$path,
		secrets => [$secret],
		wrong => $wrong,
		traceparent => $traceparent,
		%expected);
	return $secret;
}

# The requests to a path with that event.
sub requests
{
	my ($path, $id) = @_;
	return grep { $_->{path} eq $path && $_->{id} eq $id }
	  @{ $receiver->report->{requests} };
}

foreach my $format (sort keys %path)
{
	create(
		$format, $path{$format},
		"format => '$format', topics => '{order.*}'",
		(exists $mode{$format} ? (mode => $mode{$format}) : ()));
}

# Singles, keys, unicode, a trace, bytes of all kinds, the largest that there are
my $key = "Zo\x{eb} \"%\" \x{1f600}";
my $headers =
	qq({"traceparent": "$traceparent", "tracestate": "acme=1,rival=2",)
  . qq( "tenant": "K\\u00f6ln 100%", "X-Upper": "u", "with-dash": "d", "empty": "",)
  . qq( "id": "taken", "averyveryverylongname": "more than 20 characters"});
my $sql_key = Encode::encode('UTF-8', $key);
my $full = $node->safe_psql('postgres', <<SQL);
SELECT outbox.emit('order.created', '{"name": "Zo\\u00eb \\ud83d\\ude00", "n": 1.50}', key => '$sql_key',
	type => 'shop.Order \x{c3}\x{bc}.v1', headers => '$headers')
SQL
my $plain = emit($node, 'order.created', 'null');
emit($node, 'order.created', qq({"n": $_}), "key => 'k" . ($_ % 3) . "'") foreach 1 .. 20;
my $untraced = emit($node, 'order.created', '[1, "zwei", 3]',
	q{headers => '{"traceparent": "00-xyz", "tracestate": "a=b", "sequence": "7"}'});
my %bytes;
foreach (
	[ empty => q{''::bytea}, '' ],
	[ zero => q{'\x00007a00'::bytea}, "\0\0z\0" ],
	[ notext => q{'\x00ff80fe'::bytea}, "\0\xff\x80\xfe" ],
	[ text => q{convert_to(repeat('x', 1048576), 'UTF8')}, 'x' x 1048576 ],
	[ bytes => q{decode(repeat('00ff', 524288), 'hex')}, "\0\xff" x 524288 ])
{
	my ($name, $sql, $bytes) = @$_;
	my $id = $node->safe_psql('postgres',
		"SELECT outbox.emit_bytes('order.file', $sql, 'application/x-$name')");
	$bytes{$id} = [ $name, $bytes ];
}
my $events = 3 + 20 + keys %bytes;
wait_settled($node);
is_deeply($receiver->report->{problems}, [], 'no problem so far');
foreach my $format (sort keys %path)
{
	my @got = $receiver->wait_for($events, $path{$format});
	is(scalar @got, $events, "$format: each event once");
}

foreach my $id (sort keys %bytes)
{
	my ($name, $bytes) = @{ $bytes{$id} };
	foreach my $format ('raw', 'cloudevents-binary')
	{
		my ($r) = requests($path{$format}, $id);
		is($r->{sha256}, sha256_hex($bytes), "$format: bytes ($name), " . length($bytes) . ' of them');
		is($r->{headers}{'content-type'}, "application/x-$name", 'their type');
	}
	my ($r) = requests('/structured', $id);
	is($r->{event}{datacontenttype}, "application/x-$name", 'structured: their type');
	is($r->{event}{bytes_sha256}, sha256_hex($bytes), 'structured: the bytes, from base64')
	  if length $bytes;    # the SDK drops none at all
	ok(!exists $r->{headers}{expect}, 'and none waits for a "100 Continue"');
}

# What the SDK makes of the two modes
foreach my $mode (qw(structured binary))
{
	my ($r) = requests("/$mode", $full);
	my %event = %{ $r->{event} };

	# HTTP binding, 3.1.3.2: the SDK leaves this to its user.
	if ($mode eq 'binary')
	{
		foreach (values %event)
		{
			next if !defined $_ || ref $_;
			s/%([0-9A-F]{2})/chr hex $1/ge;
			$_ = Encode::decode('UTF-8', $_);
		}
	}
	is($event{specversion}, '1.0', "$mode: specversion");
	is($event{id}, $full, 'id');
	is($event{source}, '/outbox/postgres', 'source');
	is($event{type}, "shop.Order \x{fc}.v1", 'type');
	is($event{subject}, $key, 'subject is the key');
	is($event{partitionkey}, $key, 'partitionkey, too');
	like($event{time}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$/, 'time');
	is($event{datacontenttype}, 'application/json', 'datacontenttype');
	is_deeply($event{data}, { name => "Zo\x{eb} \x{1f600}", n => 1.5 }, 'data is the payload');
	is($event{traceparent}, $traceparent, 'traceparent as it was emitted');
	is($event{tracestate}, 'acme=1,rival=2', 'tracestate');
	is($event{tenant}, "K\x{f6}ln 100%", 'a header that fits is an extension');
	is_deeply(
		[ grep { !/^(?:specversion|id|source|type|time|subject|partitionkey|datacontenttype|data|traceparent|tracestate|tenant)$/ } sort keys %event ],
		[], 'one that does not fit is none');
	is($r->{headers}{'x-upper'}, 'u', 'but it is sent as a header');
	is($r->{headers}{traceparent}, $traceparent, 'and so in the header');

	($r) = requests("/$mode", $untraced);
	%event = %{ $r->{event} };
	ok(!exists $event{traceparent} && !exists $event{tracestate}, 'an invalid trace is dropped');
	ok(!exists $event{subject} && !exists $event{partitionkey}, 'no key: no subject');
	is($event{sequence}, '7', 'a sequence is that of the emitter');
	is($event{type}, 'order.created', 'the topic is the type by default');
	($r) = requests("/$mode", $plain);
	is($r->{event}{data} // 'null', 'null', 'null is a payload');
}
my ($r) = requests('/structured', $full);
is($r->{headers}{'content-type'}, 'application/cloudevents+json; charset=utf-8', 'structured: Content-Type');
is(scalar(grep { /^ce-/ } keys %{ $r->{headers} }), 0, 'structured: no ce- headers');
($r) = requests('/binary', $full);
is($r->{headers}{'content-type'}, 'application/json', 'binary: Content-Type');
ok(!exists $r->{headers}{'ce-datacontenttype'}, 'binary: no ce-datacontenttype');
is($r->{headers}{'ce-tenant'}, 'K%C3%B6ln%20100%25', 'binary: percent-encoded as the binding says');
is( $r->{body},
	(requests('/raw', $full))[0]->{body},
	'binary: the body is the payload, as in raw');

# Another source, without a restart, and one that is no URI is refused
my ($rc, $out, $err) = $node->psql('postgres', q{ALTER SYSTEM SET outbox.source = 'my shop'});
like($err, qr/invalid value for parameter "outbox.source"/, 'a source has to be a URI reference');
$node->safe_psql('postgres', q{ALTER SYSTEM SET outbox.source = 'https://shop.example/a?b=%20'});
$node->reload;
my $last;
foreach (1 .. 50)
{
	my $id = emit($node, 'order.source', '{}');
	wait_settled($node);
	($r) = requests('/structured', $id);
	($last) = requests('/binary', $id);
	last if $r->{event}{source} ne '/outbox/postgres' && $last->{event}{source} ne '/outbox/postgres';
}
is($r->{event}{source}, 'https://shop.example/a?b=%20', 'structured: outbox.source after a reload');
is($last->{headers}{'ce-source'}, 'https://shop.example/a?b=%2520', 'binary: outbox.source after a reload');
$node->safe_psql('postgres', q{ALTER SYSTEM RESET outbox.source});
$node->reload;

# Retries: the same id and body, a signature of each attempt's own
my @ids;
foreach my $format (sort keys %path)
{
	create(
		"retry-$format", "/retry$path{$format}",
		"format => '$format', topics => '{retry.*}', backoff_base => '10 ms', backoff_max => '50 ms'",
		answers => [ 500, 503, 500 ],
		(exists $mode{$format} ? (mode => $mode{$format}) : ()));
}
push @ids, emit($node, 'retry.json', '{"a": 1}', qq{key => 'a', headers => '{"traceparent": "$traceparent"}'});
push @ids, $node->safe_psql('postgres',
	q{SELECT outbox.emit_bytes('retry.bytes', '\x00ff', 'application/octet-stream')});
foreach my $format (sort keys %path)
{
	$receiver->wait_for(8, "/retry$path{$format}");
	foreach my $id (@ids)
	{
		my @got = requests("/retry$path{$format}", $id);
		is(scalar @got, 4, "$format: four attempts");
		is_deeply([ map { $_->{headers}{'outbox-attempt'} } @got ], [ 1 .. 4 ], 'counted');
	}
}

# Batches, their retries included: some fail as a whole, and are split
my $several = 'batch_size => 8, max_in_flight => 2, backoff_base => \'10 ms\', backoff_max => \'50 ms\'';
foreach my $format (qw(standard cloudevents))
{
	create(
		"batch-$format", "/batch/$format",
		"format => '$format', topics => '{batch.*}', $several",
		batch => JSON::PP::true, answers => [ 500, 503 ],
		($format eq 'cloudevents' ? (mode => 'structured') : ()));
}
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('batch-$_')") foreach qw(standard cloudevents);
my @batched = map {
	$node->safe_psql('postgres', <<SQL)
SELECT outbox.emit('batch.n', '{"n": $_, "name": "Zo\\u00eb \\ud83d\\ude00"}', key => 'k ü' || $_ % 3,
	type => 'shop.Order \x{c3}\x{bc}.v1', headers => '$headers')
SQL
} 1 .. 20;
push @batched, $node->safe_psql('postgres',
	q{SELECT outbox.emit_bytes('batch.bytes', '\x00ff', 'application/octet-stream')});
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('batch-$_')") foreach qw(standard cloudevents);
ok(wait_sql($node, "SELECT bool_and(delivered = 21) FROM outbox.stats WHERE endpoint LIKE 'batch-%'"), 'batches are delivered');
foreach my $format (qw(standard cloudevents))
{
	my @got = $receiver->wait_for(12, "/batch/$format");
	my (%events, %attempts);

	foreach my $request (@got)
	{
		$attempts{ $request->{id} }++;
		$events{ $_->{id} } = $_ foreach @{ $request->{events} };
		ok(!exists $request->{headers}{$_}, "$format: no $_ of a batch")
		  foreach qw(traceparent tenant outbox-topic outbox-sequence);
	}
	is_deeply([ sort keys %events ], [ sort @batched ], "$format: each event");
	is(join(' ', sort values %attempts), '3 3 3 3', 'four batches, three times');
	my ($some) = map { $events{$_} } $batched[4];
	is($some->{type}, "shop.Order \x{fc}.v1", 'type');
	is_deeply($some->{data}, { name => "Zo\x{eb} \x{1f600}", n => 5 }, 'data');
	is($format eq 'standard' ? $some->{key} : $some->{subject}, "k \x{fc}2", 'key');
	is($format eq 'standard' ? $some->{headers}{tenant} : $some->{tenant}, "K\x{f6}ln 100%", 'headers');
	is($events{ $batched[20] }{data_base64}, 'AP8=', 'bytes');
}
is((requests('/batch/cloudevents', ($receiver->wait_for(1, '/batch/cloudevents'))[0]{id}))[0]{headers}{'content-type'},
	'application/cloudevents-batch+json; charset=utf-8', 'Content-Type of a batch of CloudEvents');

# Rotations
my $first = create('rotation', '/rotation', "topics => '{rotation}'");

sub rotate
{
	my ($arguments) = @_;
	return $node->safe_psql('postgres', <<SQL);
SELECT outbox.rotate_secret('rotation'$arguments) \\g /dev/null
SELECT outbox.endpoint_secret('rotation')
SQL
}

my $sent = 0;

sub one_event
{
	my ($name, %expected) = @_;
	$receiver->expect('/rotation', %expected);
	emit($node, 'rotation', '{}');
	my @got = $receiver->wait_for(++$sent, '/rotation');
	my @signatures = split / /, $got[-1]->{headers}{'webhook-signature'};
	is(scalar @signatures, scalar @{ $expected{secrets} }, $name);
	return;
}

one_event('one signature', secrets => [$first], wrong => $wrong);
my $second = rotate('');
isnt($second, $first, 'rotate_secret makes another secret');
one_event('two signatures during a rotation', secrets => [ $second, $first ], wrong => $wrong);
my $third = rotate(", '1 hour'");
one_event('rotated again: the secret before the last is out', secrets => [ $third, $second ], wrong => $first);
my $fourth = rotate(", '0'");
one_event('no grace: one signature', secrets => [$fourth], wrong => $third);
is( $node->safe_psql('postgres', 'SELECT count(*) FROM outbox.endpoint_secrets WHERE previous IS NOT NULL'),
	'0', 'and nothing is kept of the former one');
my $own = 'whsec_' . MIME::Base64::encode_base64('k' x 64, '');
is(rotate(", grace => '10 s', secret => '$own'"), $own, "a secret of one's own");
one_event('two signatures before the end of a short grace', secrets => [ $own, $fourth ], wrong => $wrong);
ok( wait_sql($node, 'SELECT count(*) = 0 FROM outbox.endpoint_secrets WHERE previous IS NOT NULL'),
	'after grace the worker forgets the former secret');
one_event('and signs once', secrets => [$own], wrong => $fourth);
foreach (
	[ q{'rotation', '-1 s'}, '22023', qr/invalid grace -00:00:01/ ],
	[ q{'rotation', NULL}, '22004', qr/grace must not be null/ ],
	[ q{'rotation', '2 years'}, '22023', qr/invalid grace 2 years/ ],
	[ q{'rotation', secret => 'whsec_short'}, '22023', qr/invalid secret/ ],
	[ "'rotation', secret => '$own'", '22023', qr/this is the present secret/ ],
	[ q{'nobody'}, '42704', qr/"nobody" does not exist/ ])
{
	my ($arguments, $state, $message) = @$_;
	($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT outbox.rotate_secret($arguments)");
	like($err, qr/ERROR:  $state: .*$message.*HINT:/s, "refused: rotate_secret($arguments)");
}
one_event('a refused rotation changes nothing', secrets => [$own], wrong => $fourth);

# The judgement
my $report = $receiver->report;
is_deeply($report->{problems}, [], 'no problem with any request');
my %counts = %{ $report->{counts} };
my $requests = @{ $report->{requests} };
my $text = $requests - ($counts{'verified by node:crypto (no text)'} // 0);
is($counts{'verified by standardwebhooks'}, $text, 'standardwebhooks verified everything that is text');
is($counts{'verified by svix'}, $text, 'svix verified everything that is text');
is($counts{'wrong secret refused by standardwebhooks'}, $text, 'and refused a wrong secret each time');
is($counts{'retries with an identical body'}, 4 * 2 * 3 + 2 * 4 * 2, 'retries have identical bodies');
is($counts{'batches read by the CloudEvents SDK'}, 12, 'the CloudEvents SDK read every batch');
is($counts{'CloudEvents read by the SDK (batch)'}, 63, 'with all its events');
is($counts{'batches of format standard'}, 12, 'and the others are JSON');
is($counts{"the emitter's traceparent"}, 4 + 4 * 4, 'traces go on');
foreach my $name (qw(standardwebhooks svix))
{
	is($counts{"both secrets verified by $name"}, 3, "$name verified both secrets during rotations");
}
diag("$_: $counts{$_}") foreach sort keys %counts;

$node->stop;
done_testing();
