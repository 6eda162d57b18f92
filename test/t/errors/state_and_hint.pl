# Whatever is passed to whatever function, an error has a fitting SQLSTATE and a hint to follow.
# Every argument of every function that a role may call is given odd values, one at a time;
# so are settings in JSON, columns of the tables that take INSERTs, and arguments of the trigger.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka, aws'\n");
$node->safe_psql('postgres', $_) foreach documented_roles();
my @options = qw(url topics filter format headers ordering on_exhausted max_in_flight rate_limit timeout connect_timeout
  max_attempts max_age backoff_base backoff_max batch_size batch_wait disable_after label metadata config credentials);
my $event = $node->safe_psql('postgres', <<"SQL");
CREATE EXTENSION inbox;
SELECT outbox.create_endpoint('theirs', 'https://a.example/', topics => '{none}', tenant => 'them') \\g /dev/null
SELECT outbox.pause_endpoint('theirs') \\g /dev/null
SELECT outbox.set_portal_limits(settings => '{${\join ',', @options}}') \\g /dev/null
SELECT outbox.emit('a.b', '{}', tenant => 'them')
SQL

# What a call needs to succeed, by the names of the arguments
my %plain = (
	(map { $_ => "'theirs'" } qw(name endpoint)), (map { $_ => '1' } qw(partition offset top endpoint_id)),
	(map { $_ => "'{}'" } qw(payload settings schema)), (map { $_ => "'x'" } qw(source id description)),
	topic => "'a.b'", topics => "'{a}'", body => "'x'", content_type => "'text/plain'", url => "'https://a.example/'", tenant => "'them'",
	event => "'$event'", from_time => 'now()', start_at => "'now'", purpose => "'emit'", role => "'app'", retention => "'1 day'",
	(map { $_->[0] => "$_->[1]'whsec_' || repeat('A', 40)$_->[2]" } [ 'secret', '', '' ], [ 'secrets', 'ARRAY[', ']' ]),
	timestamp => 'extract(epoch FROM now())::int', signatures => "'v1,x'");

my @json = (
	qw(null true 1 -1 0 0.5 "" "x" "1" [] [null] ["x"] [[]] {} {"x":1} {"":""} {"file":1} {"file":"../x"} "infinity" "NaN" "$.a" 1e200),
	'"178000000 years"', '"999999999999999999 years"', '["' . 'x' x 300 . '"]');
my %odd = (
	text => [
		(map { "'$_'" } '', ' ', 'x', 'theirs', '9999-99-99', '-1', 'null', '{', '1:2', '1:99999999999999999999:3', 'infinity', '%s%n', 'kafka://h/t', 'kafka:', 'arn:', 'https://'),
		"E'a\\nb'", 'chr(1)', "repeat('x', 70000)" ],
	'text[]' => [ (map { "'$_'" } '{}', '{NULL}', '{""}', '{{a,b}}', '[3:4]={a,b}'), "array_fill('a'::text, '{70000}')" ],
	interval => [ map { "'$_'" } 0, '-1 s', '178000000 years', '-178000000 years', '9223372036854775807 us', '2147483647 days' ],
	'timestamp with time zone' => [ map { "'$_'" } 'infinity', '-infinity', '294276-12-31 23:59:59+00', '4713-01-01 00:00+00 BC', 'epoch' ],
	integer => [ 0, -1, 2147483647, -2147483648 ],
	bigint => [ 0, -1, '9223372036854775807', '-9223372036854775808' ],
	oid => [ 0, 4294967295 ],
	xid8 => [ "'0'", "'18446744073709551615'" ],
	real => [ map { "'$_'" } qw(NaN Infinity -Infinity 0 -1 1e-40 3e38) ],
	uuid => [ map { "'$_'" } '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff' ],
	bytea => [ "''", "'\\xff00'" ],
	boolean => [ 'true', 'false' ],
	jsonpath => [ map { "'$_'" } '$', '$.a == $b', 'strict $.a > "x"' ],
	'outbox.forgotten' => [ "'(1,them,,3:3:,1,now,0,0,0,0,0,0,,{},)'" ],
	jsonb => [ map { "'$_'" } @json ],
	json => [ map { "'$_'" } @json, '1e400', '"\u0000"' ]);

my %inside = (
	config => [ qw(signature signature_header id_header timestamp_header type_header signed signature_value signature_next signature_hash
		  signature_encoding signature_key outbox_headers user_agent method query http_version payload payload_missing token_url client_id scope
		  audience token_auth), '' ],
	credentials => [ qw(username password token client_secret client_certificate client_key ca_certificate), '' ]);

my @calls;    # [ role or '', what, statement ]
my %callable;
foreach my $row (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT f.pronamespace::regnamespace, f.proname, array_to_string(f.proargnames[1:f.pronargs], ' '),
	(SELECT string_agg(CASE t WHEN 'anynonarray'::regtype THEN 'integer' WHEN 'anyelement'::regtype THEN 'text' ELSE t::regtype::text END, ',' ORDER BY n) FROM unnest(f.proargtypes::oid[]) WITH ORDINALITY a (t, n)),
	f.pronargs - f.pronargdefaults,
	CASE WHEN f.pronamespace = 'outbox'::regnamespace THEN
		(SELECT min(r) FROM unnest('{portal,app,operator,watcher}'::text[]) r WHERE has_function_privilege(r, f.oid, 'EXECUTE')) END
FROM pg_proc f
WHERE f.pronamespace IN ('outbox'::regnamespace, 'inbox'::regnamespace) AND f.prorettype <> 'trigger'::regtype AND f.pronargs > 0
ORDER BY f.oid
SQL
{
	my ($schema, $function, $names, $types, $required, $role) = split /\|/, $row, -1;
	next if $role eq '' && $schema eq 'outbox' && $function !~ /^(?:grant_|revoke_|privileges_)/;
	$callable{$function} = 1 if $role eq 'portal';
	my @names = split / /, $names;
	my @types = split /,/, $types;
	my %needed = map { $names[$_] => '(' . ($types[$_] eq 'uuid' ? "'$event'" : $plain{ $names[$_] } // 'NULL') . ")::$types[$_]" } 0 .. $required - 1;
	$needed{name} = "'new'::text" if $function eq 'create_endpoint';
	foreach my $i (0 .. $#names)
	{
		my ($name, $type) = ($names[$i], $types[$i]);
		my @values = ('NULL', @{ $odd{$type} // die "$function($name): $type" });
		if ("$name $type" eq 'settings jsonb')
		{
			foreach my $option (@options, 'secret', '')
			{
				push @values, map { qq('{"$option": $_}') } @json;
			}
			foreach my $option (sort keys %inside)
			{
				foreach my $key (@{ $inside{$option} })
				{
					push @values, map { qq('{"$option": {"$key": $_}}') } @json;
				}
			}
		}
		foreach my $value (@values)
		{
			my %given = (%needed, $name => "($value)::$type");
			push @calls, [ $role, $function, "SELECT $schema.$function(" . join(', ', map { qq("$_" => $given{$_}) } sort keys %given) . ')' ];
		}
	}
}
foreach my $url ('https://a.example/', 'kafkas://a.example/t', 'arn:aws:sqs:eu-central-1:123456789012:orders')
{
	foreach my $key (qw(acks compression headers key message partitioner protocol role schema_id source tombstones username password token
		client_key client_certificate access_key_id secret_access_key session_token endpoint_url credentials), '')
	{
		foreach my $argument (qw(config credentials))
		{
			push @calls, map { [ 'operator', "$argument of $url", qq(SELECT outbox.create_endpoint('new', '$url', $argument => '{"$key": $_}')) ] } @json;
		}
	}
}
foreach my $table (qw(outgoing events))
{
	foreach my $row (split /\n/, $node->safe_psql('postgres', <<"SQL"))
SELECT attname, atttypid::regtype FROM pg_attribute
WHERE attrelid = 'outbox.$table'::regclass AND has_column_privilege('app', attrelid, attname, 'INSERT')
SQL
	{
		my ($name, $type) = split /\|/, $row;
		foreach my $value ('NULL', @{ $odd{$type} })
		{
			my %given = (topic => "'a.b'", payload => "'{}'", $name => "($value)::$type");
			push @calls, [ 'app', $table, "INSERT INTO outbox.$table (" . join(', ', sort keys %given) . ') VALUES (' . join(', ', map { $given{$_} } sort keys %given) . ')' ];
		}
	}
}
foreach my $arguments ('%L', "''a.b'', %L", "''a.b'', ''k'', %L", "''a.b'', ''k'', ''k'', %L")
{
	push @calls, map { [ '', 'emit_change', <<"SQL" ] } 'NULL', @{ $odd{text} };
DO \$x\$ BEGIN
	CREATE TABLE public.t (k text, j jsonb);
	EXECUTE format('CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON public.t FOR EACH ROW EXECUTE FUNCTION outbox.emit_change($arguments)', $_);
	INSERT INTO public.t VALUES ('k', '1');
	UPDATE public.t SET k = NULL;
	DELETE FROM public.t;
END \$x\$
SQL
}

my $script = "\\set VERBOSITY verbose\n\\o /dev/null\n";
foreach my $i (0 .. $#calls)
{
	my ($role, undef, $statement) = @{ $calls[$i] };
	$script .= "\\warn === $i\nBEGIN;\n" . ($role eq '' ? '' : "SET LOCAL ROLE $role;\n") . "$statement;\nROLLBACK;\n";
}
my (undef, undef, $err) = $node->psql('postgres', $script, on_error_stop => 0);

# The table of doc/tenants.md
my %status = PostgreSQL::Test::Utils::slurp_file("$top/doc/tenants.md") =~ /^\| `(\w{5})` \| (\d{3}) \|/mg;
my ($errors, %seen, @wrong) = (0);
foreach my $part (split /^=== /m, $err)
{
	my ($i, $state, $message) = $part =~ /^(\d+)\n.*?ERROR:  (\w{5}): (.*)/s or next;
	my ($role, $what, $statement) = @{ $calls[$i] };
	my ($hint) = $part =~ /^HINT:  (.*)/m;

	$errors++;
	$message =~ s/\n.*//s;
	my @why = (
		$state =~ /^(?:XX|0A|2F|P0|57|42P0|42883|42601)/ ? 'SQLSTATE' : (),
		defined $hint ? () : 'no hint',
		$part =~ /^(?:QUERY|LINE \d+):/m ? 'a position' : (),
		$role eq 'portal' && ($hint // '') =~ /outbox\.|SELECT|superuser|=>/ && $state ne '25001' ? "for others: $hint" : (),
		$role eq 'portal' && $message =~ /outbox\./ ? 'of others' : (),
		$role eq 'portal' && !exists $status{$state} ? 'not in doc/tenants.md' : (),
		$role eq 'portal' && ($status{$state} // '') eq '422' && $part !~ /^COLUMN NAME:  \w/m ? 'no field' : ());
	push @wrong, join(', ', @why) . ": $state $message: " . substr($statement, 0, 200) if @why && !$seen{"$what $state $message"}++;
}
cmp_ok($errors, '>', @calls / 4, "$errors errors of " . @calls . ' statements');
is(join("\n", @wrong), '', 'all of them say what to do');

$node->stop;
done_testing();
