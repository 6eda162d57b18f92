# Endpoints use the keys of a role of the machine, if the server's administrator allows it.
# The keys come from IMDSv2, a container's credentials or a web identity, once for all endpoints,
# and are replaced before they end.  Where they cannot be fetched, events wait, and no attempt is counted.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use IPC::Open2;
use JSON::PP;
use OutboxTest;
use OutboxTest::Aws;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();
my $dir = PostgreSQL::Test::Utils::tempdir('roles');
my $aws = OutboxTest::Aws->new;
my ($account, $n) = ($OutboxTest::Aws::account, 0);
my @secrets;

# What gives out the keys, and its environment
my $pid = open2(my $out, my $in, 'python3', "$top/test/aws/metadata.py", "$dir/journal");
push @OutboxTest::Receiver::started, $pid;
chomp(my $port = <$out>);

sub says
{
	my (%told) = @_;
	print $in encode_json(\%told) . "\n";
	$in->flush;
	return <$out> eq "ok\n";
}

# Other keys from now on, that are good for so many seconds.  AWS knows them and those before.
sub new_keys
{
	my ($lifetime, %more) = @_;
	my @keys = ('ASIA' . ++$n . "X$$", "s/e+c=ret-$n-$$", "tok/en+=$n-$$-" . 'x' x 1500);

	push @secrets, @keys[ 1, 2 ];
	$aws->tell(secrets => { $keys[0] => [ @keys[ 1, 2 ] ] }) or die 'the stand-in of AWS';
	says(keys => [ @keys, $lifetime ], %more);
	return $keys[0];
}

sub asked
{
	my ($pattern) = @_;
	return scalar grep { "$_->{method} $_->{path} $_->{status}" =~ $pattern } map { decode_json($_) } split /\n/, slurp_file("$dir/journal");
}

local $ENV{AWS_EC2_METADATA_SERVICE_ENDPOINT} = "http://127.0.0.1:$port/";
local $ENV{AWS_CONTAINER_CREDENTIALS_FULL_URI} = "http://127.0.0.1:$port/container";
local $ENV{AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE} = "$dir/container";
local $ENV{AWS_WEB_IDENTITY_TOKEN_FILE} = "$dir/web";
local $ENV{AWS_ROLE_ARN} = 'arn:aws:iam::123456789012:role/outbox';
local $ENV{AWS_ENDPOINT_URL_STS} = "http://127.0.0.1:$port/";
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");

sub reload
{
	my ($sql) = @_;
	ask($sql);
	ask('SELECT pg_reload_conf()');
	return;
}

my $role = qq({"credentials": "role", "endpoint_url": "http://127.0.0.1:$aws->{port}"});

sub create
{
	my ($name, $service, $resource) = @_;
	return ask("SELECT outbox.create_endpoint('$name', 'arn:aws:$service:eu-central-1:$account:$resource', '{$name}', format => 'raw', config => '$role')");
}

sub refused
{
	my ($config, $credentials, $words) = @_;
	my ($rc, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('bad', 'arn:aws:sqs:eu-central-1:$account:bad', config => '$config', credentials => $credentials)");
	return like($err, qr/ERROR:  22023: .*\Q$words\E.*HINT:/s, "refused: $words");
}

# The key that the last request to this queue was signed with
sub signed_with
{
	my ($resource) = @_;
	my @requests = $aws->requests($resource);
	return @requests && $requests[-1]{authorization} =~ m{Credential=([^/]+)/} ? $1 : '';
}

sub delivers
{
	my ($endpoint, $name) = @_;
	return wait_status($node, emit($node, $endpoint, '{}'), 'delivered', $name);
}

# The server's administrator decides
refused('{"credentials": "role"}', 'NULL', 'outbox.aws_role is none');
my ($rc, $text, $err) = $node->psql('postgres', 'SET outbox.aws_role = imds');
like($err, qr/cannot be changed now/, 'no session can set it');
is(asked(qr/./), 0, 'without it nothing is asked');
my $first = new_keys(3600);
reload('ALTER SYSTEM SET outbox.aws_role = imds');
ok(wait_sql($node, "SELECT current_setting('outbox.aws_role') = 'imds'"), 'it is set');
refused('{"credentials": "imds"}', 'NULL', 'credentials in config is not role');
refused('{"credentials": "role"}', $OutboxTest::Aws::keys, 'it has credentials, and those of a role, too');
refused('{}', 'NULL', 'credentials without access_key_id or secret_access_key');
is(asked(qr/./), 0, 'without an endpoint that uses it nothing is asked');

# IMDSv2: a token, the name, the keys
create('orders', 'sqs', 'orders');
delivers('orders', 'an event is delivered with the keys of the machine');
is(signed_with('orders'), $first, 'signed with them');
cmp_ok(asked(qr{^PUT /latest/api/token 200$}), '>=', 1, 'a token was asked for');
is(asked(qr{ 40}), 0, 'nothing was asked without it');
my $fetched = asked(qr{^GET .*/outbox-role 200$});
create($_, 'sqs', $_) foreach qw(second third);
create('topic', 'sns', 'topic');
delivers($_, "another endpoint: $_") foreach qw(second third topic);
is(asked(qr{^GET .*/outbox-role 200$}), $fetched, 'all endpoints share the keys of one fetch');
is(ask(q[SELECT config ->> 'credentials' FROM outbox.endpoints WHERE name = 'orders']), 'role', 'views show that it has a role');

# Keys that end are replaced before
my $short = new_keys(6);
reload('SELECT 1');
ok(wait_until(sub { emit($node, 'orders', '{}'); signed_with('orders') eq $short }, 'reloaded'), 'a reload fetches keys anew');
my $next = new_keys(3600);
ok(wait_until(sub { emit($node, 'orders', '{}'); signed_with('orders') eq $next }, 'replaced'), 'keys are replaced by themselves');
is(ask('SELECT sum(failed_attempts) FROM outbox.stats'), '0', 'and nothing has failed');
is(scalar(grep { $_->{status} != 200 } $aws->requests('orders')), 0, 'nor was a request refused');

# While no others can be fetched, the old ones are used until they end
says(status => 500);
reload('SELECT 1');
ok(wait_until(sub { asked(qr{ 500$}) > 0 }, 'refused'), 'no others can be fetched');
delivers('orders', 'the old ones are still used');
is(signed_with('orders'), $next, 'the old ones');
my $brief = new_keys(8, status => 200);
reload('SELECT 1');
ok(wait_until(sub { emit($node, 'orders', '{}'); signed_with('orders') eq $brief }, 'brief'), 'keys that end soon');
says(status => 500);
endpoint_shows($node, 'orders', "state = 'backing_off' AND reason = 'SQS: no keys of the role (imds): it gives no token (status 500)'", 'are used until they end');
my $waits = emit($node, 'orders', '{"waits": 1}');
endpoint_shows($node, 'orders', 'pending >= 1 AND processing = 0', 'its events wait');
my $seen = $aws->requests('orders');
says(hang => 5);
create('keyed', 'sqs', 'keyed');
ask("SELECT outbox.alter_endpoint('keyed', config => '{\"endpoint_url\": \"http://127.0.0.1:$aws->{port}\"}', credentials => $OutboxTest::Aws::keys)");
delivers('keyed', 'an endpoint with keys of its own goes on');
endpoint_shows($node, 'orders', "reason ~ 'imds.: timed out'", 'also while the service does not answer');
says(hang => 0);
is(scalar $aws->requests('orders'), $seen, 'nothing was sent meanwhile');
my $last = new_keys(3600, status => 200);
wait_status($node, $waits, 'delivered', 'it goes on by itself');
endpoint_shows($node, 'orders', "state = 'active' AND failed_attempts = 0", 'and no attempt has failed');

# Keys that AWS refuses are fetched again
$aws->tell(forget => [$last]);
my $other = new_keys(3600);
delivers('orders', 'keys that AWS does not know any more are replaced');
is(signed_with('orders'), $other, 'by those that it knows');
endpoint_shows($node, 'orders', 'failed_attempts = 0', 'and no attempt has failed');

# A service that repeats the token
$aws->tell(rules => [ { status => 403, code => 'AccessDenied', message => "you sent $secrets[-1]" } ]);
my $told = emit($node, 'orders', '{}');
endpoint_shows($node, 'orders', "state = 'backing_off' AND reason = 'SQS: its words have the session token in them'", 'a token that is repeated is not shown');
$aws->tell(rules => []);
wait_status($node, $told, 'delivered', 'and the endpoint goes on');

# What the service may say
foreach my $bad ([ raw => '<html>a portal</html>', 'the answer is no JSON' ], [ raw => '{"Code": "Failed"}', 'the answer has no keys' ],
	[ raw => '{"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c\r\nX-Evil: 1", "Expiration": "2099-01-01T00:00:00Z"}', 'the answer has no keys' ],
	[ raw => '{"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "' . 'c' x 9000 . '", "Expiration": "2099-01-01T00:00:00Z"}', 'the answer has no keys' ],
	[ raw => '{"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c", "Expiration": "2001-01-01T00:00:00Z"}', 'the keys have ended' ],
	[ raw => '{"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c", "Expiration": "soon"}', 'the answer does not say when the keys end' ],
	[ raw => 'x' x (2 * 1024 * 1024), 'its answer is too long' ], [ name => '../../user-data', 'the name of the role cannot be used' ],
	[ name => 'a b', 'the name of the role cannot be used' ], [ name => '', 'the machine has no role (status 404)' ], [ status => 302, 'it gives no token (status 302)' ])
{
	my ($what, $value, $words) = @$bad;
	$words =~ s/ \(status 404\)//;
	says(raw => undef, name => 'outbox-role', status => 200, $what => $value);
	reload('ALTER SYSTEM SET outbox.aws_role = none');
	endpoint_shows($node, 'orders', "reason = 'SQS: outbox.aws_role is none'", 'without the setting there are no keys');
	reload('ALTER SYSTEM SET outbox.aws_role = imds');
	endpoint_shows($node, 'orders', "state = 'backing_off' AND reason = 'SQS: no keys of the role (imds): $words'", "refused: $words");
}
is(asked(qr/elsewhere|user-data/), 0, 'a redirection is not followed, nor another path asked');
says(raw => undef, status => 200, name => 'outbox-role');
endpoint_shows($node, 'orders', "state = 'active'", 'it goes on when all is right');

# A container's credentials
my $container = new_keys(3600, wants => 'Basic container-token-1');
append_to_file("$dir/container", "Basic container-token-1\n");
push @secrets, 'container-token-1', 'web-token-1', 'web-token-wrong';
reload('ALTER SYSTEM SET outbox.aws_role = container');
ok(wait_until(sub { emit($node, 'orders', '{}'); signed_with('orders') eq $container }, 'container'), 'the keys of a container');
$container = new_keys(3600, wants => 'container-token-2');
reload('SELECT 1');
unlink "$dir/container";
append_to_file("$dir/container", 'container-token-2');
ok(wait_until(sub { emit($node, 'orders', '{}'); signed_with('orders') eq $container }, 'token'), 'its token is read each time');

# A web identity
append_to_file("$dir/web", 'web-token-wrong');
my $web = new_keys(3600, wants => 'web-token-1');
reload('ALTER SYSTEM SET outbox.aws_role = web_identity');
endpoint_shows($node, 'orders', "state = 'backing_off' AND reason = 'SQS: no keys of the role (web_identity): STS: InvalidIdentityToken'", 'a token that STS refuses');
unlink "$dir/web";
endpoint_shows($node, 'orders', "reason = 'SQS: no keys of the role (web_identity): the file AWS_WEB_IDENTITY_TOKEN_FILE cannot be used'", 'a token that is missing');
append_to_file("$dir/web", "web-token-1\n");
ok(wait_until(sub { emit($node, 'orders', '{}'); signed_with('orders') eq $web }, 'web identity'), 'the keys of a web identity');
reload('ALTER SYSTEM SET outbox.aws_role = none');
endpoint_shows($node, 'orders', "reason = 'SQS: outbox.aws_role is none'", 'its keys are forgotten');

# Hostile ones, while webhooks go on in the same worker
my $receiver = OutboxTest::Receiver->new('web');
endpoint($node, $receiver, 'web', '/ok/web', "topics => '{web}'");
my $worker = worker_pid($node);
my ($long, $none) = ('its answer is too long', 'it gives no keys .status 403.');
my %hostile = (
	(map { ("sqs: sends $_ without end" => $long) } 'headers', 'a header', '100 Continue', 'trailers', 'a body'),
	'sqs: sends chunks without end' => "timed out|$long",
	'sqs: sends zeros without end' => '.',
	'sqs: sends a byte now and then' => 'timed out',
	'sqs: stops in the middle of the headers' => 'timed out',
	'sqs: closes in the middle of a chunk' => '.',
	'sqs: pads its answer to 2 MiB' => $long,
	'sqs: codes its chunks' => 'its answer has a transfer coding other than chunked',
	'sqs: refuses in 100,000 letters' => $none,
	'sqs: answers 50,000 levels deep' => 'the answer is no %s',
	'sqs: names 10,000 others' => 'the answer has no keys|the answer is no %s',
	'sns: answers 80,000 levels deep' => 'the answer is no %s',
	'sns: has entities that grow' => 'the answer is no %s',
	'sns: has a name of 100,000 letters' => 'the answer is no %s');
foreach my $source (qw(container web_identity))
{
	foreach my $name (sort keys %hostile)
	{
		next if $source eq 'web_identity' && $name eq 'sqs: stops in the middle of the headers';    # 10 s, as the one before
		my $words = sprintf $hostile{$name}, $source eq 'container' ? 'JSON' : 'XML';
		my $before = asked(qr/ \Q$name\E$/);

		says(hostile => $name);
		reload("ALTER SYSTEM SET outbox.aws_role = $source");
		wait_until { asked(qr/ \Q$name\E$/) > $before } "$source: $name";
		wait_status($node, emit($node, 'web', '{}'), 'delivered', "$source: $name: webhooks go on");
		endpoint_shows($node, 'orders', "reason ~ '^SQS: no keys of the role .$source.: ($words)'", "$source: $name: it is said");
	}
}
says(hostile => undef);
is(worker_pid($node), $worker, 'the worker has lived through all of it');
endpoint_shows($node, 'orders', "state = 'active'", 'a good service is asked again');
reload('ALTER SYSTEM SET outbox.aws_role = none');
endpoint_shows($node, 'orders', "reason = 'SQS: outbox.aws_role is none'", 'its keys are forgotten');

reload("ALTER SYSTEM SET outbox.allowed_networks = '10.99.0.0/16'");
reload('ALTER SYSTEM SET outbox.aws_role = web_identity');
endpoint_shows($node, 'orders', "reason ~ 'web_identity.: address 127.0.0.1 is loopback'", 'STS is at an address that is judged as others');
reload('ALTER SYSTEM RESET outbox.allowed_networks');
endpoint_shows($node, 'orders', "state = 'active'", 'until that is allowed');

# No other address is a metadata service's, whatever the environment says
delete local $ENV{AWS_CONTAINER_CREDENTIALS_FULL_URI};
$ENV{AWS_EC2_METADATA_SERVICE_ENDPOINT} = 'http://192.0.2.1';
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
my $tickets = start_hostile_tls('tickets', "$dir/good");
$ENV{AWS_ENDPOINT_URL_STS} = "https://localhost:$tickets->{port}/";
reload("ALTER SYSTEM SET outbox.ssl_ca_file = '$dir/authority.crt'");
reload("ALTER SYSTEM SET outbox.allowed_networks = '0.0.0.0/0'");
reload('ALTER SYSTEM SET outbox.aws_role = imds');
$node->restart;
endpoint_shows($node, 'orders', "reason = 'SQS: no keys of the role (imds): 192.0.2.1 is no address of a metadata service'", 'another address is not asked');
reload('ALTER SYSTEM SET outbox.aws_role = container');
endpoint_shows($node, 'orders', "reason ~ 'AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and'", 'nor a container without an address');

# Nor does one hold up the worker by TLS
reload('ALTER SYSTEM SET outbox.aws_role = web_identity');
endpoint_shows($node, 'orders', "reason ~ 'web_identity.: (the receiver sent too much that is no part of an answer|timed out, because its answer took too much)'", 'tickets of TLS without end');
wait_status($node, emit($node, 'web', '{}'), 'delivered', 'webhooks go on');

# Nothing shows a key
my @relations = all_relations($node);
($rc, $text, $err) = $node->psql('postgres', join(";\n", map { "TABLE $_" } @relations), on_error_stop => 0);
$node->stop;
my $log = slurp_file($node->logfile);
foreach my $where ([ 'tables and views', "$text$err" ], [ 'the log', $log ])
{
	is(scalar(grep { index($where->[1], substr($_, 0, 30)) >= 0 } @secrets), 0, "$where->[0] have none of the keys");
}
unlike($log, qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
