# The examples and test vectors of doc/receiving.md do what it says.
use strict;
use warnings;

use Encode ();
use IO::Socket::INET;
use JSON::PP;
use OutboxTest;
use OutboxTest::Conformance;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $doc = PostgreSQL::Test::Utils::slurp_file("$top/doc/receiving.md");
my %block;
$block{$1} //= $2 while $doc =~ /^```(js|python|go|json|js batch|python batch)\n(.*?)^```$/msg;
is(join(' | ', sort keys %block), 'go | js | js batch | json | python | python batch', 'the examples are there');

my $dir = PostgreSQL::Test::Utils::tempdir('examples');
my $module = "$dir/example.py";
PostgreSQL::Test::Utils::append_to_file($module, $block{python});

# The vectors, with the Python example.  The same ones are in the unit test.
my $unit = PostgreSQL::Test::Utils::slurp_file("$top/test/unit/test_sign.c");
PostgreSQL::Test::Utils::append_to_file("$dir/vectors.json", $block{json});
my $signatures = qx{cd '$dir' && WEBHOOK_SECRET=whsec_ python3 -c '
import base64, json, example
for v in json.load(open("vectors.json", encoding="utf-8")):
    body = base64.b64decode(v["body_base64"]) if "body_base64" in v else v["body"].encode()
    key = base64.b64decode(v["secret"].removeprefix("whsec_"))
    print(example.sign(key, v["id"], v["timestamp"], body))
' 2>&1};
my @vectors = @{ decode_json($block{json}) };
cmp_ok(scalar @vectors, '>=', 4, 'there are test vectors');
is($signatures, join('', map { "$_->{signature}\n" } @vectors), 'their signatures are right');
foreach my $v (@vectors)
{
	ok( index($unit, qq("$v->{secret}")) > 0 && index($unit, qq("$v->{id}")) > 0
		  && index($unit, " $v->{timestamp},") > 0 && index($unit, qq("$v->{signature}")) > 0,
		'the unit test has the same vector');
}

# The same with the Go example
my $go = (grep { -x "$_/go" } split(/:/, $ENV{PATH}), '/usr/local/go/bin')[0];
if ($go)
{
	mkdir "$dir/go";
	$ENV{GOCACHE} ||= "/tmp/outbox-go.$>";    # building the standard library takes a while
	$ENV{GO111MODULE} = 'off';
	PostgreSQL::Test::Utils::append_to_file("$dir/go/example.go", $block{go});
	PostgreSQL::Test::Utils::append_to_file("$dir/go/vectors.go", <<'GO');
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

func init() {
	var vectors []struct {
		Secret, Id, Body, Body_base64 string
		Timestamp                     int64
	}
	if os.Getenv("VECTORS") == "" {
		return
	}
	text, _ := os.ReadFile(os.Getenv("VECTORS"))
	if err := json.Unmarshal(text, &vectors); err != nil {
		panic(err)
	}
	for _, v := range vectors {
		body := []byte(v.Body)
		if v.Body_base64 != "" {
			body, _ = base64.StdEncoding.DecodeString(v.Body_base64)
		}
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(v.Secret, "whsec_"))
		fmt.Println(sign(key, v.Id, fmt.Sprint(v.Timestamp), body))
	}
	os.Exit(0)
}
GO
	is(system("cd '$dir/go' && '$go/go' build -o '$dir/receiver' example.go vectors.go"), 0, 'the Go example compiles');
	is(scalar qx{VECTORS='$dir/vectors.json' '$dir/receiver'}, join('', map { "$_->{signature}\n" } @vectors),
		'Go: the signatures are right');
}

my $node = outbox_node('receiving');
my $secret = $node->safe_psql('postgres', 'SELECT outbox.new_secret()');

sub free_port
{
	my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die $!;
	return $socket->sockport;
}

sub answers
{
	my ($port) = @_;
	return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) ? 1 : 0;
}

sub start_example
{
	my ($name, $printed, @command) = @_;
	my $port = free_port();
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		$ENV{PORT} = $port;
		$ENV{WEBHOOK_SECRET} = $secret;
		open(STDOUT, '>', $printed);
		exec @command or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	wait_until { answers($port) } "the $name example listens";
	return ($port, $pid);
}

sub end_example
{
	my ($pid) = @_;

	kill 'TERM', $pid;
	waitpid($pid, 0);
	@OutboxTest::Receiver::started = grep { $_ != $pid } @OutboxTest::Receiver::started;
	return;
}

# An example for batches: two events fail for a while, and one comes twice.
sub try_batches
{
	my ($name, $format, @command) = @_;
	my $printed = "$dir/$name.out";
	my ($port, $pid) = start_example($name, $printed, @command);

	refuses_unsigned($port, $name);
	$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name', 'http://127.0.0.1:$port/a', topics => '{$name}', secret => '$secret', format => '$format',
    batch_size => 10, backoff_base => '100 ms', backoff_max => '200 ms');
SELECT outbox.pause_endpoint('$name');
SELECT count(outbox.emit('$name', jsonb_build_object('n', n, 'fail', CASE WHEN n IN (3, 8)
    THEN (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 5000 ELSE 0 END), key => 'k' || n % 2))
FROM generate_series(1, 10) n;
SELECT outbox.resume_endpoint('$name');
SQL
	wait_settled($node);
	my @lines = split /\n/, PostgreSQL::Test::Utils::slurp_file($printed);
	my @n = map { /"n": ?(\d+)/ } grep { /^received / } @lines;
	is(scalar @n, 10, "$name: each event is received once");
	is(join(' ', grep { $_ % 2 } @n), '1 3 5 7 9', 'those of a key in order');
	is(join(' ', grep { !($_ % 2) } @n), '2 4 6 8 10', 'of both keys');
	is(scalar(grep { /^duplicate / } @lines), 0, 'and none twice');
	is( $node->safe_psql('postgres',
			"SELECT string_agg(payload->>'n', ' ' ORDER BY seq) FROM outbox.events e WHERE topic = '$name'"
			  . " AND EXISTS (SELECT 1 FROM outbox.attempts a WHERE a.event_id = e.id AND error LIKE '%named%')"),
		'3 8', 'those that failed were named');
	$node->safe_psql('postgres', "SELECT outbox.replay('$name', now() - interval '1 hour')");
	wait_until
	{
		10 == grep { /^duplicate / } split /\n/, PostgreSQL::Test::Utils::slurp_file($printed)
	}
	"$name: what comes again is recognised";
	end_example($pid);

	# Its last answer may not have arrived.  The event would then be tried for ever.
	$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('$name', discard => true)");
	return;
}

# Runs an example, delivers to it, and reads what it printed.
sub try_example
{
	my ($name, @command) = @_;
	my $printed = "$dir/$name.out";
	my ($port, $pid) = start_example($name, $printed, @command);

	refuses_unsigned($port, $name);

	# Two endpoints with the secret: each event comes twice.  One with another.
	$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name', 'http://127.0.0.1:$port/a', topics => '{$name}', secret => '$secret');
SELECT outbox.create_endpoint('$name.again', 'http://127.0.0.1:$port/b', topics => '{$name}', secret => '$secret');
SELECT outbox.create_endpoint('$name.forged', 'http://127.0.0.1:$port/c', topics => '{$name}', max_attempts => 1);
SQL
	my @ids = map { emit($node, $name, qq({"n": $_, "name": "Zo\\u00eb"})) } 1 .. 3;
	wait_settled($node);
	my $id = emit($node, $name, '{"n": 4}');
	wait_settled($node);

	my @lines = split /\n/, PostgreSQL::Test::Utils::slurp_file($printed);
	is(scalar(grep { /^received / } @lines), 4, "$name: each event is received once");
	is(scalar(grep { /^duplicate / } @lines), 4, 'and recognised the second time');
	foreach (@ids, $id)
	{
		my $this = $_;
		like((grep { /^received \Q$this\E / } @lines)[0], qr/ \Q$name\E \{"n": ?\d/, 'with type and data');
	}
	is( $node->safe_psql('postgres',
			"SELECT count(*), min(last_status_code), max(last_status_code) FROM outbox.dead_letters WHERE endpoint = '$name.forged'"),
		'4|401|401',
		'what is signed with another secret is refused');
	is( $node->safe_psql('postgres',
			"SELECT count(*) FROM outbox.deliveries WHERE endpoint IN ('$name', '$name.again') AND status = 'delivered'"),
		'8', 'all others are delivered');
	end_example($pid);
	return;
}

try_example('python', 'python3', $module);
if ($go) { try_example('go', "$dir/receiver") }
else { diag('NOT TESTED: the Go example of doc/receiving.md: Go is not installed') }

my $batches = "$dir/batches.py";
PostgreSQL::Test::Utils::append_to_file($batches,
	join("\n\n", $block{python} =~ s/^if __name__.*//msr, $block{'python batch'},
		$block{python} =~ /^(if __name__.*)/ms) =~ s/(PORT"\]\)\), )Receiver/$1BatchReceiver/r);
try_batches("python.batches.$_", $_, 'python3', $batches) foreach qw(standard cloudevents);

SKIP:
{
	my $missing = OutboxTest::Conformance::missing();

	if ($missing)
	{
		diag("NOT TESTED: the Node.js example of doc/receiving.md: $missing");
		skip $missing, 1;
	}

	# Where it finds its package.
	my $script = "$top/test/conformance/example.mjs";
	unlink $script;
	PostgreSQL::Test::Utils::append_to_file($script, $block{js});
	try_example('node', 'node', $script);
	unlink $script;
	PostgreSQL::Test::Utils::append_to_file($script, $block{'js batch'});
	try_batches("node.batches.$_", $_, 'node', $script) foreach qw(standard cloudevents);
	unlink $script;
}

$node->stop;
done_testing();
