# Endpoints of Kafka log in to Amazon MSK with keys of AWS, or with keys of the machine's role.
# A token is made anew before it ends, and goes to no other broker than Amazon's.
# What is wrong is named, events wait, and no attempt is counted.
use strict;
use warnings;

use IPC::Open2;
use JSON::PP;
use OutboxTest;
use OutboxTest::Aws;
use OutboxTest::Network;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();
plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');
own_network();

my $dir = PostgreSQL::Test::Utils::tempdir('msk');
my $region = 'eu-central-1';
my $name = "b-1.shop.a1b2c3.c2.kafka.$region.amazonaws.com";
my $second = $name =~ s/b-1/b-2/r;
my ($zone) = start_dns();
my $n = 0;
my @secrets;
$zone->($name => '127.0.0.1', $second => '127.0.0.1', 'evil.test' => '127.0.0.1');
make_ca($dir, 'authority');
make_cert($dir, 'broker', 'authority', "DNS:$name,DNS:$second,DNS:evil.test,IP:127.0.0.1");
append_to_file("$dir/broker.pem", slurp_file("$dir/broker.key") . slurp_file("$dir/broker.crt"));

# A program that is told lines of JSON: returns a function that tells it, and its port
sub start_told
{
	my (@command) = @_;
	my $pid = open2(my $out, my $in, 'python3', @command);
	push @OutboxTest::Receiver::started, $pid;
	chomp(my $port = <$out>);
	return (
		sub {
			my (%told) = @_;
			print $in encode_json(\%told) . "\n";
			$in->flush;
			return <$out> eq "ok\n";
		},
		$port);
}
my ($broker, $port) = start_told("$top/test/kafka/msk.py", "$dir/logins", "$dir/broker.pem", $region, $name);
my ($metadata, $metadata_port) = start_told("$top/test/aws/metadata.py", "$dir/metadata");

# Keys that MSK knows from now on: an id, a secret and a session token
sub keys_of
{
	my ($id, $with_token) = @_;
	my @keys = ($id, "s/e+c=ret-$id-$$", $with_token ? "tok/en+=$id-$$-" . 'x' x 1500 : undef);
	push @secrets, grep { defined } @keys[ 1, 2 ];
	$broker->(secrets => { $id => [ @keys[ 1, 2 ] ] }) or die 'the stand-in of MSK';
	return @keys;
}

# Other keys of the role from now on, that are good for so many seconds
sub role_keys
{
	my ($lifetime, %more) = @_;
	my @keys = keys_of('ASIA' . ++$n . "X$$", 1);
	$metadata->(keys => [ @keys, $lifetime ], %more) or die 'the metadata service';
	return $keys[0];
}

sub logins
{
	return map { decode_json($_) } split /\n/, -e "$dir/logins" ? slurp_file("$dir/logins") : '';
}

# The server's clock can be set: librdkafka asks for another token after 12 minutes.
my $shim = shim('clock');
my $clock = "$dir/clock";
write_clock($clock, 0);
local $ENV{OUTBOX_CLOCK} = $clock;
local $ENV{AWS_EC2_METADATA_SERVICE_ENDPOINT} = "http://127.0.0.1:$metadata_port/";
$ENV{LD_PRELOAD} = $shim;
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\noutbox.ssl_ca_file = '$dir/authority.crt'\nlog_statement = none\nlog_min_error_statement = panic\n");
delete $ENV{LD_PRELOAD};

sub set
{
	my ($setting, $value) = @_;
	ask("ALTER SYSTEM SET $setting = $value");
	ask('SELECT pg_reload_conf()');
	return ok(wait_sql($node, "SELECT setting = $value FROM pg_settings WHERE name = '$setting'"), "$setting is $value");
}

sub shows
{
	my ($endpoint, $condition, $what) = @_;
	return endpoint_shows($node, $endpoint, $condition, "$endpoint: $what");
}

sub json
{
	my (%object) = @_;
	return "'" . encode_json(\%object) . "'";
}

sub create
{
	my ($endpoint, $host, $config, $credentials) = @_;
	return ask("SELECT outbox.create_endpoint('$endpoint', 'kafkas://$host:$port/t', '{$endpoint}', config => $config, credentials => $credentials)");
}

sub own_keys
{
	my ($id, $secret, $token) = @_;
	return json(access_key_id => $id, secret_access_key => $secret, $token ? (session_token => $token) : ());
}

sub refused
{
	my ($url, $config, $credentials, $words) = @_;
	my ($rc, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('bad', '$url', config => $config, credentials => $credentials)");
	return like($err, qr/ERROR:  22023: .*\Q$words\E.*HINT:/s, "refused: $words");
}

sub delivers
{
	my ($endpoint, $what) = @_;
	return wait_status($node, emit($node, $endpoint, '{}'), 'delivered', "$endpoint: $what");
}

my %iam = (sasl => 'AWS_MSK_IAM');
my $given = own_keys('a', 'b');

# What create_endpoint refuses, and says how to mend
refused("kafkas://$name", json(%iam), $given, 'AWS_MSK_IAM needs the sink aws in outbox.sinks');
set('outbox.sinks', "'webhook, kafka, aws'");
refused("kafka://$name", json(%iam), $given, 'AWS_MSK_IAM is for encrypted connections only');
refused("kafkas://$name", json(%iam), 'NULL', 'credentials without access_key_id or secret_access_key');
refused("kafkas://$name", json(%iam), json(access_key_id => 'a'), 'credentials without access_key_id or secret_access_key');
refused("kafkas://$name", json(%iam, region => 'us-east-1'), $given, 'a broker in the URL is in another region than that of config');
refused("kafkas://$name,b-2.kafka.us-east-1.amazonaws.com", json(%iam), $given, 'brokers in the URL are in different regions');
refused('kafkas://1.1.1.1', json(%iam), $given, 'the region of the brokers is not known');
refused('kafkas://1.1.1.1', json(%iam, region => 'Frankfurt'), $given, 'region in config is no region of AWS');
refused("kafkas://$name", json(%iam, credentials => 'mine'), 'NULL', 'credentials in config is not role');
refused("kafkas://$name", json(%iam, credentials => 'role'), $given, 'it has credentials, and those of a role, too');
refused("kafkas://$name", json(%iam, credentials => 'role'), 'NULL', 'outbox.aws_role is none');
refused("kafkas://$name", json(sasl => 'PLAIN', region => $region), json(username => 'a', password => 'b'), 'it has a region or keys of AWS, and its sasl is not AWS_MSK_IAM');
refused("kafkas://$name", 'NULL', $given, 'it has a region or keys of AWS, and its sasl is not AWS_MSK_IAM');
refused("kafkas://$name", json(%iam), json(username => 'a', password => 'b'), 'username or password, and no sasl in config uses them');

# Keys of its own
my @keys = keys_of('AKIAONE');
create('keyed', '127.0.0.1', json(%iam, region => $region), own_keys(@keys));
delivers('keyed', 'an event is delivered');
my ($login) = logins();
is(join(' ', @$login{qw(key region wrong host X-Amz-Expires User-Agent)}), "AKIAONE $region  kafka.$region.amazonaws.com 900 outbox", 'with a token that MSK finds right');
@keys = keys_of('ASIATWO', 1);
ask("SELECT outbox.alter_endpoint('keyed', credentials => " . own_keys(@keys) . ')');
delivers('keyed', 'temporary keys');
is((logins())[-1]{key}, 'ASIATWO', 'which are used at once');
is(scalar(grep { $_->{wrong} } logins()), 0, 'no login was refused');

# A secret that is wrong, and a region
my $before = logins();
create('wrong', '127.0.0.1', json(%iam, region => $region), own_keys('AKIAONE', 's/e+c=ret-other'));
shows('wrong', "state = 'backing_off' AND reason = 'not authenticated: [4711]: Access denied: the signature is wrong'", "a wrong secret is named in the broker's words");
my $waits = emit($node, 'wrong', '{}');
my @right = own_keys('AKIAONE', "s/e+c=ret-AKIAONE-$$");
like(($node->psql('postgres', "SELECT outbox.alter_endpoint('wrong', config => " . json(%iam, region => 'us-east-1') . ')'))[2],
	qr/the credentials of endpoint "wrong" are not for this URL and config/, 'another region needs credentials of its own');
ask("SELECT outbox.alter_endpoint('wrong', config => " . json(%iam, region => 'us-east-1') . ", credentials => @right)");
shows('wrong', "state = 'backing_off' AND reason = 'not authenticated: [4711]: Access denied: the token is for something else'", 'and so is a wrong region');
ask("SELECT outbox.alter_endpoint('wrong', config => " . json(%iam, region => $region) . ", credentials => @right)");
wait_status($node, $waits, 'delivered', 'wrong: with the right ones it goes on');
shows('wrong', "state = 'active' AND failed_attempts = 0", 'and no attempt was counted');

# A broker that repeats what it was sent
$broker->(words => 'you sent TOKEN');
create('echo', '127.0.0.1', json(%iam, region => $region), own_keys('AKIAONE', 's/e+c=ret-other', 'tok/en-of-nobody-' . 'y' x 300));
shows('echo', qq(reason = 'not authenticated: the broker''s words are not shown, for they repeat a credential'), 'a token that is repeated is not shown');
push @secrets, 'y' x 60;
ask("SELECT outbox.drop_endpoint('echo')");
$broker->(words => undef);

# The keys of the role
my $first = role_keys(3600);
set('outbox.aws_role', "'imds'");
refused("kafkas://$name,1.1.1.1", json(%iam, credentials => 'role'), 'NULL', 'a broker in the URL has no name of Amazon MSK, so it does not get the keys of the role');
refused('kafkas://1.1.1.1', json(%iam, credentials => 'role', region => $region), 'NULL', 'a broker in the URL has no name of Amazon MSK');
create('role', $name, json(%iam, credentials => 'role'), 'NULL');
delivers('role', 'an event is delivered');
is((logins())[-1]{key}, $first, 'with the keys of the machine');
ok(defined((logins())[-1]{'X-Amz-Security-Token'}), 'and its session token');
is(ask(q[SELECT config ->> 'credentials' FROM outbox.endpoints WHERE name = 'role']), 'role', 'views show that it has a role');

# The example of doc/kafka.md
my ($example) = slurp_file("$top/doc/kafka.md") =~ /^```text\n[^`]*?(SELECT outbox\.create_endpoint\([^`]*AWS_MSK_IAM[^`]*?;)\n```/m;
ok($example =~ s/\Q$name\E:9098\/\{topic\}/$name:$port\/t/ && $example =~ s/\{order\.\*\}/{msk}/ && $example =~ s/AKIA…/AKIAONE/ && $example =~ s/"…"/"s\/e+c=ret-AKIAONE-$$"/,
	'the example has what the reader replaces');
ask($example);
delivers('msk', 'the example of doc/kafka.md delivers');

# Keys that end are replaced before, and so is the token
my $short = role_keys(6);
ask('SELECT pg_reload_conf()');
sub logs_in
{
	my ($old, $key, $what) = @_;
	return ok(
		wait_until(
			sub {
				$broker->(drop => $old);
				emit($node, 'role', '{}');
				return grep { $_->{key} eq $key && !$_->{wrong} } logins();
			},
			$what),
		$what) || diag(ask("SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = 'role'"));
}
logs_in($first, $short, 'after a reload there are other keys, and a token of them');
my $next = role_keys(3600);
logs_in($short, $next, 'keys are replaced before they end');
is(scalar(grep { $_->{wrong} && $_->{key} =~ /^ASIA\d/ } logins()), 0, 'no login with keys of the role was refused');

# Keys that MSK does not know any more are fetched again
$broker->(forget => [$next]);
my $other = role_keys(3600);
logs_in($next, $other, 'keys that are refused are fetched again');

# While no keys can be fetched, the old ones are used until they end
my $brief = role_keys(5);
ask('SELECT pg_reload_conf()');
logs_in($other, $brief, 'keys that end soon');
$metadata->(status => 500);
shows('role', "state = 'backing_off' AND reason = 'MSK: no keys of the role (imds): it gives no token (status 500)'", 'a role without keys is named');
$waits = emit($node, 'role', '{"waits": 1}');
shows('role', 'pending >= 1 AND processing = 0', 'its events wait');
delivers('keyed', 'an endpoint with keys of its own goes on');
my $last = role_keys(3600, status => 200);
wait_status($node, $waits, 'delivered', 'role: it goes on by itself');
shows('role', "state = 'active' AND failed_attempts = 0", 'and no attempt was counted');

# A broker that names another one does not get the token there
$broker->(second => 'evil.test', drop => $last);
ok(wait_until(
	sub {
		emit($node, 'role', '{}');
		ask("SELECT reason ~ '^broker evil.test:\\d+ has no name of Amazon MSK in its region' FROM outbox.stats WHERE endpoint = 'role' AND state = 'backing_off'") eq 't';
	},
	'another host'), 'role: another host is named');
delivers('keyed', 'keys of its own go there');
is(scalar(grep { ($_->{server} // '') eq 'evil.test' && $_->{key} =~ /^ASIA\d/ } logins()), 0, 'no token of the role has gone there');
$broker->(second => $second);
shows('role', "state = 'active' AND pending + processing + failed_attempts = 0", 'it goes on when that is named as Amazon names brokers');

# librdkafka asks for a token after most of its 15 minutes
my $signed = POSIX::strftime('%Y%m%dT%H%M%SZ', gmtime);
$broker->(clock => 13 * 60);
write_clock($clock, 13 * 60);
ok(wait_until(
	sub {
		foreach ([ role => $last ], [ keyed => 'ASIATWO' ])
		{
			$broker->(drop => $_->[1], until => $signed);
			emit($node, $_->[0], '{}');
		}
		my %late = map { $_->{key} => 1 } grep { !$_->{wrong} && $_->{'X-Amz-Date'} gt $signed } logins();
		return $late{$last} && $late{ASIATWO};
	},
	'a later token'), 'a token is made anew before it ends');
shows($_, 'failed_attempts = 0', 'and no attempt has failed') foreach qw(role keyed);

# Without the setting there are no keys
set('outbox.aws_role', "'none'");
shows('role', "state = 'backing_off' AND reason = 'MSK: outbox.aws_role is none'", 'the setting is taken back');
set('outbox.sinks', "'webhook, kafka'");
shows('role', "reason = 'AWS_MSK_IAM needs the sink aws in outbox.sinks, which makes its tokens'", 'so is the sink');

# Nothing shows a key
my @relations = all_relations($node, 'outbox.endpoint_secrets');
my ($rc, $text, $err) = $node->psql('postgres', join(";\n", map { "TABLE $_" } @relations), on_error_stop => 0);
$node->stop;
my $log = slurp_file($node->logfile);
my @tokens = map { substr($_->{'X-Amz-Signature'} // die, 0, 30) } logins();
foreach my $where ([ 'tables and views', "$text$err" ], [ 'the log', $log ])
{
	is(scalar(grep { index($where->[1], substr($_, 0, 30)) >= 0 } @secrets, @tokens), 0, "none of the keys is in $where->[0]");
}
unlike($log, qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
