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
$block{$1} //= $2 while $doc =~ /^```(js|python|go|json)\n(.*?)^```$/msg;
is(join(' ', sort keys %block), 'go js json python', 'the examples are there');

my $dir = PostgreSQL::Test::Utils::tempdir('examples');
my $module = "$dir/example.py";
PostgreSQL::Test::Utils::append_to_file($module, $block{python});

# The vectors, with the Python example; the same ones are in the unit test
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

# Runs an example, delivers to it, and reads what it printed.
sub try_example
{
	my ($name, @command) = @_;
	my $port = free_port();
	my $printed = "$dir/$name.out";
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
	kill 'TERM', $pid;
	waitpid($pid, 0);
	@OutboxTest::Receiver::started = grep { $_ != $pid } @OutboxTest::Receiver::started;
	return;
}

try_example('python', 'python3', $module);
if ($go) { try_example('go', "$dir/receiver") }
else { diag('NOT TESTED: the Go example of doc/receiving.md: Go is not installed') }

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
}

$node->stop;
done_testing();
