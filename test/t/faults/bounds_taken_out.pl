# Without the bounds on a peer, the watchdog and the account of CPU keep it to its own endpoint.
# A shim makes the worker blind for what a receiver sends.  Receivers that such a bound would stop
# meet it then, in calls of libcurl and OpenSSL.  Another endpoint goes on, and so does the server.
# What a shim cannot take out: the limits of a head and of a body, which callbacks of the worker count.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost,IP:127.0.0.1');
@ENV{qw(CERT KEY)} = ("$dir/good.crt", "$dir/good.key");

$ENV{LD_PRELOAD} = shim('blind');
my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\n");
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');
my $session = $node->background_psql('postgres');
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 50, keys => 10);
$receiver->wait_delivered(20, path => '/ok/fine');

# What is taken out, and what is left: the hold of the watchdog; or the account, which lets the
# request end at its timeout.  Which of both comes first depends on how busy the machine is, but
# for the first.
my $held = "state = 'held' AND reason ~ 'did not return within 2 s'";
my $bounded = "$held OR failed_attempts > 0 OR delivered > 0";
my @all = (
	[ 'codes its chunks', 'http', 'refusal of codings', $held ],
	[ 'tickets', 'tls', 'count of messages of TLS', $bounded ],
	[ 'key updates', 'tls', 'count of messages of TLS', $bounded ],
	[ 'h2 acknowledges pings without end', 'h2', 'count of bytes', $bounded ],
	[ 'has chunk extensions without end', 'http', 'count of bytes', $bounded ],
	[ 'large modulus', 'tls', 'choice of groups', $bounded ]);
my $hostile = start_hostile('receivers', map { $_->[0] } grep { $_->[1] ne 'tls' } @all);
my $n = 0;

foreach (@all)
{
	my ($name, $kind, $out, $condition) = @$_;
	my $endpoint = 'h' . ++$n;
	my $one = $kind eq 'tls' ? start_hostile_tls($name, "$dir/good") : { port => $hostile->{port}{$name}, journal => $hostile->{journal} };
	my $scheme = $kind eq 'http' ? 'http' : 'https';
	my $config = $kind eq 'h2' ? '{"http_version": "2"}' : '{}';
	my $fine = () = $receiver->delivered(path => '/ok/fine');

	ask("SELECT outbox.create_endpoint('$endpoint', '$scheme://localhost:$one->{port}/', '{$endpoint.*}', config => '$config', timeout => '10 s', connect_timeout => '10 s')");
	emit($node, "$endpoint.n", '{}');
	wait_until { lines_of($one->{journal}, qr/^\Q$name\E$/) } "$name: it is asked";
	endpoint_shows($node, $endpoint, $condition, "$name, without the $out: its endpoint is bounded");
	note(ask("SELECT concat_ws(', ', state, reason, last_error) FROM outbox.stats WHERE endpoint = '$endpoint'"));
	$receiver->wait_delivered($fine + 100, path => '/ok/fine');
	endpoint_shows($node, 'fine', "state = 'active' AND failed_attempts = 0", "$name: another endpoint goes on");
	ask("SELECT outbox.drop_endpoint('$endpoint', discard => true)");
}

is($session->query_safe('SELECT 1'), 1, 'a session has lived through all of it');
$session->quit;
stop_producer($producer);
check_history($node, $receiver, $log, endpoints => ['/ok/fine'], max_duplicates => 50 * @all, name => 'nothing lost, each key in order');
$node->stop;
unlike(slurp_file($node->logfile), qr/terminating any other active server processes|reinitializing|was terminated by signal/, 'the server has not restarted');
done_testing();
