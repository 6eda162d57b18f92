# No argument of a function ends in an internal error, or in a call that cannot be cancelled.
# Each argument of each function that pg_proc has is given in turn: 2 MB, or as many as MB says, very many elements
# or levels, numbers and times at their ends, nothing, and NULL.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

BEGIN { $ENV{OUTBOX_TEST_LIMIT} ||= 1800 }

use List::Util qw(max);
use OutboxTest;
use OutboxTest::Calls;
use PostgreSQL::Test::Utils;
use Test::More;

use constant TIMEOUT => 5; # s, of a statement
use constant LATER => 10; # s after it, on a busy machine
my $mb = $ENV{MB} || 2;
my $most = 400 + 16 * $mb; # MB, for the forms that a value has on its way
my $n = $mb * 20_000;
my $node = outbox_node('main', conf => "max_wal_size = 4GB\njit = off\nmax_wal_senders = 0\nrestart_after_crash = on\n");
my $receiver = OutboxTest::Receiver->new('main');

prepare_calls($node, $receiver);
$node->safe_psql('postgres', <<"SQL");
CREATE TABLE huge (x text, wide text, "text[]" text[], path jsonpath, ints int[], string jsonb, numbers jsonb, object jsonb, deep jsonb, bytes bytea);
ALTER TABLE huge ALTER x SET STORAGE EXTERNAL, ALTER string SET STORAGE EXTERNAL, ALTER object SET STORAGE EXTERNAL, ALTER bytes SET STORAGE EXTERNAL;
INSERT INTO huge SELECT repeat('x', $mb * 1000000), repeat('ä[\"%s', 200000),
	(SELECT array_agg('a.t' || i) FROM generate_series(1, $n) i), (SELECT string_agg('\$.a == ' || i, ' || ') FROM generate_series(1, 2000) i)::jsonpath,
	(SELECT array_agg(i) FROM generate_series(1, $n * 10) i), to_jsonb(repeat('y', $mb * 1000000)), (SELECT jsonb_agg(i) FROM generate_series(1, $n / 10) i),
	(SELECT jsonb_object_agg('k' || i, i) FROM generate_series(1, $n) i), (repeat('{"a":[', 5000) || repeat(']}', 5000))::jsonb, convert_to(repeat('z', $mb * 1000000), 'UTF8');
SQL

my @texts = ('x', 'wide', q(''), q(E'\\x01'), q('-'));
my @numbers = qw(0 -1 NULL);
my @jsons = (qw(string numbers object deep), q('null'), q('[]'), q('{}'), q('""'), "('1' || repeat('0', 1000))", q('1e131000'), q(('{"' || left(x, 1000000) || '": 1}')));
my %values = (
	text => \@texts,
	anyelement => [ map { "$_\::text" } @texts ],
	anynonarray => [ (map { "$_\::text" } @texts), q(('1' || repeat('0', 1000))::numeric), q('1e131000'::numeric), q('NaN'::numeric), q('infinity'::date), 'ROW(x)', 'NULL::int', 'string' ],
	'text[]' => [ '"text[]"', 'ARRAY[x]', q('{}'), q('{NULL}'), q('{{a,b},{c,d}}'), q('[-2147483648:-2147483647]={a,b}'), 'array_fill(NULL::text, ARRAY[1000000])' ],
	'integer[]' => [ 'ints', q('{}'), q('{NULL}'), q('{{1,2},{3,4}}'), q('{2147483647,-2147483648,0}') ],
	'bigint[]' => [ 'ints', q('{}'), q('{NULL}'), q('{{1,2},{3,4}}'), q('{9223372036854775807,-9223372036854775808,0}') ],
	jsonb => \@jsons,
	json => [ (map { "$_\::text" } @jsons), q(('"' || x || '"')) ],
	jsonpath => [ 'path', q('$'), q('strict $.**'), q(('$.a == "' || x || '"')), q('$.a == 1e131000') ],
	'bytea[]' => [ 'ARRAY[bytes]', q('{}'), q('{NULL}'), q('{{a,b},{c,d}}') ],
	bytea => [ 'bytes', q(''), q('\\x00'), q('\\xffffffffffffffffffff'), q('\\x80808080808080808001') ],
	uuid => [ q('ffffffff-ffff-ffff-ffff-ffffffffffff'), q('00000000-0000-0000-0000-000000000000') ],
	boolean => [qw(true false)],
	smallint => [ @numbers, -32768, 32767 ],
	integer => [ @numbers, -2147483648, 2147483647 ],
	bigint => [ @numbers, q('-9223372036854775808'), '9223372036854775807' ],
	oid => [ 0, 4294967295 ],
	real => [ @numbers, map { "'$_'" } qw(NaN Infinity -Infinity 1e-45 3e38) ],
	xid8 => [ q('0'), q('18446744073709551615') ],
	pg_lsn => [ q('0/0'), q('FFFFFFFF/FFFFFFFF') ],
	pg_snapshot => [ q('1:1:'), q('18446744073709551615:18446744073709551615:') ],
	interval => [ map({ "'$_'" } '0', '-178000000 years', '178000000 years', '1 us', '-1 day'), ($node->pg_version >= 17 ? q('infinity') : ()) ],
	'timestamp with time zone' => [ map { "'$_'" } 'infinity', '-infinity', '4713-01-01 BC', '294276-12-31' ],
	'outbox.endpoint_settings' => [ map { "jsonb_populate_record((SELECT s FROM outbox.endpoint_settings s WHERE name = 'e'), jsonb_build_object('$_', x))" } qw(url format tenant) ]);

# The calls of a function in one session.  Returns what was wrong, and the most memory of it in MB.
sub calls
{
	my ($function, @calls) = @_;
	my ($n, $slowest, @wrong) = (0, 0);
	# Some functions refuse to run in a transaction.
	my ($begin, $end) = $function->{name} =~ /^(?:follow|unfollow|take_over|follow_anew)$/ ? ('', '') : ('BEGIN;', 'ROLLBACK;');
	my $script = "\\set VERBOSITY verbose\n\\o /dev/null\nSET statement_timeout = '@{[TIMEOUT]} s';\nSET client_min_messages = error;\n"
	  . join('', map { "\\warn \@\@$_\n\\echo \@\@$_\n$begin\n\\timing on\nSELECT count(f) FROM huge, LATERAL $calls[$_] f;\n\\timing off\n$end\n" } 0 .. $#calls)
	  . "\\o\nSELECT 'status', pg_read_file('/proc/self/status');\n";
	my (undef, $out, $error) = $node->psql('postgres', $script, on_error_stop => 0);
	my ($memory, $shared) = map { $out =~ /^$_:\s+(\d+) kB/m ? $1 / 1024 : undef } qw(VmHWM RssShmem);

	push @wrong, "the session has ended: " . substr($error, -300) unless defined $memory;
	foreach (split /^@@/m, $error)
	{
		my ($i, $text) = /^(\d+)\n(.*)/s or next;
		push @wrong, "$calls[$i]: " . substr($text, 0, 500) if $text =~ /^(?:psql:\S+ )?(?:ERROR:  XX000|FATAL|PANIC)/m;
	}
	foreach (split /^@@/m, $out)
	{
		my ($i, $ms) = /^(\d+)\n.*?^Time: ([\d.]+) ms/ms or next;
		$slowest = max($slowest, $ms / 1000);
		push @wrong, sprintf('%s: %.1f s', $calls[$i], $ms / 1000) if $ms > 1000 * (TIMEOUT + LATER);
	}
	$memory = ($memory // 0) - ($shared // 0);
	push @wrong, sprintf('%.0f MB', $memory) if $memory > $most;
	return ($memory, $slowest, @wrong);
}

my $total = 0;
foreach my $function (functions($node))
{
	my @calls = (call_of($function));

	foreach my $arg (@{ $function->{args} })
	{
		my $values = $values{ $arg->{type} } // ($arg->{type} =~ /^outbox\./ ? [] : undef);

		fail("$function->{signature}: no values for $arg->{type}") unless $values;
		my $type = $arg->{type} =~ /^any/ ? '' : "::$arg->{type}";
		push @calls, map { call_of($function, $arg->{name} => "($_)$type") } @{ $values // [] }, $type ? 'NULL' : 'NULL::text';
	}
	my ($memory, $slowest, @wrong) = calls($function, @calls);
	is(join("\n", @wrong), '', sprintf('%s: %d calls', $function->{signature}, scalar @calls));
	note(sprintf '%.0f MB, %.1f s', $memory, $slowest);
	$total += @calls;
}
note("$total calls");
unlike(slurp_file($node->logfile), qr/was terminated by signal|TRAP:/, 'no process was ended by a signal');
$node->stop;
done_testing();
