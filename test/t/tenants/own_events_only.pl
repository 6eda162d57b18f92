# An endpoint of a tenant gets the events of that tenant and no other's.
# One without a tenant gets all of them, and keeps the keys of two tenants apart.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.dedup_window = '1 h'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $json = JSON::PP->new;    # bodies are text already

sub got
{
	my ($path) = @_;
	return join ' ', sort { $a <=> $b } map { $json->decode($_->{body})->{data}{n} } $receiver->delivered(path => $path);
}

my $quick = "backoff_base => '10 ms', backoff_max => '20 ms'";
endpoint($node, $receiver, 'acme', '/ok/acme', "topics => '{order.*}', tenant => 'acme', $quick");
endpoint($node, $receiver, 'acme.2', '/ok/acme2', "topics => '{invoice.*}', tenant => 'acme', filter => '\$.n > 10'");
endpoint($node, $receiver, 'globex', '/ok/globex', "tenant => 'Globex 100% ü'");
endpoint($node, $receiver, 'archive', '/ok/archive', "topics => '{order.*,invoice.*}'");

# Every way to emit
my @ways = (
	"SELECT outbox.emit('order.a', '{\"n\": 1}', tenant => 'acme')",
	"SELECT outbox.emit('order.a', '{\"n\": 2}'::jsonb, tenant => 'Globex 100% ü')",
	"SELECT outbox.emit('order.a', '{\"n\": 3}'::json)",
	"INSERT INTO outbox.events (topic, payload, tenant) VALUES ('order.b', '{\"n\": 4}', 'acme')",
	"INSERT INTO outbox.outgoing (topic, payload, tenant) VALUES ('invoice.b', '{\"n\": 5}', 'acme')",
	"SELECT outbox.emit('invoice.b', '{\"n\": 11}', 42, tenant => 'acme')",
	"SELECT outbox.emit('order.c', '{\"n\": 6}', tenant => 'acme', deliver_at => now() + interval '50 ms')",
	"SELECT outbox.emit('order.a', '{\"n\": 7}', tenant => 'nobody')",
	"COPY outbox.events (topic, payload, tenant) FROM stdin;\norder.d\t{\"n\": 8}\tacme\n\\.\n",
	"CREATE TABLE public.orders (id int, n int, customer text);"
	  . " CREATE TRIGGER tell AFTER INSERT OR UPDATE ON public.orders FOR EACH ROW"
	  . " EXECUTE FUNCTION outbox.emit_change('order.row', 'id', '*', 'customer');"
	  . " INSERT INTO public.orders VALUES (1, 9, 'acme'), (2, 10, NULL), (3, 12, '')");
ask($_) foreach @ways;
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.scheduled'), 'what was scheduled is in the log');
ok(wait_settled($node), 'settled');

my @plain = grep { $_->{headers}{'outbox-topic'} ne 'order.row' } $receiver->delivered(path => '/ok/acme');
is(join(' ', sort map { $json->decode($_->{body})->{data}{n} } @plain), '1 4 6 8', 'its own tenant');
is(join(' ', sort map { $json->decode($_->{body})->{data}{new}{n} }
		  grep { $_->{headers}{'outbox-topic'} eq 'order.row' } $receiver->delivered(path => '/ok/acme')), '9', 'also by emit_change()');
is(got('/ok/acme2'), '11', 'topics and filters apply as before');
is(got('/ok/globex'), '2', 'another tenant');
is(scalar(() = $receiver->delivered(path => '/ok/archive')), 12, 'an endpoint without a tenant gets all');
is(join(' ', sort map { $_->{headers}{'outbox-tenant'} // '-' } $receiver->delivered(path => '/ok/archive')),
	'- - - Globex%20100%25%20%C3%BC acme acme acme acme acme acme acme nobody', 'with their tenants');

# A row that goes to another tenant
ask("UPDATE public.orders SET customer = 'Globex 100% ü' WHERE id = 1");
ok(wait_settled($node), 'settled');
is(join(' ', map { join '-', $_->{op}, sort grep { /^(?:old|new)$/ } keys %$_ } map { $json->decode($_->{body})->{data} }
		  map { (grep { $_->{headers}{'outbox-topic'} eq 'order.row' } $receiver->delivered(path => $_))[-1] } qw(/ok/acme /ok/globex)),
	'delete-old insert-new', 'each tenant sees its own row only');

# The index of tenants, in a session that has left it out before
my $indexed = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';
my @rows = map { "SELECT outbox.emit('index.a', '{}'" . ($_ ? ", tenant => '$_'" : '') . ') IS NULL;' } '', 'indexed', '', 'indexed';
my $find = "SELECT count(*) FROM outbox.events WHERE tenant = 'indexed'";
like(ask("$indexed EXPLAIN $find"), qr/Index.*_tenant_seq_idx/, 'events of a tenant are found by an index');
is(ask("$indexed BEGIN; @rows COMMIT; $find") =~ s/.*\n//sr, 2, 'and all of them are in it');

# The views
is(ask("SELECT string_agg(DISTINCT endpoint, ' ' ORDER BY endpoint) FROM outbox.deliveries WHERE tenant = 'acme'"),
	'acme acme.2 archive', 'deliveries of a tenant');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'globex'"), 2, 'and of its endpoint');
is(ask("SELECT string_agg(DISTINCT status, ' ') FROM outbox.deliveries"), 'delivered', 'all of them are delivered');
is(ask("SELECT string_agg(endpoint || '=' || COALESCE(tenant, '-'), ' ' ORDER BY endpoint) FROM outbox.stats"),
	'acme=acme acme.2=acme archive=- globex=Globex 100% ü', 'stats');
is(ask("SELECT string_agg(DISTINCT name, ' ' ORDER BY name) FROM outbox.endpoints WHERE tenant = 'acme'"), 'acme acme.2', 'endpoints');
is(ask("SELECT count(*) FROM outbox.attempts WHERE tenant = 'acme'"), 7, 'attempts');
is(ask("SELECT string_agg(c.relname, ' ' ORDER BY 1) FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v'"
	  . " AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname IN ('endpoint', 'event_id', 'payload'))"
	  . " AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant')"),
	'', 'every view that shows endpoints or events has their tenants');

# A tenant is part of what a dedup_key is unique in
is(ask("SELECT count(DISTINCT outbox.emit('dedup.a', '1', dedup_key => 'k', tenant => t)) FROM unnest('{a,b,a}'::text[]) t"),
	2, 'a dedup_key counts in its tenant');
isnt(ask("SELECT outbox.emit('dedup.a', '1', dedup_key => 'k')"),
	ask("SELECT outbox.emit('dedup.a', '1', dedup_key => 'k', tenant => 'a')"), 'or in none');

# The same key in two tenants is two keys for an endpoint without a tenant.
endpoint($node, $receiver, 'keys', '/poison/keys', "topics => '{key.*}', on_exhausted => 'block', max_attempts => 2, $quick");
$receiver->control(path => '/poison/keys', behave => '/status/500');
my $dead = ask("SELECT outbox.emit('key.a', '{\"n\": 0}', key => 'k', tenant => 'a')");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'keys'"), 'the head of a key of tenant a is dead');
$receiver->control(path => '/poison/keys', behave => '/ok');
my %other = map { $_->[0] => ask("SELECT outbox.emit('key.a', '{\"n\": 1}', key => $_->[1], tenant => $_->[2])") }
  ([ 'another tenant', "'k'", "'b'" ], [ 'no tenant', "'k'", 'NULL' ], [ 'a key that looks like both', "E'a\\001k'", 'NULL' ]);
my $behind = ask("SELECT outbox.emit('key.a', '{\"n\": 2}', key => 'k', tenant => 'a')");
foreach my $what (sort keys %other)
{
	$receiver->wait_delivered(1, id => $other{$what});
	pass("$what: not behind it");
}
ok(wait_sql($node, "SELECT status = 'blocked' FROM outbox.deliveries WHERE endpoint = 'keys' AND event_id = '$behind'"),
	'the next of the same tenant is');
$node->restart;
ok(wait_sql($node, "SELECT blocked = 1 AND dead = 1 FROM outbox.stats WHERE endpoint = 'keys'"), 'after a restart, too');
is(ask("SELECT tenant FROM outbox.dead_letters WHERE event_id = '$dead'"), 'a', 'dead letters have the tenant');
ask("SELECT outbox.retry('keys')");
$receiver->wait_delivered(1, id => $behind);
ok(wait_settled($node), 'all is delivered');
ask("SELECT outbox.resend('keys', '$behind')");
$receiver->wait_delivered(2, id => $behind);
pass('resend()');

# Catching up reads the same, and so does replay()
ask("SELECT outbox.pause_endpoint('acme')");
ask("SELECT outbox.emit('order.late', jsonb_build_object('n', 100 + n), tenant => CASE n % 3 WHEN 0 THEN 'acme' WHEN 1 THEN 'b' END)"
	  . ' FROM generate_series(1, 30) n');
ok(wait_sql($node, "SELECT pending = 10 AND pending_exact FROM outbox.stats WHERE endpoint = 'acme'"), 'what waits for a paused one');
my $before = () = $receiver->delivered(path => '/ok/acme');
ask("SELECT outbox.resume_endpoint('acme')");
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->delivered(path => '/ok/acme')), $before + 10, 'is sent when it is resumed');
is(ask("SELECT outbox.replay('acme', now() - interval '1 h', topics => '{order.late}')"), 10, 'replay() counts its own');
$receiver->wait_delivered($before + 20, path => '/ok/acme');
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->delivered(path => '/ok/acme')), $before + 20, 'and sends them');

# What commits late is found by its transaction, not by its tenant, by one that is behind.
my $late = $node->background_psql('postgres');
$late->query_safe('BEGIN');
my %late = map { $_ => $late->query_safe("SELECT outbox.emit('order.late', '{\"n\": 200}', tenant => '$_')") } qw(acme b);
my $early = ask("SELECT outbox.emit('order.late', '{\"n\": 201}', tenant => 'acme')");
$receiver->wait_delivered(1, id => $early, path => '/ok/acme');
ok(pause($node, 'acme'), 'paused, while a transaction of two tenants is open');
$late->query_safe('COMMIT');
$late->quit;
$receiver->wait_delivered(1, id => $late{b}, path => '/ok/archive');
ask("SELECT outbox.resume_endpoint('acme')");
$receiver->wait_delivered(1, id => $late{acme}, path => '/ok/acme');
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->delivered(id => $late{b}, path => '/ok/acme')), 0, 'the event of the other tenant is not sent');
is(scalar(() = $receiver->delivered(id => $late{acme}, path => '/ok/acme')), 1, 'its own is');
my $test = ask("SELECT outbox.send_test('acme')");
$receiver->wait_delivered(1, id => $test);
is((grep { $_->{id} eq $test } $receiver->delivered)[0]{headers}{'outbox-tenant'}, 'acme', 'a test event has the tenant of its endpoint');

# Formats
endpoint($node, $receiver, 'ce', '/ok/ce', "topics => '{format.*}', format => 'cloudevents'");
endpoint($node, $receiver, 'binary', '/ok/binary', "topics => '{format.*}', format => 'cloudevents-binary'");
endpoint($node, $receiver, 'batch', '/ok/batch', "topics => '{format.*}', batch_size => 10");
ask("SELECT outbox.emit('format.a', '{}', tenant => 'Zoë', headers => '{\"outboxtenant\": \"other\"}')");
ask("SELECT outbox.emit('format.b', '{}')");
ok(wait_settled($node), 'settled');
is(join(' ', sort map { $json->decode($_->{body})->{outboxtenant} // '-' } $receiver->delivered(path => '/ok/ce')), "- Zo\x{eb}", 'cloudevents: outboxtenant');
is(join(' ', sort map { $_->{headers}{'ce-outboxtenant'} // '-' } $receiver->delivered(path => '/ok/binary')), '- Zo%C3%AB', 'and binary');
is(join(' ', sort map { exists $_->{tenant} ? $_->{tenant} : '-' } map { @{ $json->decode($_->{body}) } } $receiver->delivered(path => '/ok/batch')),
	"- Zo\x{eb}", 'batches: the property is there only when set');

# The log's number counts the events of all: a receiver has it only where it is asked for, and never of a tenant's event.
endpoint($node, $receiver, 'numbered', '/ok/numbered', q[topics => '{number.*}', config => '{"outbox_headers": "all,sequence"}']);
endpoint($node, $receiver, 'usual', '/ok/usual', q[topics => '{number.*}', config => '{"outbox_headers": "all"}']);
endpoint($node, $receiver, 'theirs', '/ok/theirs', q[topics => '{number.*}', tenant => 'Zoë', config => '{"outbox_headers": "sequence"}']);
ask("SELECT outbox.emit('number.none', '{}'), outbox.emit('number.own', '{}', tenant => 'Zoë')");
my $number = ask("SELECT seq FROM outbox.events WHERE topic = 'number.none'");
ok(wait_settled($node), 'settled');
is(join(' ', map { $_->{headers}{'outbox-sequence'} // '-' } sort { $a->{topic} cmp $b->{topic} } $receiver->delivered(path => '/ok/numbered')), "$number -", 'the number of an event without a tenant, where it is asked for');
is(scalar(() = $receiver->delivered(path => '/ok/theirs')), 1, 'an endpoint of a tenant asks for it, too');
is(join(' ', map { my $r = $_; map { "$r->{path}: $_" } grep { /sequence/ } %{ $r->{headers} }, $r->{body} } grep { $_->{path} ne '/ok/numbered' } $receiver->delivered),
	'', 'but no other request has any, whatever its format');

# Many tenants, and no endpoint without one: each gets its own event.
ask('CREATE DATABASE many');
$node->safe_psql('many', 'CREATE EXTENSION outbox');
$node->safe_psql('many', "SELECT count(outbox.create_endpoint('e' || n, '" . $receiver->url('/ok/many/') . "' || n, tenant => 't' || n)) FROM generate_series(1, 115) n");
ok(wait_sql($node, "SELECT count(*) = 115 FROM outbox.stats WHERE state = 'active'", undef, 'many'), '115 endpoints');
$node->safe_psql('many', "SELECT count(outbox.emit('a', to_jsonb(n), tenant => 't' || n)) FROM generate_series(1, 115) n");
ok(wait_settled($node, 'many'), 'settled');
is(join(' ', sort { $a <=> $b } map { ($_->{path} =~ m{(\d+)$})[0] == $json->decode($_->{body})->{data} ? $json->decode($_->{body})->{data} : "$_->{path} got $_->{body}" }
		  grep { $_->{path} =~ m{^/ok/many/} } $receiver->requests), join(' ', 1 .. 115), 'each of 115 tenants gets its own event');

# Several patterns that match, and subscribers that come and go while the topic is known
my $several = "topics => '{*,*.b,several.*,several.b,x}'";
endpoint($node, $receiver, $_, "/ok/$_", $several) foreach qw(several next last);
endpoint($node, $receiver, "own.$_", "/ok/own.$_", "$several, tenant => 'own'") foreach qw(a b);
sub takes_one
{
	my ($why, @paths) = @_;
	my $id = ask("SELECT outbox.emit('several.b', '{}', tenant => 'own')");

	wait_settled($node) or return fail('settled');
	return is(join(' ', sort map { $_->{path} } grep { $_->{path} =~ m{^/ok/(several|next|last|own)} } $receiver->delivered(id => $id)), join(' ', map { "/ok/$_" } @paths), $why);
}
takes_one('an endpoint of which several patterns match gets the event once', qw(last next own.a own.b several));
ask("SELECT outbox.drop_endpoint('next')");
takes_one('without an endpoint that was dropped', qw(last own.a own.b several));
ask("SELECT outbox.drop_endpoint('own.a')");
takes_one('nor one of the tenant', qw(last own.b several));
ask("SELECT outbox.alter_endpoint('own.b', topics => '{several.a}')");
takes_one('nor one that was altered', qw(last several));
endpoint($node, $receiver, 'own.c', '/ok/own.c', "$several, tenant => 'own'");
ask("SELECT outbox.alter_endpoint('last', topics => '{*.a}')");
takes_one('with a new one of the tenant', qw(own.c several));
ask("SELECT outbox.drop_endpoint('$_', discard => true)") foreach qw(several last own.b own.c);

# An endpoint keeps its tenant, and each tenant has a name.
my ($ret, $out, $err) = $node->psql('postgres', "SELECT outbox.alter_endpoint('acme', reset => '{tenant}')");
like($err, qr/unknown option "tenant" in reset/, 'a tenant cannot be taken away');
($ret, $out, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('acme', 'https://example.com', if_not_exists => true, tenant => 'b')");
like($err, qr/42710|already exists.*belongs to another tenant/s, 'if_not_exists does not take the endpoint of another tenant');
foreach my $bad ("''", "repeat('x', 256)", "E'a\\tb'")
{
	($ret, $out, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('x', 'https://example.com', tenant => $bad)");
	like($err, qr/invalid tenant: .*\n.*HINT:/s, "$bad is none");
}
$node->stop;
done_testing();
