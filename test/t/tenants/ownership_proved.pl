# No event is sent to an endpoint before its receiver has proved that it wants events.
# Then nothing is lost, and the requests that ask for the proof are few.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('ownership', conf => "outbox.webhook_origin = 'events.shop.example'\n");
my $receiver = OutboxTest::Receiver->new('ownership');
my $n = 0;

sub error { return ($node->psql('postgres', $_[0]))[2] }
sub sent { my ($path) = @_; return grep { $_->{path} eq $path } $receiver->requests }
sub asked { return grep { $_->{method} eq 'OPTIONS' || ($_->{body} // '') =~ /"type":"outbox.challenge"/ } sent(@_) }
sub events { return grep { $_->{method} ne 'OPTIONS' && ($_->{body} // '') !~ /"type":"outbox.challenge"/ } sent(@_) }
sub wait_asked { my ($path, $count) = @_; return OutboxTest::Receiver::wait_found($count, "challenges to $path", sub { asked($path) }) }
sub wait_events { my ($path, $count) = @_; return OutboxTest::Receiver::wait_found($count, "events to $path", sub { events($path) }) }
sub shows { my ($name, $what, $value) = @_; return wait_sql($node, "SELECT $what FROM outbox.stats WHERE endpoint = '$name'", $value) }

sub create
{
	my ($name, $challenge, $path, $more) = @_;
	return ask("SELECT outbox.create_endpoint('$name', '" . $receiver->url($path) . "', topics => '{$name.*}', challenge => '$challenge', backoff_base => '10 ms'" . ($more ? ", $more" : '') . ')');
}

sub send_one { my ($name, $tenant) = @_; return ask("SELECT outbox.emit('$name.x', '{\"n\": " . ++$n . '}\'' . ($tenant ? ", tenant => '$tenant'" : '') . ')') }

# ----- the handshake of CloudEvents

create('good', 'options', '/allow/good?origin=events.shop.example');
send_one('good') foreach 1 .. 3;
wait_events('/allow/good', 3);
my @all = sent('/allow/good');
is(join(' ', map { $_->{method} } @all), 'OPTIONS POST POST POST', 'the receiver is asked once, before the first event');
is("$all[0]{headers}{'webhook-request-origin'} $all[0]{length}", 'events.shop.example 0', 'with our name, and without a body');
ok(!defined $all[0]{headers}{'webhook-request-rate'}, 'and no rate where there is none');
is(ask(q[SELECT state || ' ' || (verified_at IS NOT NULL) FROM outbox.endpoints WHERE name = 'good']), 'active true', 'the endpoint is verified');
is(ask(q[SELECT string_agg(action, ' ' ORDER BY change_id) FROM outbox.endpoint_audit WHERE endpoint = 'good']), 'create verify', 'which is noted');
create('asked', 'options', '/allow/asked?origin=events.shop.example', q[config => '{"query": "a=b&i={id}"}']);
wait_asked('/allow/asked', 1);
is((asked('/allow/asked'))[0]{target}, '/allow/asked?origin=events.shop.example&a=b&i=', 'at the URL of a request, with the query that config adds');
create('any', 'options', '/allow/any?origin=*&rate=120', 'rate_limit => 100');
send_one('any');
wait_events('/allow/any', 1);
is((asked('/allow/any'))[0]{headers}{'webhook-request-rate'}, 6000, 'the rate that it asks for, in a minute');
is(ask(q[SELECT rate_limit FROM outbox.endpoints WHERE name = 'any']), 2, 'the rate that it gets, in a second');
ask(q[SELECT outbox.alter_endpoint('any', rate_limit => 1)]);
send_one('any');
wait_events('/allow/any', 2);
is(scalar(asked('/allow/any')), 1, 'less of it needs no other proof');
ask(q[SELECT outbox.alter_endpoint('any', rate_limit => 50)]);
wait_asked('/allow/any', 2);
shows('any', 'state', 'active');
is(ask(q[SELECT rate_limit FROM outbox.endpoints WHERE name = 'any']), 2, 'more of it does');

# ----- a challenge that is repeated

create('text', 'echo', '/echo/text');
create('json', 'echo', '/echo/json?as=json', q[config => '{"signature": "slack"}']);
send_one($_) foreach qw(text json);
wait_events("/echo/$_", 1) foreach qw(text json);
my ($challenge) = asked('/echo/text');
my $data = decode_json($challenge->{body});
like($data->{data}{challenge}, qr/^[0-9a-f]{32}$/, 'the challenge is random');
ok($challenge->{headers}{'webhook-signature'} =~ /^v1,/ && $challenge->{headers}{'webhook-id'} =~ /^[0-9a-f-]{36}$/, 'and signed as an event is');
like((asked('/echo/json'))[0]{headers}{'x-slack-signature'}, qr/^v0=/, 'also in the form of another service');
is(scalar(asked("/echo/$_")), 1, "$_: asked once") foreach qw(text json);

# ----- wrong answers

my @wrong = (
	[ 'other', 'options', '/allow/other?origin=evil.example', 'answer OPTIONS with WebHook-Allowed-Origin: events.shop.example (it has another one, or none)' ],
	[ 'longer', 'options', '/allow/longer?origin=events.shop.example.evil.example', 'answer OPTIONS with WebHook-Allowed-Origin: events.shop.example (it has another one, or none)' ],
	[ 'silent', 'options', '/ok/silent', 'answer OPTIONS with WebHook-Allowed-Origin: events.shop.example (it has another one, or none)' ],
	[ 'refuses', 'options', '/status/405/refuses', 'answer OPTIONS with WebHook-Allowed-Origin: events.shop.example (the receiver answered 405)' ],
	[ 'moved', 'options', '/redirect/moved?to=' . $receiver->url('/allow/target') =~ s/([^A-Za-z0-9.])/sprintf('%%%02x', ord $1)/egr, qr/^answer OPTIONS .*\(the receiver answered 302/ ],
	[ 'gone', 'echo', '/status/410/gone', 'answer the challenge with its data.challenge (the receiver answered 410)' ],
	[ 'no_echo', 'echo', '/ok/no_echo', 'answer the challenge with its data.challenge (the answer is another one)' ],
	[ 'empty', 'echo', '/status/204/empty', 'answer the challenge with its data.challenge (the answer is another one)' ],
	[ 'large', 'echo', '/big-body/large?bytes=10000000', 'answer the challenge with its data.challenge (the answer is another one)' ],
	[ 'closes', 'echo', '/close/closes', qr/^answer the challenge with its data.challenge \(/ ],
	[ 'hangs', 'echo', '/hang/hangs', qr/^answer the challenge with its data.challenge \(timed out/, q[timeout => '200 ms'] ],
	[ 'drips', 'echo', '/endless-body/drips', qr/^answer the challenge with its data.challenge \(/, q[timeout => '1 s'] ]);
foreach (@wrong)
{
	my ($name, $challenge, $path, $words, $more) = @$_;

	create($name, $challenge, $path, $more);
	send_one($name);
}
foreach (@wrong)
{
	my ($name, $challenge, $path, $words) = @$_;
	my $reason = '';

	# On a slow machine it has been asked for the last time before.
	wait_until { ($reason = ask("SELECT reason FROM outbox.stats WHERE endpoint = '$name'") =~ s/^resume it to ask again: //r) =~ /^answer/ } "$name: why";
	ref $words ? like($reason, $words, "$name: what its owner has to do") : is($reason, $words, "$name: what its owner has to do");
	is(ask("SELECT state || ' ' || pending FROM outbox.stats WHERE endpoint = '$name'"), 'unverified 1', "$name: it is unverified, and its event waits");
}
is(scalar(map { events($_->[2] =~ s/\?.*//r) } @wrong), 0, 'none of them gets an event');
is(scalar(sent('/allow/target')), 0, 'no redirect is followed');
ask("SELECT outbox.create_endpoint('inside', 'https://localhost.invalid/', topics => '{inside.*}', challenge => 'echo')");
my $why = '';
wait_until { ($why = ask(q[SELECT reason FROM outbox.stats WHERE endpoint = 'inside'])) =~ /^answer/ } 'a host that is not found';
like($why, qr/could not resolve host/, 'is said, too');
like(error(q[SELECT outbox.create_endpoint('bad', 'http://10.0.0.1/', challenge => 'echo')]), qr/private/, 'the walls are those of any request');

# ----- no more than ten, with waits that double, until it is asked to

create('never', 'options', '/ok/never', q[backoff_max => '40 ms']);
send_one('never');
my @ten = wait_asked('/ok/never', 10);
shows('never', q[reason LIKE 'resume it to ask again: answer OPTIONS with %'], 't');
is(ask(q[SELECT next_attempt_at IS NULL FROM outbox.stats WHERE endpoint = 'never']), 't', 'after ten no other is due');
OutboxTest::nothing_arrives($receiver, 'after ten it is not asked any more', 1, path => '/ok/never');
OutboxTest::replace_worker($node);
shows('never', q[state || ' ' || (reason IS NOT NULL)], 'unverified true');
OutboxTest::nothing_arrives($receiver, 'nor by another worker', 1, path => '/ok/never');
$receiver->control(path => '/ok/never', behave => '/allow?origin=*');
ask(q[SELECT outbox.resume_endpoint('never')]);
wait_events('/ok/never', 1);
is(join(' ', map { $_->{method} } sent('/ok/never')), join(' ', ('OPTIONS') x 11, 'POST'), 'resumed, it is asked again, and gets what has waited');

# ----- what was verified stays so

OutboxTest::replace_worker($node);
send_one('good');
wait_events('/allow/good', 4);
is(scalar(asked('/allow/good')), 1, 'another worker does not ask again');
ask(q[SELECT outbox.alter_endpoint('good', topics => '{good.*,more.*}', timeout => '3 s')]);
ask(q[SELECT outbox.pause_endpoint('good')]);
ask(q[SELECT outbox.resume_endpoint('good')]);
send_one('good');
wait_events('/allow/good', 5);
is(scalar(asked('/allow/good')), 1, 'nor do other settings, or a pause');

# ----- another URL

ask(q[SELECT outbox.alter_endpoint('good', url => '] . $receiver->url('/ok/moved_to') . q[')]);
send_one('good') foreach 1 .. 3;
shows('good', q[state || ' ' || (reason LIKE 'answer OPTIONS%') || ' ' || pending], 'unverified true 3');
is(scalar(events('/ok/moved_to')), 0, 'another URL gets nothing before it has proved itself');
ask(q[SELECT outbox.pause_endpoint('good')]);
is(ask(q[SELECT state FROM outbox.stats WHERE endpoint = 'good']), 'paused', 'a pause goes before');
ask(q[SELECT outbox.resume_endpoint('good')]);
is(ask(q[SELECT state FROM outbox.endpoints WHERE name = 'good']), 'unverified', 'and is no way round');
like(error(q[SELECT outbox.send_test('good')]), qr/endpoint "good" is unverified, and sends nothing until its receiver has answered the challenge/, 'a test says so');
ask(q[SELECT outbox.alter_endpoint('good', reset => '{challenge}')]);
wait_events('/ok/moved_to', 4);
is(scalar(events('/ok/moved_to')), 4, 'the operator can do without');

# ----- customers

ask(q[SELECT outbox.set_portal_limits(challenge => 'echo')]);
sub portal { return decode_json(ask("SELECT outbox.portal_$_[0]")) }
my $created = portal(q[create_endpoint('acme', '] . $receiver->url('/ok/acme') . q[', '{"topics": ["acme.*"], "rate_limit": 5}', 'acme.one')]);
is("$created->{state} $created->{challenge}", 'unverified echo', 'a customer is told that its endpoint is unverified');
like($created->{reason}, qr/./, 'and why');
send_one('acme', 'acme');
wait_sql($node, q[SELECT e ->> 'reason' FROM outbox.portal_endpoints('acme') e], 'answer the challenge with its data.challenge (the answer is another one)');
like(error(q[SELECT outbox.portal_alter_endpoint('acme', 'acme.one', '{"challenge": null}')]), qr/unknown setting "challenge"/, 'it cannot choose to do without');
like(error(q[SELECT outbox.set_portal_limits(settings => '{url,challenge}')]), qr/unknown setting "challenge"/, 'and is not allowed to');
portal(q[alter_endpoint('acme', 'acme.one', '{"url": "] . $receiver->url('/echo/acme') . q["}')]);
wait_events('/echo/acme', 1);
is(scalar(events('/ok/acme')), 0, 'the former URL got nothing');
is(portal(q[alter_endpoint('acme', 'acme.one', '{"label": "A"}')])->{state}, 'active', 'and the endpoint is active');
# Another kind of proof is asked of another URL only.
ask(q[SELECT outbox.set_portal_limits(challenge => 'options')]);
my $shown = portal(q[alter_endpoint('acme', 'acme.one', '{"label": "B"}')]);
is(portal(q[alter_endpoint('acme', 'acme.one', '] . encode_json({ url => $shown->{url}, label => 'B', topics => $shown->{topics} }) . q[')])->{state},
	'active', 'an endpoint whose form gives its URL back goes on');
is(portal(q[alter_endpoint('acme', 'acme.one', '] . encode_json({ url => $shown->{url} }) . q[')])->{version}, $shown->{version}, 'and nothing has changed');
ask(q[SELECT outbox.set_portal_limits(challenge => 'echo')]);
# 1 + 9 for the first URL, for each other one the same, and each call.  Some have run off since.
my $spent = ask(q[SELECT round(spent) FROM outbox.portal_limits_here WHERE tenant = 'acme']);
cmp_ok($spent, '>=', 15, 'the requests that ask count as calls of the tenant');
ask(q[SELECT outbox.set_portal_limits('flood', max_calls => 35, max_endpoints => 100)]);
my $made = 0;
for my $i (1 .. 10)
{
	my $error = error("SELECT outbox.portal_create_endpoint('flood', '" . $receiver->url("/ok/flood$i") . "', '{}', 'flood.$i')");

	$made++ unless $error;
	like($error, qr/may change something 35 times in an hour/, 'which are limited') if $error && $i == 10;
}
is($made, 3, 'so a tenant has few strangers asked');
like(error(q[SELECT outbox.portal_alter_endpoint('flood', 'flood.1', '{"url": "https://victim.example/"}')]), qr/35 times/, 'by another URL neither');
like(error(q[SELECT outbox.portal_resume_endpoint('flood', 'flood.1')]), qr/35 times/, 'nor by going on');
wait_until { 3 == grep { asked("/ok/flood$_") } 1 .. 3 } 'each of these is asked';
# With fewer calls than a challenge stands for, one endpoint in an hour
foreach my $most (9, 1)
{
	ask("SELECT outbox.set_portal_limits('few$most', max_calls => $most)");
	is(portal("create_endpoint('few$most', '" . $receiver->url("/ok/few$most") . "')")->{state}, 'unverified', "$most calls in an hour: one endpoint");
	like(error("SELECT outbox.portal_create_endpoint('few$most', '" . $receiver->url("/ok/few$most") . "')"), qr/something $most times in an hour/, "$most calls in an hour: and no more");
}
ask(q[SELECT outbox.set_portal_limits(challenge => 'none')]);
is(portal(q[create_endpoint('beta', 'https://beta.example/')])->{state}, 'active', 'where the operator asks for no proof, none is needed');

# One at a time of a tenant
ask(q[SELECT outbox.create_endpoint('hung' || i, '] . $receiver->url('/hold/hung') . q[', topics => '{hung.*}', tenant => 'slow', challenge => 'echo', timeout => '30 s') FROM generate_series(1, 5) i]);
wait_asked('/hold/hung', 1);
create('beside', 'echo', '/echo/beside');
wait_asked('/echo/beside', 1);
is(scalar(asked('/hold/hung')), 1, 'receivers of a tenant are asked one after the other, and others do not wait for them');

# ----- a dump has the proofs with it

$node->safe_psql('postgres', 'CREATE DATABASE copy');
my $dump = PostgreSQL::Test::Utils::tempdir('ownership') . '/dump';
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'pg_dump');
$node->command_ok([ 'psql', '-qXf', $dump, $node->connstr('copy') ], 'restore');
my $states = q[SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM outbox.endpoints WHERE challenge IS NOT NULL];
is($node->safe_psql('copy', $states), ask($states), 'what was verified is so in a copy, and nothing else');

# ----- refused

foreach (
	[ q['https://a.example/', challenge => 'maybe'], qr/unknown challenge "maybe"/ ],
	[ q['kafka://a:1/t', challenge => 'echo'], qr/no webhook/ ])
{
	like(error("SELECT outbox.create_endpoint('bad', $_->[0])"), $_->[1], "refused: $_->[0]");
}

# Those that wait for others of their tenant cost next to nothing.
my $worker = worker_pid($node);
ask(q[SELECT outbox.create_endpoint('queue' || i, '] . $receiver->url('/hang/queue') . q[', topics => '{queue.*}', tenant => 'queue', challenge => 'echo', timeout => '60 s') FROM generate_series(1, 6000) i]);
wait_asked('/hang/queue', 1);
wait_sql($node, q[SELECT sum(endpoints) = (SELECT count(*) FROM outbox.endpoint_settings) FROM outbox.workers WHERE datname = 'postgres']);
ask('SELECT pg_sleep(3)');
sleeps_meanwhile($worker, 10, 'thousands that wait for the place of their tenant', sub { ask('SELECT pg_sleep(5)') });
ask(q[SELECT outbox.drop_endpoint('queue' || i, discard => true) FROM generate_series(1, 6000) i]);

ask(q[ALTER SYSTEM SET outbox.webhook_origin = '']);
ask('SELECT pg_reload_conf()');
wait_sql($node, q[SHOW outbox.webhook_origin], '');
like(error(q[SELECT outbox.create_endpoint('bad', 'https://a.example/', challenge => 'options')]), qr/outbox.webhook_origin is empty/, 'without a name of ours');
like(error(q[SELECT outbox.set_portal_limits(challenge => 'options')]), qr/outbox.webhook_origin is empty/, 'also as a limit');
like(error(q[ALTER SYSTEM SET outbox.webhook_origin = 'a b']), qr/invalid value/, 'a name that is none');

done_testing();
