# A portal does for a tenant all that it may do to its own endpoints, and finds no other one.
use strict;
use warnings;

use JSON::PP;
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql, $role) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role // 'postgres' ]);
}

# What an application does for its customer
sub portal { return ask($_[0], 'portal') }

# The JSON that a function returns
sub json { return decode_json(portal("SELECT $_[0]")) }

sub limits
{
	my $limits = json("outbox.portal_limits('$_[0]')");
	return join '|', $limits->{max_endpoints}, join(',', @{ $limits->{settings} }), $limits->{max_calls};
}

sub says
{
	my ($sql, $role) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql", extra_params => [ '-U', $role // 'portal' ]);
	my @lines = map { s/^(?:psql:[^ ]*|\S+:\d+:) *//r } grep { /ERROR|HINT/ } split /\n/, $err;
	return join ' ', @lines, $rc == 0 ? "ok: $out" : ();
}

ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");
my %url = map { $_ => $receiver->url("/ok/$_") } qw(acme globex operator);
my %name;

# --- A tenant's own endpoints

my %made;
foreach my $tenant (qw(acme globex))
{
	$made{$tenant} = json(qq~outbox.portal_create_endpoint('$tenant', '$url{$tenant}', '{"topics": ["order.*"], "rate_limit": 1000,
		"headers": {"x-a": "b"}, "label": "Orders", "metadata": {"account": 4711}}', idempotency_key => 'first')~);
	$name{$tenant} = $made{$tenant}->{name};
}
like($name{acme}, qr/^ep-[0-9a-f]{32}$/, 'a name is made');
ask("SELECT outbox.create_endpoint('operator', '$url{operator}')");
$receiver->control(path => "/ok/$_", secret => json("outbox.portal_secret('$_', '$name{$_}')")->{secret}) foreach qw(acme globex);
$receiver->control(path => '/ok/operator', secret => ask("SELECT outbox.endpoint_secret('operator')"));
my %event = map { $_ => ask("SELECT outbox.emit('order.a', '{\"n\": 1}', tenant => '$_')") } qw(acme globex);
$receiver->wait_delivered(1, path => "/ok/$_") foreach qw(acme globex);
ok(wait_settled($node), 'delivered');
is(portal("SELECT e ->> 'name', e ->> 'url', e ->> 'topics', e ->> 'rate_limit', e #>> '{headers,x-a}', e ->> 'state', e ->> 'delivered' FROM outbox.portal_endpoints('acme') e"),
	qq($name{acme}|$url{acme}|["order.*"]|1000|b|active|1), 'its endpoints, with their settings and how they are doing');
my $page = json("outbox.portal_deliveries('acme')");
is(join('|', map { "$_->{event_id} $_->{endpoint} $_->{status}" } @{ $page->{deliveries} }), "$event{acme} $name{acme} delivered", 'its deliveries');
is(join(' ', sort keys %{ $page->{deliveries}[0] }), 'attempts created_at delivered_at endpoint event_id key last_error last_status_code next_attempt_at reason status test topic type',
	'which have no number that counts the events of others');
is(join('|', map { "$_->{event_id} $_->{endpoint} $_->{status_code}" } @{ json("outbox.portal_attempts('acme')")->{attempts} }), "$event{acme} $name{acme} 200", 'its requests');
like(portal("SELECT outbox.portal_attempts('acme') #>> '{attempts,0,duration_ms}'"), qr/^[\d.]{1,9}$/, 'with as many digits as are known');
portal(qq(SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', '{"topics": ["order.*", "more.*"], "rate_limit": null, "filter": "\$.n > 0"}')));
is(portal("SELECT e ->> 'topics', e ->> 'rate_limit' IS NULL, e ->> 'filter', e #>> '{headers,x-a}' FROM outbox.portal_endpoints('acme', '$name{acme}') e"),
	'["order.*", "more.*"]|t|($."n" > 0)|b', 'settings change, null brings a default back, and the rest stays');
is(json("outbox.portal_retry('acme', '$name{acme}', '$event{acme}')")->{deliveries}, 1, 'one delivery is sent again');
$receiver->wait_delivered(2, path => '/ok/acme');
pass('what was delivered is sent again');
ok(wait_settled($node), 'settled');
my $replay = json("outbox.portal_replay('acme', '$name{acme}', now() - interval '1 hour')");
is($replay->{expected}, '1', 'and a time is replayed');
$receiver->wait_delivered(3, path => '/ok/acme');
portal("SELECT outbox.portal_send_test('acme', '$name{acme}', 'order.test', '{\"n\": 2}')");
$receiver->wait_delivered(4, path => '/ok/acme');
pass('a test event');
ok(wait_settled($node), 'settled');
$receiver->control(path => '/ok/acme', behave => '/status/500');
ask("SELECT outbox.alter_endpoint('$name{acme}', max_attempts => 1)");
my $dead = ask("SELECT outbox.emit('order.a', '{\"n\": 3}', tenant => 'acme')");
ok(wait_sql($node, "SELECT status = 'dead' FROM outbox.deliveries WHERE event_id = '$dead' AND endpoint = '$name{acme}'"), 'a dead delivery');
is(join('|', map { "$_->{event_id} $_->{status} $_->{last_status_code}" } @{ json("outbox.portal_deliveries('acme', status => 'dead')")->{deliveries} }),
	"$dead dead 500", 'is on its page');
my $one = json("outbox.portal_delivery('acme', '$name{acme}', '$dead')");
is("$one->{status} $one->{reason} $one->{event}{payload}{n} @{[ map { \"$_->{cause} $_->{status_code}\" } @{ $one->{attempts} } ]}", 'dead max_attempts 3 first 500',
	'one delivery, with its content and its requests');
$one = json("outbox.portal_delivery('acme', '$name{acme}', '$event{acme}')");
is("$one->{status} @{[ map { $_->{cause} } @{ $one->{attempts} } ]}", 'delivered replay resend first', 'and what caused each of them');
is(scalar(keys %{ { map { $_->{id} => 1 } @{ $one->{attempts} } } }), 3, 'which have names of their own');
$receiver->control(path => '/ok/acme', behave => '/ok');
is(json("outbox.portal_retry('acme', '$name{acme}', since => now() + interval '1 hour')")->{deliveries}, 0, 'nothing failed since');
is(json("outbox.portal_retry('acme', '$name{acme}', since => now() - interval '1 hour', topics => '{order.*}')")->{deliveries}, 1, 'what failed since is sent again');
$receiver->wait_delivered(1, path => '/ok/acme', id => $dead);
pass('a dead one is sent again, too');
ok(wait_settled($node), 'settled');

# --- The log: by topic, time and event, in pages

my @logged = map { ask("SELECT outbox.emit('order.rare.$_', '{\"n\": 1}', tenant => 'acme')") } 1 .. 3;
ok(wait_settled($node), 'settled');
sub found { return join ' ', map { $_->{topic} } @{ json("outbox.portal_deliveries('acme', $_[0])")->{deliveries} } }
is(found("topics => '{order.rare.*}'"), 'order.rare.3 order.rare.2 order.rare.1', 'deliveries of some topics');
my $at = "(SELECT created_at FROM outbox.all_events WHERE id = '%s')";
my %at = map { $_ => ask(sprintf "SELECT created_at FROM outbox.events WHERE id = '$logged[$_]'") } 0 .. 2;
is(found("from_time => '$at{1}'"), 'order.rare.3 order.rare.2', 'from a time on');
is(found("from_time => '$at{0}', to_time => '$at{1}'"), 'order.rare.2 order.rare.1', 'and up to one');
is(found("event => '$logged[1]'"), 'order.rare.2', 'and of one event, at any endpoint');
is(found("status => 'dead', from_time => '$at{0}'"), '', 'with a status');
my ($cursor, @walked, $searched);
do
{
	$page = json("outbox.portal_deliveries('acme', topics => '{order.rare.*}', page_size => 1" . ($cursor ? ", before => '$cursor'" : '') . ')');
	$cursor = $page->{cursor};
	push @walked, map { $_->{topic} } @{ $page->{deliveries} };
	is($page->{searched_to} && substr($page->{searched_to}, 11, 8), ask("SET timezone = 'UTC'; SELECT '$at{2 - $#walked}'::timestamptz") =~ s/^\S+ (.{8}).*/$1/sr, 'and says how far it has searched')
	  if @walked <= 3 && $cursor;
} while ($cursor && @walked < 10);
is("@walked", 'order.rare.3 order.rare.2 order.rare.1', 'page by page');
like(says("SELECT outbox.portal_deliveries('acme', before => '1:2:3')"), qr/22023: invalid cursor/, 'a cursor of an operator is none here');
unlike(says("SELECT outbox.portal_deliveries('acme', before => regexp_replace(outbox.portal_deliveries('acme', page_size => 1) ->> 'cursor', '-[0-9a-f]+-', '-$_-'))"),
	qr/cursor.*\d:/, 'and of one that was changed no number is told') foreach 'f' x 16, '0' x 16, '0123456789abcdef';

# --- A replay is watched, and ended

my ($listed) = map { decode_json($_) } split /\n/, portal("SELECT outbox.portal_replays('acme', '$name{acme}')");
is("$listed->{replay_id} $listed->{events} $listed->{cancelled}", "$replay->{replay_id} 1 0", 'how far a replay is');
isnt($listed->{finished_at}, undef, 'and when it ended');
is(portal(<<SQL), "true\nfalse", 'one that goes on is cancelled, once');
BEGIN;
SELECT outbox.portal_replay('acme', '$name{acme}', now() - interval '1 hour') ->> 'replay_id' AS replay \\gset
SELECT outbox.portal_cancel_replay('acme', '$name{acme}', :replay) -> 'cancelled';
SELECT outbox.portal_cancel_replay('acme', '$name{acme}', :replay) -> 'cancelled';
COMMIT;
SQL
$replay = decode_json((split /\n/, portal("SELECT outbox.portal_replays('acme', '$name{acme}')"))[0]);
ok(wait_sql($node, 'SELECT cancelled AND finished_at IS NOT NULL FROM outbox.replay_progress ORDER BY replay_id DESC LIMIT 1'), 'and stays so');
my @replays = map { decode_json($_)->{replay_id} } split /\n/, portal("SELECT outbox.portal_replays('acme', '$name{acme}')");
is(scalar(grep { my $id = $_; $id < 10000 || $id >= 2**52 || grep { $id != $_ && abs($id - $_) < 10000 } @replays } @replays), 0,
	'their numbers are such as JavaScript can hold, and do not count the replays of all tenants');
unlike(says("SELECT outbox.portal_cancel_replay('acme', '$name{acme}', $_)"), qr/replay.*\d/, "nor does the error for $_") foreach 1, -1, 9223372036854775807, $replays[0] + 1;
like(says("SELECT outbox.portal_cancel_replay('globex', '$name{globex}', $replay->{replay_id})"), qr/42704: endpoint "\Q$name{globex}\E" has no replay/, 'by its tenant alone');
portal("SELECT outbox.portal_resume_endpoint('acme', '$name{acme}')");
ok(wait_settled($node), 'settled');

# --- What it may subscribe to

is(portal("SELECT count(*) FROM outbox.portal_event_types('acme')"), '0', 'an empty catalogue');
ask(q{SELECT outbox.set_event_type('order.b', 'It was paid.', '{"type": "object"}', '{"n": 4711}', version => '2'), outbox.set_event_type('order.a')});
is_deeply([ map { decode_json($_) } split /\n/, portal("SELECT outbox.portal_event_types('$_')") ],
	[ { topic => 'order.a', description => undef, schema => undef, example => undef, version => undef, deprecated => undef }, { topic => 'order.b', description => 'It was paid.', schema => { type => 'object' }, example => { n => 4711 }, version => '2', deprecated => undef } ],
	"$_ sees the catalogue, in order")
  foreach qw(acme globex);
my $example = json("outbox.portal_send_test('acme', '$name{acme}', 'order.b')")->{event_id};
my ($got) = $receiver->wait_delivered(1, path => '/ok/acme', id => $example);
is_deeply(decode_json($got->{body})->{data}, { n => 4711 }, 'a test event is the example of its topic');
ok(wait_settled($node), 'settled');

# --- Its secret

my $former = json("outbox.portal_secret('acme', '$name{acme}')")->{secret};
my $new = json("outbox.portal_rotate_secret('acme', '$name{acme}', '0')")->{secret};
isnt($new, $former, 'another secret');
is($new, json("outbox.portal_secret('acme', '$name{acme}')")->{secret}, 'which can be read');

# --- One form of an endpoint, which every call returns

my $shape = join ' ', sort keys %{ json("outbox.portal_endpoints('acme')") };
is(join(' ', grep { $_ ne 'secret' } sort keys %{ $made{acme} }), $shape, 'what creates an endpoint returns what lists it');
is($made{acme}->{secret}, $former, 'and its secret');
is(join('|', map { ref $_ ? encode_json($_) : $_ } @{ $made{acme} }{qw(label metadata timeout backoff_max disable_after batch_wait version)}),
	'Orders|{"account":4711}|15|3600|432000|0|1', 'intervals are seconds');
ok((grep { /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00$/ } @{ $made{acme} }{qw(created_at updated_at state_since)}) == 3, 'and times are in UTC');
ask("SELECT outbox.set_portal_limits('never', settings => '{timeout,disable_after}')");
like(says(qq(SELECT outbox.portal_create_endpoint('never', '$url{acme}', '{"disable_after": 0, "timeout": 3}') ->> 'disable_after')), qr/^ok: 0$/, 'one is created that is never disabled');
my $again = json(qq(outbox.portal_create_endpoint('acme', '$url{acme}', idempotency_key => 'first')));
is("$again->{name} $again->{secret}", "$name{acme} $new", 'the same idempotency_key is the same endpoint');
is(portal("SELECT count(*) FROM outbox.portal_endpoints('acme')"), '1', 'and no other');
my $put = portal("SELECT jsonb_object_agg(key, value) FROM outbox.portal_endpoints('acme') e, jsonb_each(e) WHERE key IN ('url', 'topics', 'filter', 'format', 'headers', 'rate_limit', 'label', 'metadata')");
my $same = json("outbox.portal_alter_endpoint('acme', '$name{acme}', \$x\$$put\$x\$, version => $again->{version})");
is($same->{version}, $again->{version}, 'what it shows can be given back, and is no change');
my $altered = json(qq(outbox.portal_alter_endpoint('acme', '$name{acme}', '{"label": "Paid", "rate_limit": 2.5}', version => $same->{version})));
is("$altered->{label} $altered->{rate_limit} $altered->{version}", 'Paid 2.5 ' . ($same->{version} + 1), 'altering returns the new state');
cmp_ok($altered->{updated_at}, 'gt', $same->{updated_at}, 'and when that was');
like(says(qq(SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', '{"label": "Lost"}', version => $same->{version}))),
	qr/^ERROR:  OX412: endpoint "\Q$name{acme}\E" has version $altered->{version}, and not $same->{version} HINT/, 'a change of what was changed meanwhile is refused');
my $rotate = "outbox.portal_rotate_secret('acme', '$name{acme}', '1 hour', version => " . json("outbox.portal_endpoints('acme')")->{version} . ')';
is(json($rotate)->{former_secret_until} ne '', 1, 'until when a former secret signs');
like(says("SELECT $rotate"), qr/^ERROR:  OX412: endpoint "\Q$name{acme}\E" has version \d+, and not \d+ HINT/, 'the same call again is refused');
is(ask("SELECT previous FROM outbox.endpoint_secrets JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = '$name{acme}' AND part = 0"),
	$new, 'so that the secret that the receiver has goes on signing');
$new = json("outbox.portal_rotate_secret('acme', '$name{acme}', '0')")->{secret};
is(json("outbox.portal_endpoints('acme')")->{former_secret_until}, undef, 'or that none does');
like(says(qq(SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', jsonb_build_object('metadata', jsonb_build_object('x', repeat('y', 4096)))))),
	qr/22023: metadata has 41\d\d bytes HINT/, 'metadata is small');

# --- What was changed is noted

ask(qq~BEGIN; SET LOCAL outbox.actor = 'jane\@acme.example'; SET LOCAL ROLE portal;
	SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', '{"label": "Audited", "headers": {"authorization": "Bearer token-1"}}'); COMMIT~);
is(ask("SELECT endpoint, actor, role, action, before, after FROM outbox.endpoint_audit WHERE tenant = 'acme' ORDER BY change_id DESC LIMIT 1"),
	qq($name{acme}|jane\@acme.example|portal|alter|{"label": "Paid", "headers": "set"}|{"label": "Audited", "headers": "changed"}), 'by whom, and from what to what');
is(ask("SELECT action, after ->> 'label', after ->> 'rate_limit', after ->> 'url' FROM outbox.endpoint_audit WHERE tenant = 'acme' ORDER BY change_id LIMIT 1"),
	"create|Orders|1000|" . $url{acme} =~ s{(//[^/]*).*}{$1}r, 'what creates an endpoint is one change, and of a URL it has no path');
is(ask("SELECT count(*) FROM outbox.endpoint_audit WHERE before::text || after::text ~ 'token-1|whsec_|/ok/'"), '0', 'no secret is noted');
is(ask("SELECT string_agg(DISTINCT action, ' ') FROM outbox.endpoint_audit WHERE tenant = 'globex'"), 'create', 'of each tenant its own');
ask(qq~BEGIN; SELECT outbox.create_endpoint('gone' || n, '$url{acme}', tenant => 'gone', rate_limit => 7) FROM generate_series(1, 2) n;
	SELECT outbox.alter_endpoint('gone1', label => 'Changed', reset => '{rate_limit}'); COMMIT~);
is(ask("SELECT string_agg(concat_ws(' ', endpoint, action, after ->> 'label', after ->> 'rate_limit'), ', ' ORDER BY change_id) FROM outbox.endpoint_audit WHERE tenant = 'gone'"),
	'gone1 create Changed, gone2 create 7', 'so is what creates two');
ask("SELECT outbox.forget('gone')");
is(ask("SELECT count(*) FROM outbox.endpoint_audit WHERE tenant = 'gone'"), '0', 'and none of a tenant that is forgotten');

# --- And its tenant sees it, without what is not for it

ask(qq~BEGIN; SET LOCAL outbox.actor = 'boss'; SELECT outbox.alter_endpoint('$name{acme}', config => '{"user_agent": "Hidden"}');
	SELECT outbox.set_portal_limits('acme', max_calls => 1000); COMMIT~);
portal("SELECT outbox.portal_replay('acme', '$name{acme}', now() - interval '1 hour')");
my $changes = json("outbox.portal_changes('acme')")->{changes};
my @seen = map { join '|', $_->{action}, $_->{actor} // '-', JSON::PP->new->canonical->encode([ @{$_}{qw(before after)} ]) } @{$changes}[1, 2];
is($seen[0], 'alter|-|[{},{}]', 'that an operator changed something, not which one, and not what the tenant may not choose');
is($seen[1], 'alter|jane@acme.example|[{"headers":"set","label":"Paid"},{"headers":"changed","label":"Audited"}]', 'what its own people changed');
is(join(' ', sort keys %{ $changes->[0]{after} }), 'deliveries from_time to_time', 'no number that counts the replays of others');
is(join(' ', sort keys %{ $changes->[0] }), 'action actor after at before endpoint', 'and no role');
is(ask("SELECT after ->> 'max_calls' FROM outbox.endpoint_audit WHERE tenant = 'acme' AND action = 'limits'"), '1000', 'limits are noted, too');
is(scalar(grep { $_->{action} eq 'limits' } @$changes), 0, 'for operators');
is(join(' ', map { $_->{action} } @{ json("outbox.portal_changes('globex')")->{changes} }), 'create', 'of each tenant its own');
like(says("SELECT outbox.portal_changes('acme', before => '$_')"), qr/22023: invalid cursor HINT/, "no cursor: $_") foreach '', 'x', '1:2:0', '9' x 17;
ask(q~INSERT INTO outbox.endpoint_audit (tenant, endpoint, role, action, before, after) SELECT 'many', CASE WHEN n = 1 THEN 'rare' ELSE 'x' END, 'portal', 'alter', '{}', '{}' FROM generate_series(1, 1002) n;
	SELECT outbox.create_endpoint('rare', 'https://a.example/', tenant => 'many')~);
my $rare = json("outbox.portal_changes('many', 'rare')");
is(join(' ', map { $_->{action} } @{ $rare->{changes} }), 'create', 'a page reads a bounded number of changes');
$rare = json("outbox.portal_changes('many', 'rare', before => '$rare->{cursor}')");
is(join(' ', map { $_->{action} } @{ $rare->{changes} }) . ($rare->{cursor} // ''), 'alter', 'and the next one goes on');
ask("SELECT outbox.set_portal_limits('acme', reset => true); SELECT outbox.alter_endpoint('$name{acme}', reset => '{config}'); SELECT outbox.drop_endpoint('rare', true)");
ok(wait_settled($node), 'settled');

# --- Paused by its tenant, or by the operator

portal("SELECT outbox.portal_pause_endpoint('acme', '$name{acme}')");
is(portal("SELECT e ->> 'state', e ->> 'reason' FROM outbox.portal_endpoints('acme') e"), 'paused|paused by its tenant', 'paused');
ok(wait_sql($node, "SELECT t.state = 'paused' FROM outbox.endpoint_settings s, outbox.endpoint_stats(s.endpoint_id) t WHERE s.name = '$name{acme}'"), 'and its worker says so');
is(portal("SELECT e ->> 'state', e ->> 'reason' FROM outbox.portal_resume_endpoint('acme', '$name{acme}') e"), 'active|', 'resumed, before its worker has heard of it');
ask("SELECT outbox.pause_endpoint('$name{acme}')");
portal("SELECT outbox.portal_pause_endpoint('acme', '$name{acme}')");
like(says("SELECT outbox.portal_resume_endpoint('acme', '$name{acme}')"), qr/55000: endpoint "\Q$name{acme}\E" was paused by the operator/,
	'what the operator paused, no tenant resumes');
like(says("SELECT outbox.portal_drop_endpoint('acme', '$name{acme}', true)"), qr/55000: endpoint "\Q$name{acme}\E" was paused by the operator HINT/,
	'nor drops, to make it anew');
ask("SELECT outbox.resume_endpoint('$name{acme}')");
portal("SELECT outbox.portal_pause_endpoint('acme', '$name{acme}')");
my $since = "SELECT state_since FROM outbox.endpoints WHERE name = '$name{acme}'";
my $paused_at = ask($since);
ask("SELECT outbox.pause_endpoint('$name{acme}')");
is(ask("SELECT reason FROM outbox.endpoints WHERE name = '$name{acme}'"), 'paused by postgres', 'an operator pauses what its tenant has paused');
is(ask($since), $paused_at, 'since then');
like(says("SELECT outbox.portal_resume_endpoint('acme', '$name{acme}')"), qr/55000: endpoint "\Q$name{acme}\E" was paused by the operator/,
	'and the tenant does not resume it');
is(portal("SELECT e ->> 'reason' FROM outbox.portal_endpoints('acme') e"), 'paused by the operator', 'who sees no role of the operator');
is(json("outbox.portal_delivery('acme', '$name{acme}', '$event{acme}')")->{endpoint_reason}, 'paused by the operator', 'nor of a delivery');
ask("SELECT outbox.resume_endpoint('$name{acme}')");
is(join('|', map { $_->{before}{reason} // '-', $_->{after}{reason} // '-' } @{ json("outbox.portal_changes('acme', page_size => 3)")->{changes} }),
	'paused by the operator|-|paused by its tenant|paused by the operator|-|paused by its tenant', 'nor among the changes');

foreach my $call ("portal_create_endpoint('acme', 'kafka://broker/topic')", qq(portal_alter_endpoint('acme', '$name{acme}', '{"url": "kafka://broker/topic"}')))
{
	like(says("SELECT outbox.$call"), qr/22023: the endpoint of a tenant must be a webhook HINT/, "$call: refused");
}

# --- What is refused in its own words

foreach my $case (
	[ qq(portal_alter_endpoint('acme', '$name{acme}', '{"url": null}')), '22023: setting "url" has no default HINT:  Pass a URL' ],
	[ qq(portal_create_endpoint('acme', '$url{acme}', '{"url": "$url{globex}"}')), '22023: the URL is in settings, too HINT:  Pass it once.' ],
	(map { [ qq(portal_alter_endpoint('acme', '$name{acme}', '{"topics": $_}')), '22023: invalid topics HINT:  Write it like {"topics": ["order.*"]}.' ] }
		  '[1]', '["a", true]', '[null]', '[["a"]]'))
{
	like(says("SELECT outbox.$case->[0]"), qr/\Q$case->[1]\E/, $case->[0] =~ s/http[^'"]*//gr);
}
like(says("SET quote_all_identifiers = on; SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', '{\"topics\": [1]}')"),
	qr/HINT:  Write it like \{"topics": \["order\.\*"\]\}\./, 'a hint is right however identifiers are quoted');
ask("SELECT outbox.set_portal_limits('acme', settings => '{}')");
like(says(qq(SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', '{"url": "$url{acme}"}'))),
	qr/HINT:  Ask the operator\.$/, 'a hint where it may choose nothing');
ask("SELECT outbox.set_portal_limits('acme', reset => true)");

# --- Errors: each row of the table in doc/tenants.md, with its field and a hint

ask("SELECT outbox.set_portal_limits('errors', max_endpoints => 2); SELECT outbox.create_endpoint('taken', '$url{acme}')");
my $errors = json("outbox.portal_create_endpoint('errors', '$url{acme}', '{\"topics\": [\"error.*\"]}', 'errors')")->{name};
portal("SELECT outbox.portal_pause_endpoint('errors', 'errors')");
ask("SELECT outbox.emit('error.a', '{}', tenant => 'errors')");
ok(wait_sql($node, "SELECT pending = 1 FROM outbox.stats WHERE endpoint = 'errors'"), 'something is undelivered');
my %provoked = (
	'22023' => [ 'timeout', q(SELECT outbox.portal_alter_endpoint('errors', 'errors', '{"timeout": 1}')) ],
	'22004' => [ 'url', "SELECT outbox.portal_create_endpoint('errors', NULL)" ],
	'42704' => [ 'event', "SELECT outbox.portal_delivery('errors', 'errors', '01a1f78f-2ee2-708b-8eef-2a7db13f4e83')" ],
	'42710' => [ 'name', "SELECT outbox.portal_create_endpoint('errors', '$url{acme}', name => 'taken')" ],
	'42939' => [ 'topic', "SELECT outbox.portal_send_test('errors', 'errors', 'outbox.mine')" ],
	'54000' => [ 'topics', "SELECT outbox.portal_retry('errors', 'errors', topics => ARRAY[repeat('a', 9000)])" ],
	'53400' => [ '', "SELECT outbox.portal_pause_endpoint('busy', 'none')" ],
	'55000' => [ '', "SELECT outbox.portal_resume_endpoint('acme', '$name{acme}')" ],
	'55006' => [ '', "SELECT outbox.portal_drop_endpoint('errors', 'errors')" ],
	'OX412' => [ 'version', "SELECT outbox.portal_alter_endpoint('errors', 'errors', '{\"label\": \"x\"}', 1)" ],
	'25006' => [ undef, "BEGIN READ ONLY; SELECT outbox.portal_pause_endpoint('errors', 'errors')" ],
	'25001' => [ '', "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT outbox.portal_create_endpoint('errors', '$url{acme}')" ],
	'42501' => [ undef, 'SELECT * FROM outbox.endpoints' ]);
ask("SELECT outbox.set_portal_limits('busy', max_calls => 0); SELECT outbox.pause_endpoint('$name{acme}')");
my $numbers = 'SELECT last_value FROM outbox.endpoint_settings_endpoint_id_seq';
my $number = ask($numbers);
my @rows = PostgreSQL::Test::Utils::slurp_file("$top/doc/tenants.md") =~ /^\| `(\w{5})` \| \d{3} \|/mg;
is(join(' ', sort @rows), join(' ', sort keys %provoked), 'each row of the table is provoked');
foreach my $state (sort keys %provoked)
{
	my ($field, $statement) = @{ $provoked{$state} };
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$statement", extra_params => [ '-U', 'portal' ]);
	like($err, qr/ERROR:  $state: /, $statement);
	is($err =~ /^COLUMN NAME:  (\w+)$/m ? $1 : '', $field // '', "$state: the field");
	like($err, qr/^HINT:  (?!.*(?:outbox\.|superuser|=>))\w/m, "$state: a hint for the customer") if defined $field && $state ne '25001';
}

# What was spent while more was allowed does not count for longer than an hour.
ask("SELECT outbox.set_portal_limits('lowered', max_calls => 60); INSERT INTO outbox.portal_limits_here AS h (tenant, spent, counted_at) VALUES ('lowered', 90000, now())"
	  . ' ON CONFLICT ON CONSTRAINT portal_limits_here_pkey DO UPDATE SET spent = 90000, counted_at = now()');
like(says("SELECT outbox.portal_create_endpoint('lowered', '$url{acme}')"), qr/53400.* HINT:  Try again in \d{1,2} s\.$/, 'a lowered limit is over in an hour');

# A number of an endpoint is used up for ever, so a call that fails takes none.
ask("SELECT outbox.set_portal_limits('asked', challenge => 'echo', max_calls => 5, settings => '{max_in_flight}'); UPDATE outbox.portal_limits_here SET spent = 2 WHERE tenant = 'asked'");
like(says("SELECT outbox.portal_create_endpoint('asked', '$url{acme}')"), qr/53400/, 'too many challenges');
ask("SELECT outbox.set_portal_limits('asked', max_calls => 500)");
like(says("SELECT outbox.portal_create_endpoint('asked', '$url{acme}', '{\"max_in_flight\": 0}')"), qr/22023: invalid max_in_flight 0/, 'a setting');
is(ask($numbers), $number, 'no number of an endpoint is used by a call that fails');

# No other error has the hint of an operator's function either.
like(says("BEGIN; UPDATE outbox.origins SET system_identifier = 1; SET LOCAL ROLE portal; SELECT outbox.portal_replay('acme', '$name{acme}', now() - interval '1 h')", 'postgres'),
	qr/55000: this log is a copy that was not adopted.* HINT:  Ask the operator\.$/, 'in a copy');
ask("ALTER ROLE portal SET outbox.require_event_types = on; SELECT outbox.set_event_type('listed')");
my $opened = ask("SELECT secret FROM outbox.endpoint_secrets JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'errors'");
ask("UPDATE outbox.endpoint_secrets SET secret = 'sealed:1:AAAA' WHERE endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'errors')");
foreach my $case (
	[ '54000', 'payload', "portal_send_test('errors', 'errors', 'listed', jsonb_build_object('a', repeat('a', 1100000)))" ],
	[ '54000', 'payload', "portal_send_test('errors', 'errors', 'listed', (repeat('[', 600) || repeat(']', 600))::jsonb)" ],
	[ '22023', 'topic', "portal_send_test('errors', 'errors', 'not.listed')" ],
	[ '22023', 'topics', "portal_alter_endpoint('errors', 'errors', '{\"topics\": [\"not.listed\"]}')" ],
	[ '42704', 'event', "portal_retry('errors', 'errors', '01a1f78f-2ee2-708b-8eef-2a7db13f4e83')" ],
	[ '22023', 'to_time', "portal_replay('errors', 'errors', now(), 'infinity')" ],
	[ '22023', 'from_time', "portal_replay('errors', 'errors', '-infinity', now())" ],
	[ '22023', 'to_time', "portal_figures('errors', to_time => 'infinity')" ],
	[ '42704', 'replay', "portal_cancel_replay('errors', 'errors', 1)" ],
	[ '22004', 'replay', "portal_cancel_replay('errors', 'errors', NULL)" ],
	[ '22004', 'event', "portal_delivery('errors', 'errors', NULL)" ],
	[ '22023', 'headers', "portal_alter_endpoint('errors', 'errors', jsonb_build_object('headers', jsonb_build_object('x', repeat('x', 9000))))" ],
	[ '55000', '', "portal_secret('errors', 'errors')" ],
	[ '55000', '', "portal_rotate_secret('errors', 'errors')" ])
{
	my ($state, $field, $call) = @$case;
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.$call", extra_params => [ '-U', 'portal' ]);
	like($err, qr/ERROR:  $state: /, substr($call, 0, 100));
	is($err =~ /^COLUMN NAME:  (\w+)$/m ? $1 : '', $field, "$state: the field");
	like($err, qr/^HINT:  (?!.*(?:outbox\.|superuser|=>))\w/m, "$state: a hint for the customer");
}
is(json("outbox.portal_asyncapi('errors')")->{info}{title}, 'Events', 'a document without a title does not name the database');
is(ask("SELECT outbox.portal_reason('sealed, and outbox.secret_key_file is not set')"), 'held by the operator', 'why the operator holds an endpoint is its own affair');
is(ask("SELECT string_agg(outbox.portal_reason(r), '|' ORDER BY n) FROM unnest(ARRAY['plain http goes to addresses in outbox.allowed_networks only', 'outbox.worker_memory is used up']) WITH ORDINALITY u (r, n)"),
	'plain http is not allowed|held by the operator', 'and so are the names of its settings');

# What is shown can be given back: years have other lengths in numbers.
ask("SELECT outbox.alter_endpoint('errors', max_age => '10 years')");
ask("SELECT outbox.alter_endpoint(name, max_age => make_interval(secs => date_part('epoch', max_age))) FROM outbox.endpoints WHERE name = 'errors'");
is(ask("SELECT date_part('epoch', max_age) FROM outbox.endpoints WHERE name = 'errors'"), 315576000, 'ten years in seconds');
ask("UPDATE outbox.endpoint_secrets SET secret = '$opened' WHERE endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'errors')");
ask("ALTER ROLE portal RESET ALL; SELECT outbox.drop_event_type('listed')");
ask("SELECT outbox.resume_endpoint('$name{acme}'); SELECT outbox.drop_endpoint('taken')");
portal("SELECT outbox.portal_drop_endpoint('errors', 'errors', discard => true)");

# --- Limits

is(limits('acme'), '10|url,topics,filter,format,headers,rate_limit,label,metadata|600', 'the limits that nothing has changed');
my $create = "SELECT outbox.portal_create_endpoint('acme', '$url{acme}')";
ask('SELECT outbox.set_portal_limits(max_endpoints => 1)');
like(says($create), qr/54000: tenant "acme" may have 1 endpoints at most HINT/, 'as many as it may have');
ask("SELECT outbox.set_portal_limits('acme', max_endpoints => 2, settings => '{max_in_flight,topics}')");
is(limits('acme') . ' ' . limits('globex'), '2|max_in_flight,topics|600 1|url,topics,filter,format,headers,rate_limit,label,metadata|600', 'limits of its own');
like(says("BEGIN; $create; COMMIT; $create"), qr/54000/, 'one more, and not two');
foreach my $case (
	[ '{"url": "https://a.example/"}', '22023: setting "url" is not for tenants to choose HINT' ],
	[ '{"tenant": "globex"}', '22023: unknown setting "tenant" HINT:  Use some of: max_in_flight, topics.' ],
	[ '{"name": "x"}', '22023: unknown setting "name" HINT' ],
	[ '{"secret": "whsec_"}', '22023: unknown setting "secret" HINT' ],
	[ '[1]', '22023: settings must be a JSON object HINT' ],
	[ '{"max_in_flight": 0}', '22023: invalid max_in_flight 0 HINT' ],
	[ '{"max_in_flight": 2}', 'ok: {' ])
{
	my ($settings, $words) = @$case;
	like(says("SELECT outbox.portal_alter_endpoint('acme', '$name{acme}', '$settings')"), qr/\Q$words\E/, "$settings: $words");
}
like(says("SELECT outbox.set_portal_limits('acme', settings => '{secret}')", 'postgres'), qr/22023: unknown setting "secret" HINT/, 'no such setting');

# --- Authentication of their endpoints, where the operator allows it

my $bearer = '{"credentials": {"token": "t0p.s3cret"}, "config": {"method": "PUT"}}';
like(says("SELECT outbox.portal_create_endpoint('auth', '$url{acme}', '$bearer')"),
	qr/22023: setting "\w+" is not for tenants to choose HINT/, 'not unless the operator says so');
ask("SELECT outbox.set_portal_limits(tenant, max_endpoints => 9, settings => '{url,config,credentials}') FROM unnest('{auth,other}'::text[]) tenant");
my $auth_url = $receiver->url('/ok/auth');
my $auth = json("outbox.portal_create_endpoint('auth', '$auth_url', '$bearer')");
is(join('|', @{ $auth->{credential_names} }, $auth->{config}{method}), 'token|PUT', 'config, and the names of credentials');
ask("SELECT outbox.emit('auth.a', '{}', tenant => 'auth')");
$receiver->wait_delivered(1, path => '/ok/auth');
my ($with) = grep { $_->{path} eq '/ok/auth' } $receiver->requests;
is("$with->{method} $with->{headers}{authorization}", 'PUT Bearer t0p.s3cret', 'which requests have');
sub alters { return says("SELECT outbox.portal_alter_endpoint('$_[0]', '$auth->{name}', '$_[1]')") }
like(alters('auth', '{"config": {"method": "PATCH"}}'), qr/^ok: (?!.*s3cret)/, 'the config changes, and they stay');
like(alters('auth', '{"credentials": {"token": "t0p.s3cret-2"}}'), qr/^ok: (?!.*s3cret)/, 'they change');
like(alters('other', '{"credentials": {"token": "x"}}'), qr/42704/, 'not those of another tenant');
foreach my $case (
	[ '{"credentials": {"token": {"file": "bearer"}}}', 'credentials must be a JSON object of strings' ],
	[ '{"credentials": {"client_certificate": {"file": "../x"}, "client_key": "x"}}', 'credentials must be a JSON object of strings' ],
	[ '{"credentials": [{"file": "bearer"}]}', 'credentials must be a JSON object of strings' ],
	[ '{"credentials": "bearer"}', 'credentials must be a JSON object of strings' ],
	[ '{"credentials": {"password_file": "/etc/passwd"}}', '' ],
	[ '{"config": {"ssl_ca_file": "/etc/passwd"}}', '' ],
	[ '{"config": {"signature": "nobody"}}', '' ],
	[ '{"config": [1]}', '' ],
	[ '{"config": {"signature": "ed25519"}}', 'invalid secret HINT:  Create another endpoint with this signature' ],
	[ '{"credentials": {"client_secret": "x"}, "config": {"client_id": "x", "token_url": "https://169.254.169.254/x"}}', '' ],
	[ '{"credentials": {"client_secret": "x"}, "config": {"client_id": "x", "token_url": "file:///etc/passwd"}}', '' ],
	[ '{"credentials": {"client_secret": "x"}, "config": {"client_id": "x", "token_url": "http://8.8.8.8/"}}', '' ],
	[ '{"url": "https://thief.example/"}', 'are not for this URL and config HINT:  Pass "credentials" with it, the same or others, or null.' ])
{
	my ($settings, $words) = @$case;
	my $answer = alters('auth', $settings);
	like($answer, qr/^ERROR:  22023: .*\Q$words\E/, "$settings: refused");
	like($answer, qr/HINT:  (?!.*(?:outbox\.|superuser|=>))\w/, 'with a hint for the customer');
}
my (undef, undef, $misfit) = $node->psql('postgres', qq~\\set VERBOSITY verbose\nSELECT outbox.portal_alter_endpoint('auth', '$auth->{name}', '{"config": {"signature": "ed25519"}}')~, extra_params => [ '-U', 'portal' ]);
like($misfit, qr/^COLUMN NAME:  config$/m, 'a secret that does not fit is a fault of the config');
is(ask("SELECT count(*) FILTER (WHERE c::text LIKE '%s3cret%'), count(*) > 2 FROM outbox.endpoint_audit c WHERE c.tenant = 'auth'"), '0|t', 'none is in the audit');
is(portal("SELECT count(*) FROM (SELECT outbox.portal_endpoints('auth')::text UNION ALL SELECT outbox.portal_deliveries('auth')::text
	UNION ALL SELECT outbox.portal_attempts('auth')::text) t(shown) WHERE shown LIKE '%s3cret%'"), 0, 'nor shown again');

# What the operator gave goes nowhere else, whatever the tenant chooses.
ask(qq~SELECT outbox.alter_endpoint('$auth->{name}', config => '{"client_id": "x", "token_url": "https://login.example/"}', credentials => '{"client_secret": "operators"}')~);
like(alters('auth', '{"config": {"client_id": "x", "token_url": "https://thief.example/"}}'), qr/22023: .* are not for this URL and config/, 'not to another token server');
like(alters('auth', '{"credentials": null, "config": null}'), qr/^ok: /, 'null takes them away');
is(ask("SELECT credentials IS NULL AND config IS NULL FROM outbox.endpoints WHERE name = '$auth->{name}'"), 't', 'both');
portal("SELECT outbox.portal_drop_endpoint('auth', '$auth->{name}', discard => true)");
like(says("SELECT outbox.set_portal_limits('acme', max_endpoints => -1)", 'postgres'), qr/22023: invalid max_endpoints -1 HINT/, 'no such number');
ask("SELECT outbox.set_portal_limits('acme', reset => true); SELECT outbox.set_portal_limits(reset => true)");
is(limits('acme'), '10|url,topics,filter,format,headers,rate_limit,label,metadata|600', 'and back');

# --- Two sessions that create the last one at the same time

ask("SELECT outbox.set_portal_limits('race', max_endpoints => 1)");
my $first = $node->background_psql('postgres');
$first->query_safe("BEGIN; SELECT outbox.portal_create_endpoint('race', '$url{acme}')");
my $second = $node->background_psql('postgres', on_error_stop => 0);
$second->query_until(qr/begun/, "\\echo begun\nSELECT outbox.portal_create_endpoint('race', '$url{acme}');\n\\echo ended\n");
ok(wait_sql($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%portal_create%'"), 'the second waits');
$first->query_safe('COMMIT');
$first->quit;
$second->quit;
is(ask("SELECT count(*) FROM outbox.endpoints WHERE tenant = 'race'"), '1', 'and is refused');

# A transaction that sees only what was committed before it began would count too few.
foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	like(says("BEGIN ISOLATION LEVEL $level; SELECT outbox.portal_create_endpoint('early', '$url{acme}')"),
		qr/25001: outbox.portal_create_endpoint\(\) cannot be called at isolation level $level HINT/, "refused at $level");
}

# --- Every function, with endpoints of its own, of another tenant, of none, and with none

my $granted = ask("SELECT string_agg(DISTINCT split_part(object, '(', 1), ' ' ORDER BY split_part(object, '(', 1))"
	  . " FROM outbox.privileges_of('portal') WHERE kind = 'FUNCTION'");
my %call = (
	portal_endpoints => '%t, %e', portal_alter_endpoint => q(%t, %e, '{}'), portal_pause_endpoint => '%t, %e',
	portal_resume_endpoint => '%t, %e', portal_secret => '%t, %e', portal_rotate_secret => '%t, %e',
	portal_deliveries => '%t, %e', portal_attempts => '%t, %e', portal_retry => "%t, %e, %v", portal_delivery => "%t, %e, %v",
	portal_replays => '%t, %e', portal_cancel_replay => "%t, %e, $replay->{replay_id}",
	portal_replay => q(%t, %e, '2026-01-01'), portal_send_test => '%t, %e', portal_drop_endpoint => '%t, %e, true',
	portal_create_endpoint => '%t, %u', portal_event_types => '%t', portal_limits => '%t', portal_figures => '%t, %e', portal_asyncapi => '%t', portal_changes => '%t, %e');
is(join(' ', map { "outbox.$_" } sort keys %call), $granted, 'every function of the portal is tried');
is(ask("SELECT string_agg(DISTINCT kind, ' ') FROM outbox.privileges_of('portal')"), 'FUNCTION SCHEMA', 'no table and no view is granted');

sub try_as
{
	my ($function, $tenant, $endpoint, $event) = @_;
	my %value = ('%t' => $tenant, '%e' => "'$endpoint'", '%v' => "'$event'", '%u' => "'$url{acme}'");
	my $arguments = $call{$function} =~ s/(%[tevu])/$value{$1}/gr;
	return says("BEGIN; SELECT * FROM outbox.$function($arguments); ROLLBACK") =~ s/\Q$endpoint\E/NAME/gr =~ s/\Q$event\E/EVENT/gr;
}
my $state = "SELECT string_agg(x::text, ' ') FROM (SELECT * FROM outbox.endpoints ORDER BY name) x";
my $before = ask($state);
my $missing = '01a1f78f-2ee2-708b-8eef-2a7db13f4e83';
foreach my $function (sort keys %call)
{
	like(try_as($function, 'NULL', $name{acme}, $event{acme}), qr/^ERROR: +22004: tenant must not be null HINT/, "$function: no tenant")
	  unless $function eq 'portal_limits';
	like(try_as($function, "'acme'", $name{acme}, $event{acme}), qr/^ok: /, "$function: its own");
	next unless $call{$function} =~ /%e/;
	my $none = try_as($function, "'acme'", 'none', $missing);
	like($none, qr/^ERROR: +42704: endpoint "NAME" does not exist HINT/, "$function: none of this name");
	foreach my $other ($name{globex}, 'operator')
	{
		is(try_as($function, "'acme'", $other, $event{$_}), $none, "$function: the same words for $other, whatever the event")
		  foreach qw(acme globex);
	}
}
is(try_as('portal_retry', "'acme'", $name{acme}, $event{globex}), try_as('portal_retry', "'acme'", $name{acme}, $missing),
	'an event of another tenant does not exist');
is_deeply(json("outbox.portal_attempts('acme', event => '$event{globex}')")->{attempts}, [], 'nor its requests');
is_deeply(json("outbox.portal_deliveries('acme', event => '$event{globex}')")->{deliveries}, [], 'nor its deliveries');
is(ask($state), $before, 'nothing of this changed anything');
foreach my $relation (split /\n/, ask("SELECT oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p', 'v')"))
{
	like(says("SELECT * FROM $relation"), qr/42501/, "$relation: not for the portal");
}

# --- No tenant, whether there is such a name or not, however often the statement has run

foreach my $function (grep { $call{$_} =~ /%e/ } sort keys %call)
{
	foreach my $tenant ('NULL', "''")
	{
		my %said;
		foreach my $endpoint ($name{globex}, 'operator', 'none')
		{
			my %value = ('%t' => $tenant, '%e' => "'$endpoint'", '%v' => "'$missing'");
			my $arguments = $call{$function} =~ s/(%[tev])/$value{$1}/gr;
			my $words = says("DO \$do\$ BEGIN FOR i IN 1 .. 10 LOOP BEGIN PERFORM outbox.portal_pause_endpoint('acme', 'none');"
				  . " EXCEPTION WHEN undefined_object THEN END; END LOOP;"
				  . " PERFORM * FROM outbox.$function($arguments); END \$do\$");
			$said{ $words =~ s/ HINT.*//r =~ s/\Q$endpoint\E/NAME/gr }++;
		}
		is(join(' / ', sort keys %said),
			$tenant eq 'NULL' ? 'ERROR:  22004: tenant must not be null' : 'ERROR:  22023: invalid tenant: it is empty',
			"$function: $tenant, the same words for any name");
	}
}

# --- A read-only transaction reads the secret, as of a standby

is(portal("BEGIN READ ONLY; SELECT outbox.portal_secret('acme', '$name{acme}') ->> 'secret'"), $new, 'a secret is read in a read-only transaction');

# --- No other role can hold up the creation of endpoints

ask('CREATE ROLE stranger LOGIN');
my $stranger = $node->background_psql('postgres', extra_params => [ '-U', 'stranger' ]);
$stranger->query_safe("SELECT pg_advisory_lock(hashtextextended('outbox.portal_create_endpoint acme', 0))");
like(says("SET lock_timeout = '2 s'; BEGIN; SELECT outbox.portal_create_endpoint('acme', '$url{acme}'); ROLLBACK"), qr/ok: \{/,
	'a lock that any role can take holds up no tenant');
$stranger->quit;

# --- A filter that would slow down the other tenants

my $filter = '{"filter": "$.a like_regex \"x\""}';
foreach my $call (qq(portal_create_endpoint('acme', '$url{acme}', '$filter')), qq(portal_alter_endpoint('acme', '$name{acme}', '$filter')))
{
	like(says("BEGIN; SELECT outbox.$call; ROLLBACK"), qr/22023: invalid filter .*regular expression.* HINT/, "$call: refused");
}

# --- What a call reads does not grow with the endpoints of others

sub work_of
{
	my ($call) = @_;
	my ($rows, $functions) = split /\|/, (split /\n/, $node->safe_psql('postgres', <<SQL))[-1];
SET track_functions = 'all';
SET ROLE portal;
BEGIN;
SELECT count(*) FROM (SELECT * FROM outbox.$call) called \\g /dev/null
SELECT (SELECT sum(COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_xact_all_tables WHERE schemaname = 'outbox'),
	(SELECT COALESCE(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE schemaname = 'outbox');
ROLLBACK;
SQL
	return { rows => $rows, functions => $functions };
}
my @calls = ("portal_endpoints('globex')", "portal_endpoints('globex', '$name{globex}')", "portal_deliveries('globex')",
	"portal_deliveries('globex', topics => '{order.*}', from_time => now() - interval '1 day', to_time => now())",
	"portal_delivery('globex', '$name{globex}', '$event{globex}')", "portal_replays('globex', '$name{globex}')",
	"portal_retry('globex', '$name{globex}', '$event{globex}')",
	"portal_attempts('globex')", "portal_event_types('globex')", "portal_secret('globex', '$name{globex}')",
	qq(portal_alter_endpoint('globex', '$name{globex}', '{"rate_limit": 7}')), "portal_pause_endpoint('globex', '$name{globex}')",
	"portal_create_endpoint('globex', '$url{globex}')", "portal_send_test('globex', '$name{globex}')",
	"portal_rotate_secret('globex', '$name{globex}')", "portal_drop_endpoint('globex', '$name{globex}', discard => true)");
my %few = map { $_ => work_of($_) } @calls;
ask("SELECT outbox.create_endpoint('other' || n, '$url{globex}', tenant => 'other' || n / 3, start_at => 'now') FROM generate_series(1, 300) n");
foreach my $call (@calls)
{
	# each hundredth change also removes old rows of outbox.endpoint_audit
	my ($many) = sort { $a->{rows} <=> $b->{rows} } map { work_of($call) } 1 .. 2;
	cmp_ok($many->{$_}, '<', $few{$call}{$_} + 100, "$call: $_") foreach qw(rows functions);
}

# --- What waits is told when it is counted, because an estimate counts events of others

is(ask(<<SQL), "t|\nnull", 'events of others are not shown as waiting');
BEGIN;
SELECT outbox.create_endpoint('estimated', '$url{acme}', topics => '{nothing}', tenant => 'acme', start_at => 'beginning') \\g /dev/null
SELECT pending > 10 AND NOT pending_exact, NULL FROM outbox.stats WHERE endpoint = 'estimated';
SELECT outbox.portal_endpoints('acme', 'estimated') -> 'pending';
ROLLBACK;
SQL
ok(wait_sql($node, "SELECT (outbox.portal_endpoints('acme', '$name{acme}') ->> 'pending')::int >= 0"), 'and its own are counted');

# --- Secrets of all endpoints come back in one call, and notices name the tenant

my $notices = $receiver->url('/ok/notices');
ask(qq~SELECT outbox.create_endpoint('notices', '$notices', topics => '{outbox.*}', filter => '\$.tenant == "globex"')~);
my $kept = ask('SELECT jsonb_object_agg(name, outbox.endpoint_secret(name)) FROM outbox.endpoint_settings');
ask('DELETE FROM outbox.endpoint_secrets; SELECT outbox.endpoint_changed(0)');
ok(wait_sql($node, "SELECT state = 'held' FROM outbox.stats WHERE endpoint = '$name{globex}'"), 'as after a recovery from a dump');
foreach my $case ([ '[1]', '22023: secrets must be an object of strings HINT' ], [ '{"none": "' . $new . '"}', '42704: endpoint "none" does not exist HINT' ],
	[ qq({"$name{globex}": "whsec_x"}), '22023: invalid secret HINT' ])
{
	like(says("SELECT outbox.set_secrets('$case->[0]')", 'postgres'), qr/\Q$case->[1]\E/, "$case->[1]");
}
like(says('SELECT outbox.set_secrets(NULL)', 'postgres'), qr/22004: secrets must not be null HINT/, 'NULL is no object');
is(ask("SELECT outbox.set_secrets('$kept') = (SELECT count(*) FROM outbox.endpoint_settings)"), 't', 'all secrets in one call');
is(ask('SELECT jsonb_object_agg(name, outbox.endpoint_secret(name)) FROM outbox.endpoint_settings'), $kept, 'are there again');
foreach my $tenant (qw(acme globex))
{
	ask("SELECT outbox.alter_endpoint('$name{$tenant}', url => '" . $receiver->url("/status/400/$tenant") . "', max_attempts => 1)");
	ask("SELECT outbox.emit('order.a', '{\"n\": 1}', tenant => '$tenant')");
}
my ($notice) = $receiver->wait_delivered(1, path => '/ok/notices');
my $told = decode_json($notice->{body})->{data};
is("$told->{endpoint} $told->{tenant}", "$name{globex} globex", 'a notice names the tenant, and a filter finds it');
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = '$name{acme}'"), 'the other one has a dead delivery as well');

portal("SELECT outbox.portal_drop_endpoint('acme', '$name{acme}', discard => true)");
is(portal("SELECT count(*) FROM outbox.portal_endpoints('acme') e WHERE e ->> 'name' = '$name{acme}'"), '0', 'dropped');
is(portal("SELECT count(*) FROM outbox.portal_endpoints('globex')"), '1', 'and no other');

$node->stop;
done_testing();
