# A portal in Node has the data of each screen with one call, also behind PgBouncer.
use strict;
use warnings;

use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use OutboxTest;
use OutboxTest::PgBouncer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $modules = "$top/test/conformance/node_modules";
my $program = "$top/test/clients/node/portal.cjs";
plan skip_all => 'express and pg are not installed' unless -d "$modules/express" && -d "$modules/pg";

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal'); SELECT outbox.set_event_type('order.paid', example => '{\"n\": 7}')");

# --- The program is short, and calls all that a portal may

my $source = PostgreSQL::Test::Utils::slurp_file($program);
cmp_ok(scalar(() = $source =~ /\n/g), '<=', 300, 'its lines');
my %called = map { $_ => 1 } $source =~ /\b(?:one|rows)\('(\w+)'/g;
is(join(' ', map { "portal_$_" } sort keys %called),
	ask("SELECT string_agg(DISTINCT p, ' ' ORDER BY p) FROM (SELECT split_part(split_part(object, '.', 2), '(', 1) FROM outbox.privileges_of('portal') WHERE kind = 'FUNCTION') f (p)"),
	'every function of the portal');
my %table = PostgreSQL::Test::Utils::slurp_file("$top/doc/tenants.md") =~ /^\| `(\w{5})` \| (\d{3}) \|/mg;
my ($statuses) = $source =~ /const statuses = \{(.*?)\}/s;
my %mapped = $statuses =~ /'?(\w{5})'?: (\d{3})/g;
is_deeply({ map { $_ => $mapped{$_} } keys %table }, \%table, 'and the table of errors');

# --- It runs

my ($host, $behind) = OutboxTest::PgBouncer::installed() ? ('127.0.0.1', OutboxTest::PgBouncer::start($node, 'portal')) : ($node->host, $node->port);
diag('NOT TESTED: PgBouncer is not installed') if $host ne '127.0.0.1';
my ($out, $err) = ('', '');
my $portal = do
{
	local %ENV = (%ENV, NODE_PATH => $modules, PGHOST => $host, PGPORT => $behind, PGUSER => 'portal', PGDATABASE => 'postgres',
		CUSTOMERS => '{"a-token": {"tenant": "acme", "user": "jane"}, "g-token": {"tenant": "globex", "user": "joe"}}');
	IPC::Run::start([ 'node', $program ], '<', \undef, '>', \$out, '2>', \$err);
};
$portal->pump until $out =~ /listening on (\d+)/ || !$portal->pumpable;
my ($port) = $out =~ /listening on (\d+)/ or BAIL_OUT("node: $err");

# Returns the status, the body and the headers
sub http
{
	my ($method, $path, $body, %headers) = @_;
	my $answer = HTTP::Tiny->new(timeout => 120)->request($method, "http://127.0.0.1:$port$path",
		{ headers => { authorization => 'Bearer a-token', defined $body ? ('content-type' => 'application/json') : (), %headers },
			defined $body ? (content => ref $body ? encode_json($body) : $body) : () });
	my $json = length $answer->{content} ? JSON::PP->new->utf8->allow_nonref->decode($answer->{content}) : undef;
	return ($answer->{status}, $json, $answer->{headers});
}

# The body of an answer with this status
sub body
{
	my ($status, @request) = @_;
	my ($got, $json, $headers) = http(@request);
	is($got, $status, "@request[0, 1]: $status") or diag(encode_json($json // {}), $err);
	return wantarray ? ($json, $headers) : $json;
}

# --- Endpoints

my $url = $receiver->url('/ok/acme');
is_deeply(scalar body(200, GET => '/endpoints'), [], 'no endpoint');
is(body(200, GET => '/limits')->{max_endpoints}, 10, 'as many are allowed');
is(body(200, GET => '/event-types')->[0]{topic}, 'order.paid', 'what there is to subscribe to');
is(body(200, GET => '/asyncapi')->{channels}{'order.paid'}{address}, 'order.paid', 'as a document of AsyncAPI');
my ($made, $headers) = body(201, POST => '/endpoints', { url => $url, topics => ['order.*'], label => 'Orders' }, 'idempotency-key' => 'k');
my $at = "/endpoints/$made->{name}";
is($headers->{location}, $at, 'where it is');
like($made->{secret}, qr/^whsec_/, 'with its secret');
is(body(201, POST => '/endpoints', { url => $url }, 'idempotency-key' => 'k')->{name}, $made->{name}, 'once');
is(body(200, GET => '/endpoints')->[0]{name}, $made->{name}, 'listed');
my ($changed) = body(200, PATCH => $at, { label => 'Paid' }, 'if-match' => $headers->{etag});
is($changed->{label}, 'Paid', 'changed');
body(412, PATCH => $at, { label => 'Lost' }, 'if-match' => $headers->{etag});
is(body(200, GET => $at)->{label}, 'Paid', 'and not by the loser');
is(body(200, POST => "$at/pause")->{state}, 'paused', 'paused');
is(body(200, POST => "$at/resume")->{state}, 'active', 'resumed');
my $secret = body(200, POST => "$at/secret", { grace => 3600 });
ok($secret->{former_secret_until}, 'another secret');
body(412, POST => "$at/secret", { grace => 3600 }, 'if-match' => $headers->{etag});
is(body(200, GET => "$at/secret")->{secret}, $secret->{secret}, 'can be read');
$receiver->control(path => '/ok/acme', secret => $secret->{secret});

# --- The log, a delivery, and recovery

my $event = ask("SELECT outbox.emit('order.paid', '{\"n\": 1}', tenant => 'acme')");
$receiver->wait_delivered(1, path => '/ok/acme', id => $event);
my $test = body(202, POST => "$at/test", { topic => 'order.paid' })->{event_id};
$receiver->wait_delivered(1, path => '/ok/acme', id => $test);
ok(wait_settled($node), 'settled');
my $page = body(200, GET => '/deliveries?page_size=1');
is($page->{deliveries}[0]{event_id}, $test, 'a page');
$page = body(200, GET => "/deliveries?page_size=1&before=$page->{cursor}&topics=order.*&topics=none&status=delivered");
is($page->{deliveries}[0]{event_id}, $event, 'and the next one');
is(scalar @{ body(200, GET => "/attempts?event=$event")->{attempts} }, 1, 'requests');
my $one = body(200, GET => "$at/deliveries/$event");
is($one->{event}{payload}{n}, 1, 'one delivery');
is($one->{request}{headers}{'webhook-id'}, $event, 'with its request');
like($one->{attempts}[0]{cause}, qr/^(?:first|retry|resend|replay)$/, 'and what caused each attempt');
is(body(202, POST => "$at/deliveries/$event/retry")->{deliveries}, 1, 'sent again');
$receiver->wait_delivered(2, path => '/ok/acme', id => $event);
ok(wait_settled($node), 'settled');
is(body(202, POST => "$at/retry", { since => '2026-01-01' })->{deliveries}, 0, 'nothing has failed');
my $replay = body(202, POST => "$at/replays", { from_time => '2026-01-01T00:00:00Z', topics => ['order.*'] });
my $progress = body(200, GET => "$at/replays")->[0];
is("@{$progress}{qw(replay_id expected)}", "@{$replay}{qw(replay_id expected)}", 'a replay, and of how many events');
is(ref body(200, DELETE => "$at/replays/$replay->{replay_id}")->{cancelled}, 'JSON::PP::Boolean', 'ended');
is(ref body(200, GET => "/figures?endpoint=$made->{name}&bucket=300"), 'ARRAY', 'charts');

# --- Who changed what

my $changes = body(200, GET => '/changes')->{changes};
like(join(' ', map { "$_->{action} $_->{actor}" } @$changes),
	qr/^(?:cancel_replay jane )?replay jane resend jane test jane alter jane resume jane pause jane alter jane create jane$/, 'the newest change first, and who made it');
my ($more, @paged) = '';
while (defined $more)
{
	my $page = body(200, GET => "/changes?endpoint=$made->{name}&page_size=3$more");
	push @paged, @{ $page->{changes} };
	$more = defined $page->{cursor} ? "&before=$page->{cursor}" : undef;
}
is_deeply(\@paged, $changes, 'page by page');

# --- Errors

foreach my $case (
	[ 404, 'endpoint', '42704', GET => '/endpoints/none' ],
	[ 422, 'url', '22004', POST => '/endpoints', {} ],
	[ 422, 'timeout', '22023', PATCH => $at, { timeout => 1 } ],
	[ 422, undef, '22P02', GET => "$at/deliveries/1" ],
	[ 400, undef, undef, POST => '/endpoints', '{' ])
{
	my ($status, $field, $code, @request) = @$case;
	my $error = body($status, @request)->{error};
	is($error->{code}, $code, "$status: its code");
	is($error->{field}, $field, "$status: its field") if $code;
	ok($error->{message}, "$status: and words");
}
body(401, GET => '/endpoints', undef, authorization => 'Bearer x');
body(404, GET => $at, undef, authorization => 'Bearer g-token');
is_deeply(body(200, GET => '/deliveries', undef, authorization => 'Bearer g-token')->{deliveries}, [], 'nothing of another customer');
ask('REVOKE EXECUTE ON FUNCTION outbox.portal_limits FROM portal');
is(body(500, GET => '/limits')->{error}{message}, 'something went wrong here', 'what is no fault of the customer is not told');
body(204, DELETE => "$at?discard=true");
is_deeply(scalar body(200, GET => '/endpoints'), [], 'dropped');

$portal->kill_kill;
$node->stop;
done_testing();
