# No answer of a receiver or proxy holds up another endpoint, or the end of the worker.
# Each of many receivers sends without end what reaches no callback of libcurl, or makes its
# client work in a handshake.  Meanwhile another endpoint gets its events.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $names = 'DNS:localhost,IP:127.0.0.1';
my $two = q[, config => '{"http_version": "2"}'];

make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', $names);
# Keys of several primes are made faster.
OutboxTest::Network::openssl('genpkey', '-algorithm', 'RSA', '-pkeyopt', 'rsa_keygen_bits:8200', '-pkeyopt', 'rsa_keygen_primes:4', '-out', "$dir/large.key");
make_cert($dir, 'large', 'authority', $names);
make_odd_key("$dir/exponent.key");
make_cert($dir, 'exponent', 'authority', $names);
make_cert($dir, 'names', 'authority', join ',', $names, map { "DNS:n$_.test" } 1 .. 1000);
make_cert($dir, 'short_names', 'authority', join ',', $names, map { "DNS:n$_" } 1 .. 4000);
make_cert($dir, 'more_names', 'authority', join ',', $names, map { "DNS:name$_.example.test" } 1 .. 10_000);

my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\n" . (is_installed('outbox_aws') ? "outbox.sinks = 'webhook, aws'\n" : ''));
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 100);
$receiver->wait_delivered(20, path => '/ok/fine');
my $worker = worker_pid($node);

# What comes of each of them: words of the error, or undef for a delivery
my $coded = qr/^the answer has a transfer coding other than chunked$/;
# Of the bounds on bytes and on time, either may come first.
my $rests = qr/^timed out after 20 s, because its answer took too much of the worker's time$/;
my $much = qr/^the receiver sent too much that is no part of an answer$|$rests/;
my $flood = qr/^the receiver sent too much|^the answer is not valid HTTP|^the connection was closed|$rests/;
my $head = qr/^the header of the answer is too long|sent too much|^the answer is not valid HTTP|^the connection was closed|$rests/;
my %plain = (
	'codes its chunks' => $coded,
	'codes its chunks in several lines' => $coded,
	'codes its chunks in HTTP/1.0' => $coded,
	'codes its chunks with something unknown' => $coded,
	'codes a hint and its chunks' => $coded,
	'has a chunk extension without end' => undef,
	'has chunk extensions without end' => undef,
	'has a length of zeros without end' => undef,
	'h2 acknowledges pings without end' => $flood,
	'h2 pings without end' => $flood,
	'h2 has settings without end' => $flood,
	'h2 resets a stream without end' => $flood,
	'h2 has priorities without end' => $flood,
	'h2 widens its window without end' => $flood,
	'h2 has unknown frames without end' => $flood,
	'h2 continues its headers without end' => $flood,
	'h2 continues its headers with lines without end' => $head,
	'h2 refers to a long line without end' => $head,
	'h2 resizes tables without end' => $flood,
	'h2 gives hints without end' => $head,
	'h2 sends headers for a closed stream without end' => undef,
	'h2 answers, and sends empty data without end' => undef,
	'h2 answers, and pads without end' => undef);
my %tls = (
	'tickets' => $much,
	'large ticket' => qr/^the receiver sent too much that is no part of an answer$|^TLS: .*excessive message size/,    # OpenSSL 3.0 refuses it itself
	'key updates' => $much,
	'certificate requests' => $much,
	'renegotiation' => qr/./,
	'large modulus' => qr/^TLS: /,
	'ffdhe8192' => qr/^TLS: /,
	'http/2 unasked' => qr/^the receiver speaks a protocol that was not offered$|^TLS: .*bad extension/,    # OpenSSL 3.0 refuses it itself
	'large' => qr/^the key of a certificate costs too much to verify$/,
	'exponent' => qr/^the key of a certificate costs too much to verify$/,
	'names' => undef,
	'short_names' => qr/^TLS: /,
	'more_names' => qr/^TLS: /);
my %proxy = (
	'proxy has headers without end' => qr/^the proxy sent too much|^the header of the answer is too long/,
	'proxy refuses with a body without end' => qr/^the proxy sent too much|^the proxy answered 407$/);
# Certificates of an endpoint's own
my $own = ", credentials => jsonb_build_object('client_certificate', \$pem\$" . slurp_file("$dir/good.crt") . "\$pem\$, 'client_key', \$pem\$" . slurp_file("$dir/good.key") . "\$pem\$)";
my @only = split /;/, $ENV{ONLY} // '';

$ENV{CERT} = "$dir/good.crt";
$ENV{KEY} = "$dir/good.key";
my $hostile = start_hostile('receivers');
my $n = 0;

# One event for a receiver, once it has begun.
sub suffers
{
	my ($name, $journal, $url, $more, $error) = @_;
	my $endpoint = 'h' . ++$n;
	my $fine = () = $receiver->delivered(path => '/ok/fine');
	my ($begun, $before) = (time, cpu_ticks($worker));

	$receiver->wait_delivered(1 + $fine, path => '/ok/fine');
	ask("SELECT outbox.create_endpoint('$endpoint', '$url', '{$endpoint}', max_attempts => 1, timeout => '20 s', connect_timeout => '20 s'$more)");
	ask("SELECT outbox.emit('$endpoint', '{}')");
	wait_until { lines_of($journal, qr/^\Q$name\E$/) } "$name: it is asked";
	$receiver->wait_delivered($fine + 20, path => '/ok/fine');
	my $seen = wait_sql($node, "SELECT count(*) > 0 FROM outbox.attempts WHERE endpoint = '$endpoint'");
	my ($status, $words) = split /\|/, ask("SELECT status_code, error FROM outbox.attempts WHERE endpoint = '$endpoint' LIMIT 1"), 2;
	my $ticks = cpu_ticks($worker) - $before;
	note(sprintf '%s: %s %s, %d ticks', $name, $status // '', $words // '', $ticks);
	cmp_ok($ticks, '<', 60 + 15 * (time - $begun), "$name: the worker works for a small part of the time");
	if (defined $error) { like($words, $error, $name) }
	else                { ok($seen && $status eq '200' || $status eq '204', "$name: delivered, because the status is there") }
	is(worker_pid($node), $worker, "$name: the worker lives");
	if ($name eq 'certificate requests')
	{
		wait_until { lines_of($journal, qr/^\Q$name\E\ttook/) } "$name: the connection ends";
		my ($taken) = map { /(\d+)$/ } lines_of($journal, qr/^\Q$name\E\ttook/);
		cmp_ok($taken, '<', 64 * 1024, "$name: few of them are answered with a signature");
	}
	if ($name =~ /^has .* without end$/)
	{
		wait_until { lines_of($journal, qr/^\Q$name\E\ttook/) } "$name: the connection is reset";
		my ($taken) = map { /(\d+)$/ } lines_of($journal, qr/^\Q$name\E\ttook/);
		cmp_ok($taken, '<', 16 * 1024 * 1024, "$name: what the worker and the sockets take is bounded");
	}
	die "$name is not bounded\n" unless Test::More->builder->is_passing;    # the next would wait as long
	return;
}

sub picked
{
	my (%of) = @_;
	return grep { my $name = $_; !@only || grep { $name =~ /$_/ } @only } sort keys %of;
}

foreach my $name (picked(%plain))
{
	my $h2 = $name =~ /^h2 /;
	suffers($name, $hostile->{journal}, ($h2 ? 'https' : 'http') . "://localhost:$hostile->{port}{$name}/", $h2 ? $two : '', $plain{$name});
}
foreach my $name (picked(%tls))
{
	my $cert = -e "$dir/$name.crt" ? $name : 'good';
	my $one = start_hostile_tls($name, "$dir/$cert");

	suffers($name, $one->{journal}, "https://localhost:$one->{port}/", $name eq 'certificate requests' ? $own : '', $tls{$name});
}
foreach my $name (picked(%proxy))
{
	$node->append_conf('postgresql.conf', "outbox.proxy = 'http://user:word\@localhost:$hostile->{port}{$name}'");
	$node->reload;
	suffers($name, $hostile->{journal}, 'https://8.8.8.8/', '', $proxy{$name});
}
$node->append_conf('postgresql.conf', "outbox.proxy = ''");
$node->reload;

# The same, where a service of AWS is expected
my $aws_much = qr/^SQS: (?:the receiver sent too much that is no part of an answer|timed out, because its answer took too much of the worker's time)$/;
my %aws = (
	'codes its chunks' => qr/^SQS: its answer has a transfer coding other than chunked$/,
	'has chunk extensions without end' => $aws_much,
	'tickets' => $aws_much,
	'key updates' => $aws_much,
	'large modulus' => qr/^SQS: .*handshake failure/,
	'large' => qr/^SQS: the key of a certificate costs too much to verify$/);
foreach my $name (is_installed('outbox_aws') ? picked(%aws) : ())
{
	my $endpoint = 'h' . ++$n;
	my $cert = -e "$dir/$name.crt" ? $name : 'good';
	my $url = exists $plain{$name} ? "http://127.0.0.1:$hostile->{port}{$name}" : 'https://localhost:' . start_hostile_tls($name, "$dir/$cert")->{port};
	my $fine = () = $receiver->delivered(path => '/ok/fine');

	ask("SELECT outbox.create_endpoint('$endpoint', 'arn:aws:sqs:eu-central-1:123456789012:q', '{$endpoint}', config => '{\"endpoint_url\": \"$url\"}', credentials => '{\"access_key_id\": \"a\", \"secret_access_key\": \"b\"}', format => 'raw', timeout => '20 s', connect_timeout => '20 s')");
	ask("SELECT outbox.emit('$endpoint', '{}')");
	my $said;
	ok(scalar(wait_until {
		$said = ask("SELECT concat_ws(E'\\n', reason, last_error) FROM outbox.stats WHERE endpoint = '$endpoint'");
		grep { $_ =~ $aws{$name} } split /\n/, $said
	} "AWS: $name"), "AWS: $name") or diag($said);
	$receiver->wait_delivered($fine + 20, path => '/ok/fine');
	is(worker_pid($node), $worker, "AWS: $name: the worker lives");
	ask("SELECT outbox.drop_endpoint('$endpoint', discard => true)");
}

# A receiver that says nothing costs nothing, however many events wait for it.
foreach my $name (picked(map { $_ => 1 } 'h2 has a window of 0', 'h2 has no streams'))
{
	my $endpoint = 'h' . ++$n;

	ask("SELECT outbox.create_endpoint('$endpoint', 'https://localhost:$hostile->{port}{$name}/', '{$endpoint}', max_attempts => 1, timeout => '4 s', connect_timeout => '4 s'$two)");
	ask("SELECT count(outbox.emit('$endpoint', jsonb_build_object('x', repeat('y', 10000)), key => 'k' || n)) FROM generate_series(1, 20) n");
	wait_until { lines_of($hostile->{journal}, qr/^\Q$name\E$/) } "$name: it is asked";
	sleeps_meanwhile($worker, 30, "$name: the worker sleeps", sub {
		ok(wait_sql($node, "SELECT count(*) >= 20 FROM outbox.attempts WHERE endpoint = '$endpoint' AND error ~ 'timed out'"), "$name: timed out");
	});
}

# All of them at once, again and again
my @all = picked(%plain);
ask(join ';', map {
	my $h2 = /^h2 /;
	sprintf q{SELECT outbox.create_endpoint('all%d', '%s://localhost:%d/', '{all}', backoff_base => '100 ms', backoff_max => '200 ms', timeout => '20 s'%s)},
	  ++$n, $h2 ? 'https' : 'http', $hostile->{port}{$_}, $h2 ? $two : ''
} @all);
my %begun;
$begun{$_}++ foreach lines_of($hostile->{journal}, qr/./);
my $fine = () = $receiver->delivered(path => '/ok/fine');
ask(q{SELECT count(outbox.emit('all', '{}', key => 'k' || n)) FROM generate_series(1, 100) n});
wait_until {
	my %now;
	$now{$_}++ foreach lines_of($hostile->{journal}, qr/./);
	!grep { $now{$_} < ($begun{$_} // 0) + 3 } @all
} 'all are asked again and again', 120;
$receiver->wait_delivered($fine + 20, path => '/ok/fine');
ok(1, 'the other endpoint gets its events meanwhile');

# A customer whose receivers do so without end, with thousands of events: in a time that the
# other endpoint's events say, the worker works for a part of it.
sub works_little
{
	my ($of) = @_;
	my ($begun, $ticks) = (time, cpu_ticks($worker));

	$fine = () = $receiver->delivered(path => '/ok/fine');
	$receiver->wait_delivered($fine + 300, path => '/ok/fine');
	$ticks = cpu_ticks($worker) - $ticks;
	my $took = 100 * (time - $begun);
	note("$of: $ticks ticks of $took");
	cmp_ok($ticks, '<', 0.4 * $took, "$of: the worker works for a small part of the time");
	return;
}

if (picked('costly' => 1))
{
	my $url = "http://localhost:$hostile->{port}{'has chunk extensions without end'}/";

	ask(join ';', "SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'", map {
		"SELECT outbox.create_endpoint('costly$_', '$url', '{costly}', timeout => '20 s', tenant => 'costly')"
	} 1 .. 4);
	ask(q{SELECT count(outbox.emit('costly', '{}', tenant => 'costly')) FROM generate_series(1, 2000)});
	ok(wait_sql($node, q{SELECT count(*) > 0 FROM outbox.stats WHERE reason LIKE '%too much of the worker%'}), 'an endpoint says that its requests take too much');
	works_little('events');
	cmp_ok(ask(q{SELECT pending FROM outbox.stats WHERE endpoint = 'costly1'}), '>', 0, 'while there is more to send');

	# So are their token servers, although no event waits.
	ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'");
	my $asked = lines_of($hostile->{journal}, qr/^has chunk extensions without end$/);
	ask(join ';', map {
		"SELECT outbox.create_endpoint('token$_', '@{[ $receiver->url('/ok/token') ]}', '{token}', timeout => '20 s', tenant => 'costly', credentials => '{\"client_secret\": \"x\"}', config => '{\"token_url\": \"$url\", \"client_id\": \"me\"}')"
	} 1 .. 40);
	wait_until { $asked < lines_of($hostile->{journal}, qr/^has chunk extensions without end$/) } 'they are asked';
	works_little('tokens');
}
ask("SELECT pg_terminate_backend($worker)");
ok(wait_sql($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $worker"), 'the worker ends');
$receiver->wait_delivered($fine + 40, path => '/ok/fine');

stop_producer($producer);
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'");
is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'fine'"), '0', 'the other endpoint has not noticed anything');
check_history($node, $receiver, $log, endpoints => ['/ok/fine'], max_duplicates => 100, name => 'nothing lost, all in order');
$node->stop;
done_testing();
