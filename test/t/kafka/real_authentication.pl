# Kafka lets in endpoints that authenticate: PLAIN, SCRAM, OAUTHBEARER, MSK IAM, a certificate.
# A wrong password, or a right that is missing, is named within two seconds.  No event fails
# for it, and the right one goes on.  No log, view or error has a credential.  "make clients"
# fetches Kafka, and runs this.
use strict;
use warnings;

use IPC::Open2;
use MIME::Base64 qw(encode_base64url);
use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $jars = OutboxTest::Kafka::needed();
my $dir = PostgreSQL::Test::Utils::tempdir('kafka');
my $old = qx{pkg-config --modversion rdkafka} =~ /^(\d+)\.(\d+)\.(\d+)/ && $1 * 10000 + $2 * 100 + $3 < 20601;
my %secret = (
	alice => 'alice-s3cr3t-4711', bob => 'bob-s3cr3t-4712', wrong => 'wrong-s3cr3t-4713',
	access => 's3cr3t/+=4714', session => 'session/+=4715' . 'x' x 500,
	token => join('.', map { encode_base64url($_) } '{"alg":"none"}',
		'{"sub":"alice","iat":' . (int(time) - 60) . ',"exp":' . (int(time) + 3600) . '}') . '.');

# An authority, the broker's certificate and a client's
sub openssl
{
	my ($command) = @_;
	return system("cd $dir && openssl $command >> $dir/openssl.log 2>&1") == 0 || die "openssl $command\n";
}
openssl('req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem');
foreach my $name (qw(broker client))
{
	append_to_file("$dir/$name.ext", "subjectAltName=IP:127.0.0.1\n");
	openssl("req -newkey rsa:2048 -nodes -subj /CN=$name -keyout $name.key -out $name.csr");
	openssl("x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $name.ext -out $name.pem");
}
append_to_file("$dir/broker.both", slurp_file("$dir/broker.key") . slurp_file("$dir/broker.pem"));

# What checks tokens for MSK, with botocore, for a class in the broker
my $libraries = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/aws';
my $judge = 0;
mkdir "$dir/classes";
if (-e "$libraries/complete" && system("javac -cp '$jars/*' -d $dir/classes $top/test/kafka/MskValidator.java") == 0)
{
	local $ENV{PYTHONPATH} = $libraries;
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	my $pid = open2(my $out, my $in, '/usr/bin/python3', "$top/test/kafka/msk_judge.py", 'eu-central-1',
		qq({"AKIAKEY": ["$secret{access}", null], "ASIAKEY": ["$secret{access}", "$secret{session}"]}));
	push @OutboxTest::Receiver::started, $pid;
	chomp($judge = <$out> // 0);
}
$ENV{KAFKA_CLASSES} = "$dir/classes";

my ($kafka, %address);

# Starts a broker of these jars, in a directory of its own
sub start_kafka
{
	my ($jars) = @_;

	$kafka = OutboxTest::Kafka->new(
		jars => $jars,
		listeners => { SASL => 'SASL_PLAINTEXT', SASLTLS => 'SASL_SSL', TLS => 'SSL', $judge ? (MSK => 'SASL_SSL') : () },
		format => [ map { ('--add-scram', "SCRAM-SHA-$_=[name=bob,password=$secret{bob}]") } 256, 512 ],
		conf => <<"CONF");
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
ssl.keystore.type=PEM
ssl.keystore.location=$dir/broker.both
ssl.truststore.type=PEM
ssl.truststore.location=$dir/ca.pem
listener.name.tls.ssl.client.auth=required
@{[ map { my $listener = $_; <<"SASL" } qw(sasl sasltls) ]}
listener.name.$listener.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.$listener.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="$secret{alice}" user_bob="$secret{bob}";
listener.name.$listener.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.$listener.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.$listener.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
SASL
@{[ $judge ? <<"MSK" : '' ]}
listener.name.msk.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.msk.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker" judge="http://127.0.0.1:$judge/";
listener.name.msk.oauthbearer.sasl.server.callback.handler.class=MskValidator
MSK
CONF
	@address{qw(plain sasl sasl_tls tls msk)} = map { $kafka->address($_) } qw(OPEN SASL SASLTLS TLS MSK);
	return $kafka->topic('events', 3);
}

mkdir "$dir/files";
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka, aws'\noutbox.secrets_directory = '$dir/files'\noutbox.ssl_ca_file = '$dir/ca.pem'\nlog_statement = none\nlog_min_error_statement = panic\n");
my ($rc, $out, $err);

sub stats
{
	my ($endpoint, $condition, $name) = @_;
	return ok(wait_until(sub { ask("SELECT $condition FROM outbox.stats WHERE endpoint = '$endpoint'") eq 't' }, $name, 60), $name)
	  || diag(ask("SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = '$endpoint'"));
}

# An endpoint with these settings.  Returns what it was told.
sub make
{
	my ($name, $url, $config, $credentials) = @_;
	($rc, $out, $err) = $node->psql('postgres',
		"SELECT outbox.create_endpoint('$name', '$url/events', '{$name.*}', format => 'raw', timeout => '60 s', config => $config, credentials => $credentials)");
	is($rc, 0, "$name: created") or diag($err);
	return $err;
}

sub sasl { return qq('{"sasl": "$_[0]"}') }
sub user { return qq('{"username": "$_[0]", "password": "$_[1]"}') }

sub emits
{
	my ($name, $from, $to) = @_;
	ask("SELECT count(outbox.emit('$name.x', jsonb_build_object('n', n), key => 'k' || n % 500)) FROM generate_series($from, $to) n");
	return;
}

sub delivers
{
	my ($name, $count) = @_;
	emits($name, 1, $count);
	return stats($name, "state = 'active' AND delivered = $count AND failed_attempts = 0", "$name: events are delivered");
}

# How long after now it is shown, in seconds
sub refused
{
	my ($name, $words) = @_;
	my $since = time;
	stats($name, "state = 'backing_off' AND reason ~ '$words'", "$name: refused, and the reason says why");
	note(sprintf("%s: shown after %.2f s: %s", $name, time - $since, ask("SELECT reason FROM outbox.stats WHERE endpoint = '$name'")));
	cmp_ok(time - $since, '<', 10, "$name: soon");
	return;
}

start_kafka($jars);    # Kafka 4

# PLAIN
make('plain', "kafka://$address{sasl}", sasl('PLAIN'), user('alice', $secret{alice}));
delivers('plain', 100);

# A wrong password, with the same brokers
make('wrong', "kafka://$address{sasl}", sasl('PLAIN'), user('bob', $secret{wrong}));
refused('wrong', '^not authenticated: Authentication failed');
emits('wrong', 1, 200);
stats('wrong', "pending = 200 AND processing = 0 AND failed_attempts = 0 AND retrying = 0", 'wrong: its events wait');
emits('plain', 101, 200);
stats('plain', "delivered = 200 AND state = 'active'", 'the endpoint with the right password goes on');
my $since = time;
ask("SELECT outbox.alter_endpoint('wrong', credentials => " . user('bob', $secret{bob}) . ')');
stats('wrong', "delivered = 200 AND failed_attempts = 0 AND state = 'active'", 'with the right one, all are delivered');
note(sprintf('with the right password delivered after %.2f s', time - $since));
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = 'wrong' AND error IS NOT NULL"), '0', 'and no attempt had failed');

# A password that is withdrawn from an endpoint with events under way
emits('wrong', 201, 2000);
ask("SELECT outbox.alter_endpoint('wrong', credentials => " . user('bob', $secret{wrong}) . ')');
emits('wrong', 2001, 2200);
refused('wrong', '^not authenticated: Authentication failed');
ask("SELECT outbox.alter_endpoint('wrong', credentials => " . user('bob', $secret{bob}) . ')');
stats('wrong', "delivered = 2200 AND failed_attempts = 0 AND state = 'active'", 'back and forth, and nothing is lost');
make('unknown', "kafka://$address{sasl}", 'NULL', 'NULL');
refused('unknown', 'isconnected');
ask("SELECT outbox.drop_endpoint('unknown')");

# A right that is withdrawn, and given back
my @acl = ('--deny-principal', 'User:alice', '--operation', 'Write', '--topic', 'closed');
$kafka->topic('closed', 3);
ask("SELECT outbox.create_endpoint('acl', 'kafka://$address{sasl}/closed', '{acl.*}', config => " . sasl('PLAIN') . ', credentials => ' . user('alice', $secret{alice}) . ')');
delivers('acl', 1000);
ok($kafka->command(1, 'acl', '--add', @acl), 'the right to write is withdrawn') or diag($kafka->log(1));
my $n = 1000;
wait_until
{
	# brokers learn of it a little later
	emits('acl', $n + 1, $n + 100);
	$n += 100;
	ask("SELECT state = 'backing_off' FROM outbox.stats WHERE endpoint = 'acl'") eq 't'
}
'the sink is refused';
refused('acl', '^Kafka refuses topic closed: Broker: Topic authorization failed');
ok($kafka->command(1, 'acl', '--remove', '--force', @acl), 'it is given back') or diag($kafka->log(1));
stats('acl', "delivered = $n AND failed_attempts = 0 AND state = 'active'", 'all events are delivered, and no attempt has failed');
my (%at, $back);
foreach my $record ($kafka->records('closed'))
{
	$back++ if ($at{ $record->{key} } // 0) >= $record->{n};
	$at{ $record->{key} } = $record->{n};
}
is($back // 0, 0, 'each once, in the order of its key');

# A user that may write nothing anywhere, so that it gets no number as a producer
my @nothing = ('--deny-principal', 'User:bob', '--operation', 'Write', '--topic', '*');
my @number = ('--deny-principal', 'User:bob', '--operation', 'IdempotentWrite', '--cluster');
ok($kafka->command(1, 'acl', '--add', @$_), 'every right to write is withdrawn') or diag($kafka->log(1)) foreach \@nothing, \@number;
make('nothing', "kafka://$address{sasl}", sasl('PLAIN'), user('bob', $secret{bob}));
ask("SELECT outbox.alter_endpoint('nothing', timeout => '50 s')");    # a producer of its own
refused('nothing', '^Kafka refuses this producer: Broker: Cluster authorization failed');
emits('nothing', 1, 100);
stats('nothing', 'pending = 100 AND failed_attempts = 0', 'its events wait');
ok($kafka->command(1, 'acl', '--remove', '--force', @$_), 'they are given back') or diag($kafka->log(1)) foreach \@nothing, \@number;
stats('nothing', "delivered = 100 AND failed_attempts = 0 AND state = 'active'", 'then all events are delivered, and no attempt has failed');
ask("SELECT outbox.drop_endpoint('nothing')");

# TLS: with a password, and with a certificate
make('sasl_tls', "kafkas://$address{sasl_tls}", sasl('PLAIN'), user('alice', $secret{alice}));
delivers('sasl_tls', 100);
make('tls', "kafkas://$address{tls}", 'NULL',
	"jsonb_build_object('client_certificate', \$pem\$" . slurp_file("$dir/client.pem") . "\$pem\$, 'client_key', \$pem\$" . slurp_file("$dir/client.key") . "\$pem\$)");
delivers('tls', 100);
make('no_certificate', "kafkas://$address{tls}", 'NULL', 'NULL');
refused('no_certificate', 'certificate');
make('no_pem', "kafkas://$address{tls}", 'NULL', "'{\"client_certificate\": \"$secret{wrong}\", \"client_key\": \"$secret{wrong}\"}'");
refused('no_pem', 'librdkafka');

# A token
make('token', "kafka://$address{sasl}", sasl('OAUTHBEARER'), "'{\"token\": \"$secret{token}\"}'");
delivers('token', 100);
make('no_token', "kafka://$address{sasl}", sasl('OAUTHBEARER'), "'{\"token\": \"a.$secret{wrong}.c\"}'");
refused('no_token', '^not authenticated: ');

# A token that is signed with keys of AWS, as botocore signs it
SKIP:
{
	skip("no javac, or no botocore in $libraries", 1) unless $judge;
	my $iam = q('{"sasl": "AWS_MSK_IAM", "region": "eu-central-1"}');
	make('msk', "kafkas://$address{msk}", $iam, qq('{"access_key_id": "AKIAKEY", "secret_access_key": "$secret{access}"}'));
	delivers('msk', 100);
	make('msk_session', "kafkas://$address{msk}", $iam, qq('{"access_key_id": "ASIAKEY", "secret_access_key": "$secret{access}", "session_token": "$secret{session}"}'));
	delivers('msk_session', 100);
	make('msk_wrong', "kafkas://$address{msk}", $iam, qq('{"access_key_id": "AKIAKEY", "secret_access_key": "$secret{wrong}"}'));
	refused('msk_wrong', '^not authenticated: .*Access denied: the signature is wrong');
	make('msk_elsewhere', "kafkas://$address{msk}", q('{"sasl": "AWS_MSK_IAM", "region": "us-east-1"}'), qq('{"access_key_id": "AKIAKEY", "secret_access_key": "$secret{access}"}'));
	refused('msk_elsewhere', '^not authenticated: .*Access denied: the token is for something else');
}

# A password and a token that are in files, which others replace
sub put
{
	my ($file, $text) = @_;
	append_to_file("$dir/files/.new", "$text\n");
	return rename("$dir/files/.new", "$dir/files/$file") || die "$file: $!";
}
make('file', "kafka://$address{sasl}", sasl('PLAIN'), q('{"username": "bob", "password": {"file": "kafka.pw"}}'));
refused('file', '^password: the file kafka.pw does not exist');
put('kafka.pw', $secret{wrong});
refused('file', '^not authenticated: Authentication failed');
put('kafka.pw', $secret{bob});
delivers('file', 100);
put('kafka.token', "a.$secret{wrong}.c");
make('token_file', "kafka://$address{sasl}", sasl('OAUTHBEARER'), q('{"token": {"file": "kafka.token"}}'));
refused('token_file', '^not authenticated: ');
put('kafka.token', $secret{token});
delivers('token_file', 100);

# SCRAM, which depends on the age of librdkafka
foreach my $bits (256, 512)
{
	my $told = make("scram$bits", "kafka://$address{sasl}", sasl("SCRAM-SHA-$bits"), user('bob', $secret{bob}));
	if ($old)
	{
		like($told, qr/NOTICE:  this server has a librdkafka older than 2\.6\.1, whose SCRAM Kafka 4 refuses/, 'an old librdkafka is named at once');
		refused("scram$bits", '^librdkafka [0-9.]+ cannot use SCRAM with Kafka 4, or: Authentication failed');
		emits("scram$bits", 1, 10);
		stats("scram$bits", 'pending = 10 AND failed_attempts = 0', 'and events wait');
		next;
	}
	unlike($told, qr/NOTICE/, 'nothing to say');
	delivers("scram$bits", 100);
}
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name LIKE 'scram%'");
my %records;
foreach (split /\n/, qx(kcat -C -q -e -b $address{plain} -t events -o beginning -f '%h %s\\n'))
{
	$records{"$1 $2"}++ if /outbox-topic=(\w+)\..*"n": (\d+)/;
}
is(scalar(grep { /^wrong / } keys %records), 2200, 'all records of the endpoint whose password went back and forth are there');
$kafka->stop('TERM');

SKIP:
{
	skip("no Kafka 3 in ${jars}3: Maven could not fetch it", 1) unless -e "${jars}3/complete";
	start_kafka("${jars}3");
	foreach my $bits (256, 512)
	{
		make("scram$bits", "kafka://$address{sasl}", sasl("SCRAM-SHA-$bits"), user('bob', $secret{bob}));
		delivers("scram$bits", 100);
		make("wrong$bits", "kafkas://$address{sasl_tls}", sasl("SCRAM-SHA-$bits"), user('bob', $secret{wrong}));
		refused("wrong$bits", $old ? 'cannot use SCRAM with Kafka 4, or: Authentication failed' : '^not authenticated: Authentication failed');
		emits("wrong$bits", 1, 10);
		ask("SELECT outbox.alter_endpoint('wrong$bits', credentials => " . user('bob', $secret{bob}) . ')');
		stats("wrong$bits", "delivered = 10 AND failed_attempts = 0", 'the right password');
	}
	$kafka->stop('TERM');
}

# Nothing shows a credential
my @views = split /\n/, ask("SELECT c.oid::regclass FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v', 'm') AND relname <> 'endpoint_secrets'");
my $shown = join "\n", map { ask("SELECT to_jsonb(t) FROM $_ t") } @views;
my $log = slurp_file($node->logfile);
foreach my $name (sort keys %secret)
{
	is(index($shown, $secret{$name}), -1, "no view shows the credential $name");
	is(index($log, $secret{$name}), -1, "... nor the log");
}
unlike("$shown$log", qr/PRIVATE KEY/, 'nor a key');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
