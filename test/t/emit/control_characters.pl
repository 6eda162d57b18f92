# No control character gets into a request through any argument of any function.
# Every byte is tried in every text argument of every function that a role may call.
# What is accepted is sent in all formats, and looked at where it arrives.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use Encode ();
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @formats = qw(standard raw cloudevents cloudevents-binary);
my $node = outbox_node('sweep');
my $receiver = OutboxTest::Receiver->new('sweep');
my $swept = 0;

$node->safe_psql('postgres', $_) foreach documented_roles();

# What a call needs to succeed, by the names of the arguments
my %plain = (
	topic => "'sweep.a'", body => "'\\x00'", content_type => "'text/plain'",
	name => "'new'", conninfo => "'service=none'", publication => "'outbox'", keep => "'1 day'", timeout => "'1 minute'", url => "'https://a.example/'", endpoint => "'raw'",
	tenant => "'sweep'", replay => '1', event => "'01980a5c-7d2e-7c3a-9f41-5b6c7d8e9f01'", from_time => 'now()', start_at => "'now'");

# A value with a character in it, where SQL has %s for the character as a literal
my %value = (
	(map { $_ => q{'a' || %s || 'b'} } qw(type content_type key dedup_key tenant name endpoint start_at)),
	(map { $_->[0] => qq{'$_->[1]' || %s} } [ 'format', 'raw' ], [ 'ordering', 'key' ], [ 'on_exhausted', 'skip' ], [ 'challenge', 'echo' ], [ 'log_attempts', 'all' ]),
	secret => q{'whsec_' || repeat('A', 20) || %s || repeat('A', 20)},
	topic => q{'sweep.a' || %s || 'b'},
	url => q{'https://a.example/p' || %s || 'q'},
	topics => q{ARRAY['a' || %s || 'b']},
	reset => q{ARRAY['filter' || %s]},
	settings => q{ARRAY['url' || %s]},
	before => q{'1:2:' || %s || '3'},
	(map { $_ => q{'a' || %s || 'b'} } qw(description label publication version deprecated)),
	conninfo => q{'service=a' || %s || 'b'},
	filter => q{('$.a == "x' || %s || 'y"')::jsonpath});
my %around = (
	(map { $_ => [ q{%s || 'a'}, q{'a' || %s} ] } qw(type content_type key dedup_key tenant name endpoint start_at)),
	(map { $_->[0] => [ qq{%s || '$_->[1]'} ] } [ 'format', 'raw' ], [ 'ordering', 'key' ], [ 'on_exhausted', 'skip' ], [ 'challenge', 'echo' ], [ 'log_attempts', 'all' ]),
	secret => [ q{%s || 'whsec_' || repeat('A', 40)}, q{'whsec_' || repeat('A', 40) || %s} ],
	topic => [ q{%s || 'sweep.a'}, q{'sweep.a' || %s} ],
	url => [ q{%s || 'https://a.example/'}, q{'https://a.example/' || %s}, q{'https://a' || %s || '.example/'}, q{'https://a.example/?q=' || %s} ],
	topics => [ q{ARRAY[%s || 'a']}, q{ARRAY['a', 'a' || %s]} ],
	reset => [ q{ARRAY[%s || 'filter']} ],
	settings => [ q{ARRAY[%s || 'url']} ],
	before => [ q{%s || '1:2:3'}, q{'1:2:3' || %s} ],
	filter => []);

# These may hold any character: it is encoded when it is sent, or never sent.
my %free = map { $_ => 1 } qw(key dedup_key payload filter start_at description label version deprecated);

# [ function, argument, what is swept, statement ]; the last with %s
sub sweeps
{
	my ($function, $names, $types, $required) = @_;
	my @sweeps;

	foreach my $i (0 .. $#$names)
	{
		my ($name, $type) = ($names->[$i], $types->[$i]);
		my @values =
			$name eq 'headers' ? (q{jsonb_build_object('x-a', 'a' || %s || 'b')}, q{jsonb_build_object('x-a', %s || 'a')},
			q{jsonb_build_object('x-a', 'a' || %s)}, q{jsonb_build_object('x-a' || %s || 'b', 'c')},
			q{jsonb_build_object(%s || 'x-a', 'c')}, q{jsonb_build_object('x-a' || %s, 'c')})
		  : $name eq 'payload' ? ($type eq 'jsonb' ? q{jsonb_build_object('a', %s)} : qq{('{"a": "' || %s || '"}')::$type})
		  : $type =~ /^(?:text|text\[\]|jsonpath)$/ ? ($value{$name} // (), @{ $around{$name} // [] })
		  : next;
		ok(scalar @values, "$function($name) is known here") || next;
		foreach my $value (@values)
		{
			my @arguments = ("$name => $value");
			foreach my $j (0 .. $#$names)
			{
				next if $j == $i || $j >= $required;
				my $other = $names->[$j];
				my $plain = $other eq 'name' && $function ne 'create_endpoint' ? "'raw'" : $plain{$other};
				push @arguments, "$other => "
				  . ($other eq 'payload' ? "'{}'::$types->[$j]"
					: $other eq 'key' ? "NULL::$types->[$j]"
					: $plain // die "$function($other)");
			}
			push @sweeps, [ $function, $name, $value, "SELECT outbox.$function(" . join(', ', @arguments) . ')' ];
		}
	}
	return @sweeps;
}

my $functions = <<'SQL';
SELECT p.proname, array_to_string(proargnames[1:pronargs], ' '),
	(SELECT string_agg(t::regtype::text, ',' ORDER BY n) FROM unnest(proargtypes::oid[]) WITH ORDINALITY a (t, n)),
	pronargs - pronargdefaults
FROM pg_proc p
WHERE pronamespace = 'outbox'::regnamespace AND prorettype <> 'trigger'::regtype
AND (has_function_privilege('app', oid, 'EXECUTE') OR has_function_privilege('operator', oid, 'EXECUTE'))
AND NOT has_function_privilege('watcher', oid, 'EXECUTE')
AND pronargs > 0 AND proname <> 'shown'	-- which stores nothing
ORDER BY oid
SQL
my @sweeps;
foreach my $row (split /\n/, $node->safe_psql('postgres', $functions))
{
	my ($function, $names, $types, $required) = split /\|/, $row;
	push @sweeps, sweeps($function, [ split / /, $names ], [ split /,/, $types ], $required);
}
cmp_ok(scalar(keys %{ { map { $_->[0] => 1 } @sweeps } }), '>', 10, 'functions with text arguments');

# Calls with each character.  What succeeds is undone, or else noted with what it
# returned.
my $try = <<'SQL';
CREATE TABLE public.accepted (number int, code int, result text);
CREATE FUNCTION public.sweep(number int, statement text, keep bool, codes int[]) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
	code int;
	r text;
	taken int[] := '{}';
BEGIN
	FOREACH code IN ARRAY codes LOOP
		BEGIN
			EXECUTE replace(statement, '%s', quote_literal(chr(code))) INTO r;
			IF r IS NULL THEN
				CONTINUE;	-- no such endpoint
			ELSIF NOT keep THEN
				RAISE EXCEPTION 'undo' USING ERRCODE = 'XX999';
			END IF;
			INSERT INTO public.accepted VALUES (number, code, r);
			taken := taken || code;
		EXCEPTION
			WHEN SQLSTATE 'XX999' THEN taken := taken || code;
			WHEN OTHERS THEN NULL;
		END;
	END LOOP;
	RETURN taken;
END $$;
SQL

# U+2028 and its like: characters that some take for the end of a line
my @unicode = (1 .. 255, 0x200b, 0x2028, 0x2029, 0x202e, 0xfeff, 0xfffd, 0x1f600);
my @bytes = 1 .. 255;

sub sweep_all
{
	my ($dbname, $codes) = @_;
	my $utf8 = $codes == \@unicode;    # U+0080 to U+009F are more than single bytes there
	my $list = '{' . join(',', @$codes) . '}';
	my $sql = '';

	$node->safe_psql($dbname, $try);
	foreach my $i (0 .. $#sweeps)
	{
		# Sent, one way of each: the character in the middle.  Payloads of other
		# types are made into jsonb at once.
		my $keep = ($sweeps[$i][0] eq 'emit_bytes' || $sweeps[$i][3] =~ /payload => (?:'\{\}'::jsonb|jsonb_)/) && $sweeps[$i][2] =~ /%s \|\| 'b'|%s \|\| '"|'a', %s/ ? 'true' : 'false';
		$sql .= "SELECT public.sweep($i, \$s\$$sweeps[$i][3]\$s\$, $keep, '$list');\n";
		$swept += @$codes;
	}
	my @taken = split /\n/, $node->safe_psql($dbname, $sql);
	my @bad;
	foreach my $i (0 .. $#sweeps)
	{
		my ($function, $name, $value) = @{ $sweeps[$i] };
		next if $free{$name};
		my @control = grep { $_ < 32 || $_ == 127 || $utf8 && $_ > 127 && $_ < 160 } $taken[$i] =~ /(\d+)/g;
		push @bad, "$function($name => $value): @control" if @control;
	}
	is(join("\n", @bad), '', "$dbname: no argument takes a control character");
	cmp_ok($node->safe_psql($dbname, 'SELECT count(DISTINCT code) FROM public.accepted'), '>', 200,
		"$dbname: others are accepted where they may be");
	return;
}

endpoint($node, $receiver, $_, "/ok/$_", "format => '$_'") foreach @formats;
sweep_all('postgres', \@unicode);
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM public.accepted'), '>', 1000,
	'events of odd characters are emitted');

# Any byte at all, in a database that knows no characters
$node->safe_psql('postgres', "CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'");
$node->safe_psql('bytes', 'CREATE EXTENSION outbox');
endpoint($node, $receiver, $_, "/ok/bytes/$_", "format => '$_'", 'bytes') foreach @formats;
sweep_all('bytes', \@bytes);

# The trigger's topic, and the key that it takes from a column
$node->safe_psql('postgres', 'CREATE TABLE public.changed (k text)');
my @trigger = split /\n/, $node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION public.sweep_trigger(code int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER t AFTER INSERT ON public.changed FOR EACH ROW EXECUTE FUNCTION outbox.emit_change(%L, ''k'')',
		'sweep' || chr(code));
	INSERT INTO public.changed VALUES ('k');
	RAISE EXCEPTION 'undo' USING ERRCODE = 'XX999';
EXCEPTION
	WHEN SQLSTATE 'XX999' THEN RETURN 'taken';
	WHEN OTHERS THEN RETURN SQLSTATE;
END $$;
SELECT code || ' ' || public.sweep_trigger(code) FROM generate_series(1, 255) code WHERE code < 32 OR code >= 127;
SQL
is(join(' ', grep { !/ 22023$/ } @trigger), '', 'emit_change: the topic');
$swept += @trigger;
$node->safe_psql('postgres', <<'SQL');
CREATE TRIGGER t AFTER INSERT ON public.changed FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('sweep.changed', 'k');
INSERT INTO public.changed SELECT 'k' || chr(code) || 'l' FROM generate_series(1, 255) code;
SQL
$swept += 255;

# outbox.source goes out with every CloudEvent.
my ($rc, $out, $err) = $node->psql('postgres',
	join('', map { sprintf "ALTER SYSTEM SET outbox.source = U&'/a\\%04xb';\nSHOW outbox.source;\n", $_ } 1 .. 31, 127 .. 255),
	on_error_stop => 0);
is(scalar(() = $err =~ /ERROR/g), 31 + 129, 'outbox.source: a URI has no such character');
$swept += 31 + 129;

# Each event arrives, or is dead with a reason, and nothing else arrives.
foreach my $dbname (qw(postgres bytes))
{
	wait_settled($node, $dbname) or fail("$dbname: all is dealt with");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.dead_letters'), '0', 'UTF8: everything could be sent');
is( $node->safe_psql('bytes', q{SELECT string_agg(DISTINCT reason || ': ' || last_error, ', ') FROM outbox.dead_letters}),
	join(', ', map { "invalid event: $_" } 'invalid content type', 'invalid header', 'invalid key', 'invalid tenant', 'invalid type',
		'the event cannot be converted to UTF-8'),
	'SQL_ASCII: but what is not UTF-8');

my %known = map { $_ => 1 } (
	qw(host accept content-type content-length user-agent webhook-id webhook-timestamp webhook-signature idempotency-key
	  outbox-topic outbox-type outbox-key outbox-tenant outbox-test outbox-attempt x-a traceparent tracestate),
	map { "ce-$_" } qw(specversion id source type time subject partitionkey outboxtenant outboxtest));
my %expected;
foreach my $dbname (qw(postgres bytes))
{
	foreach my $row (split /\n/, $node->safe_psql($dbname, <<'SQL'))
SELECT id, encode(convert_to(coalesce(type, topic), 'SQL_ASCII'), 'hex'), encode(convert_to(key, 'SQL_ASCII'), 'hex'),
	encode(convert_to(headers ->> 'x-a', 'SQL_ASCII'), 'hex'), encode(convert_to(tenant, 'SQL_ASCII'), 'hex') FROM outbox.events
SQL
	{
		my ($id, @hex) = split /\|/, $row, -1;
		$expected{$id} = [ map { pack 'H*', $_ } @hex ];
	}
}
my ($requests, $values, @wrong) = (0, 0);
foreach my $r ($receiver->requests)
{
	my $h = $r->{headers};
	# send_test() has an event of its own, without a type, a key and headers
	my ($type, $key, $x, $tenant) = @{ $expected{ $r->{id} } // [ $h->{'outbox-topic'}, '', '', '' ] };
	my $sent = sub { Encode::encode('UTF-8', $h->{ $_[0] } // '') };

	$requests++;
	foreach my $name (keys %$h)
	{
		$values++;
		push @wrong, "$r->{id}: header $name" unless $known{$name} || $name =~ /^x-a[!#\$%&'*+.^_`|~0-9A-Za-z-]*b?$/;
		push @wrong, "$r->{id}: a control character in $name" if "$name$h->{$name}" =~ /[\x00-\x1f\x7f-\x9f]/;
	}
	push @wrong, "$r->{id}: topic" unless $h->{'outbox-topic'} =~ /^[A-Za-z0-9_.-]+$/;
	push @wrong, "$r->{id}: signature" unless $r->{signature} eq 'valid';
	push @wrong, "$r->{id}: type" unless $sent->('outbox-type') =~ s/%([0-9A-F]{2})/chr hex $1/ger eq $type;
	push @wrong, "$r->{id}: key" unless Encode::encode('UTF-8', $r->{key} // '') eq $key;
	push @wrong, "$r->{id}: key is not encoded" unless ($h->{'outbox-key'} // '') =~ /^[A-Za-z0-9._~%-]*$/;
	push @wrong, "$r->{id}: type is not encoded" if $sent->('outbox-type') =~ /[^\x21-\x7e]/;
	push @wrong, "$r->{id}: tenant" unless $sent->('outbox-tenant') =~ s/%([0-9A-F]{2})/chr hex $1/ger eq $tenant;
	push @wrong, "$r->{id}: x-a" unless $sent->('x-a') eq $x;
	push @wrong, "$r->{id}: ce-$_" foreach grep { ($h->{$_} // '') =~ /[^\x21-\x7e]/ } grep { /^ce-/ } keys %$h;
}
is(join("\n", @wrong[ 0 .. ($#wrong > 20 ? 20 : $#wrong) ]), '', 'each request has the headers that it should, as they should be');
is( $requests,
	$node->safe_psql('postgres', q{SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered'})
	  + $node->safe_psql('bytes', q{SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered'}),
	'no request was smuggled in, and none was lost');
note("$requests requests with $values headers looked at");

# An endpoint that was changed in the table, past the checks
my $worker = worker_pid($node);
my $url = $receiver->url('/ok/patched');
foreach my $bad ("E'$url\\r\\nX-Injected: 1'", "E'$url HTTP/1.1\\r\\nX-Injected: 1\\r\\n\\r\\n'", "'$url' || chr(1)", "'$url' || chr(127)")
{
	$node->safe_psql('postgres', <<"SQL");
BEGIN;
SELECT outbox.create_endpoint('patched', '$url', topics => '{patched}', max_attempts => 1);
UPDATE outbox.endpoint_settings SET url = $bad, version = version + 1 WHERE name = 'patched';
SELECT outbox.endpoint_changed(0);
SELECT outbox.emit('patched', '{}'::jsonb);
COMMIT;
SQL
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.dead_letters WHERE endpoint = 'patched'"),
		"a URL past the checks: $bad");
	$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('patched', discard => true)");
}
is(scalar(() = $receiver->requests(path => '/ok/patched')), 0, 'nothing was sent there');
is(scalar(grep { exists $_->{headers}{'x-injected'} } $receiver->requests), 0, 'nothing was injected');
is(worker_pid($node), $worker, 'the worker went on');
shown_in_security($swept, 'odd bytes in arguments');

$node->stop;
done_testing();
