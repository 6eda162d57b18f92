# The test vectors and the receivers of batches in doc/receiving.md do as it says.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use OutboxTest::Samples qw(missing sample prepare start_sample end_sample);
use PostgreSQL::Test::Utils;
use Test::More;

# The vectors.  The same ones are in the unit test.
my $dir = PostgreSQL::Test::Utils::tempdir('vectors');
append_to_file("$dir/example.py", sample('python verify'));
append_to_file("$dir/vectors.json", sample('json'));
my $printed = qx{cd '$dir' && python3 -c '
import base64, json, time, example
for v in json.load(open("vectors.json", encoding="utf-8")):
    body = base64.b64decode(v["body_base64"]) if "body_base64" in v else v["body"].encode()
    key = base64.b64decode(v["secret"].removeprefix("whsec_"))
    print(example.sign(key, v["id"], v["timestamp"], body))
    for age, secret in ((0, key), (290, key), (310, key), (-290, key), (-310, key), (0, key + b"x")):
        now = str(int(time.time()) - age)
        headers = {"webhook-id": v["id"], "webhook-timestamp": now,
                   "webhook-signature": "v1,AAAA " + example.sign(secret, v["id"], now, body)}
        print(example.verify(key, headers, body), end=" ")
    print(example.verify(key, {}, body))
' 2>&1};
my $unit = slurp_file("$top/test/unit/test_sign.c");
my @vectors = @{ decode_json(sample('json')) };
cmp_ok(scalar @vectors, '>=', 4, 'there are test vectors');
is($printed, join('', map { "$_->{signature}\nTrue True False True False False False\n" } @vectors),
	'their signatures are right, and what is old, early or signed otherwise is refused');
foreach my $v (@vectors)
{
	ok( index($unit, qq("$v->{secret}")) > 0 && index($unit, qq("$v->{id}")) > 0
		  && index($unit, " $v->{timestamp},") > 0 && index($unit, qq("$v->{signature}")) > 0,
		'the unit test has the same vector');
}

my $node = outbox_node('receiving');
my $secret = $node->safe_psql('postgres', 'SELECT outbox.new_secret()');

# What takes the place of handle(): work that fails until a time that the event says.
my %handle = (
	python => <<'PYTHON',
def handle(event_id, key, event):
    import time
    data = event.get("data") or {}
    if data.get("fail", 0) > time.time() * 1000:
        raise RuntimeError("not yet")
    with open("events.txt", "a") as file:
        file.write(f"{event_id} {data.get('n')}\n")


PYTHON
	js => <<'JS');
async function handle(id, key, event) {
  if (event.data?.fail > Date.now()) throw new Error('not yet');
  await appendFile('events.txt', `${id} ${event.data?.n ?? 'None'}\n`);
}
JS

# The receiver for one event, with what the document puts in its place for batches.
sub batch_sample
{
	my ($language) = @_;
	my ($code, $batch) = (sample($language), sample("$language batch"));

	ok( ($language eq 'python'
			? $code =~ s/^    def do_POST\(.*?(?=^    def answer)/$batch\n/ms && $code =~ s/^def handle\(.*?(?=^def once)/$handle{python}/ms
			: $code =~ s/^async function receive\(.*?^\}\n/$batch/ms && $code =~ s/^async function handle\(.*?^\}\n/$handle{js}/ms),
		"$language: the batches take the place of the one event");
	return $code;
}

# Two events fail for a while, one is null and one bytes, and all come twice.
sub try_batches
{
	my ($language, $format) = @_;
	my $name = "$language.batches.$format";
	my $folder = prepare($language, batch_sample($language));
	my ($port, $pid) = start_sample($language, $folder, $secret);
	my $lines = sub { return -e "$folder/events.txt" ? split /\n/, slurp_file("$folder/events.txt") : () };

	refuses_unsigned($port, $name);
	$node->safe_psql('postgres', <<SQL);
SELECT outbox.create_endpoint('$name', 'http://127.0.0.1:$port/a', topics => '{$name}', secret => '$secret', format => '$format',
    batch_size => 10, backoff_base => '100 ms', backoff_max => '200 ms');
SELECT outbox.pause_endpoint('$name');
SELECT count(outbox.emit('$name', jsonb_build_object('n', n, 'fail', CASE WHEN n IN (3, 8)
    THEN (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 5000 ELSE 0 END), key => 'k' || n % 2))
FROM generate_series(1, 10) n;
SELECT outbox.emit('$name', 'null'::jsonb), outbox.emit_bytes('$name', '\\x00ff', 'application/x');
SELECT outbox.resume_endpoint('$name');
SQL
	wait_settled($node);
	my @n = map { (split / /)[1] } $lines->();
	is(scalar @n, 12, "$name: each event is received once");
	is(join(' ', grep { /[13579]$/ } @n), '1 3 5 7 9', 'those of a key in order');
	is(join(' ', grep { /[02468]$/ } @n), '2 4 6 8 10', 'of both keys');
	is(scalar(grep { $_ eq 'None' } @n), 2, 'null and bytes, too');
	is( $node->safe_psql('postgres',
			"SELECT string_agg(payload->>'n', ' ' ORDER BY seq) FROM outbox.events e WHERE topic = '$name'"
			  . " AND EXISTS (SELECT 1 FROM outbox.attempts a WHERE a.event_id = e.id AND error LIKE '%named%')"),
		'3 8', 'those that failed were named');
	ok(wait_settled($node), "$name: settled");
	$node->safe_psql('postgres', "SELECT outbox.replay('$name', now() - interval '1 hour')");
	ok( wait_sql($node,
			"SELECT count(*) >= 24 FROM outbox.attempts WHERE endpoint = '$name' AND status_code = 200 AND error IS NULL"),
		"$name: each event comes again, and is answered");
	is(scalar(() = $lines->()), 12, 'but its work is done once');
	end_sample($pid);

	# Its last answer may not have arrived.  The event would then be tried for ever.
	$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('$name', discard => true)");
	return;
}

foreach my $language (qw(python js))
{
	my $missing = missing($language);

	if ($missing) { diag("NOT TESTED: the receiver of batches in $language: $missing") }
	else { try_batches($language, $_) foreach qw(standard cloudevents) }
}

$node->stop;
done_testing();
