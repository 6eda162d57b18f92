# Stored credentials go to the servers that they were given for, however another URL is written.
# A role that operates changes URL and config of endpoints to those of an impostor.  Each change is
# refused, or asks for credentials, and the impostor never sees a password or a token.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

my @sinks = grep { is_installed("outbox_$_") } qw(kafka aws);
plan skip_all => 'neither outbox_kafka nor outbox_aws was built' unless @sinks;

my $node = outbox_node('main', conf => "outbox.sinks = '" . join(', ', 'webhook', @sinks) . "'\n");
my $servers = start_hostile('impostor');
my ($own, $other) = map { "127.0.0.1:$servers->{port}{$_}" } qw(rightful impostor);
my $secret = 's3cr3t-of-the-endpoint';

ask($_) foreach documented_roles();
ask('ALTER ROLE operator LOGIN');

# What the server with this name was sent, and has the secret
sub given_away
{
	my ($name) = @_;
	return lines_of($servers->{journal}, qr/^$name\t.*$secret/);
}

# Changes the endpoint without credentials.  Returns what is wrong, "" if it was done.
sub alter
{
	my ($endpoint, $arguments) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.alter_endpoint('$endpoint', $arguments)",
		extra_params => [ '-U', 'operator' ]);
	return $err =~ /ERROR:  (.*)/ ? $1 : '';
}

# Each of these is refused, and what is accepted all the same is shown to reach the impostor.
sub refused
{
	my ($endpoint, $back, @cases) = @_;
	my $patience = 5;

	foreach my $arguments (@cases)
	{
		my $problem = alter($endpoint, $arguments);
		like($problem, qr/^22023: /, "$endpoint, $arguments: refused");
		next if $problem;
		diag('the impostor has it') if $patience && wait_until { given_away('impostor') > 0 } 'the impostor', $patience;
		$patience = 0;
		ask("SELECT outbox.alter_endpoint('$endpoint', $back)");
	}
	return;
}

sub accepted
{
	my ($endpoint, @cases) = @_;
	is(alter($endpoint, $_), '', "$endpoint, $_: done without credentials") foreach @cases;
	return;
}

# After all that: the rightful server gets the secret once more, so the worker has seen each change
sub settled
{
	my ($endpoint, $change) = @_;
	my $before = given_away('rightful');
	ask("SELECT outbox.alter_endpoint('$endpoint', $change)");
	emit($node, $endpoint, '{}');
	ok(wait_until(sub { given_away('rightful') > $before }, 'rightful'), "$endpoint: the server that it was given for gets it");
	is(join("\n", given_away('impostor')), '', "$endpoint: the impostor never does");
	return;
}

SKIP:
{
	skip 'outbox_kafka was not built', 1 unless grep { $_ eq 'kafka' } @sinks;
	my $login = qq(config => '{"sasl": "PLAIN"}', credentials => '{"username": "u", "password": "$secret"}');

	ask("SELECT outbox.create_endpoint('bus', 'kafka://$own/t', '{bus}', $login)");
	refused('bus', "url => 'kafka://$own/t', $login",
		map { "url => '$_'" }
		  "kafka://$other/t", "kafka:?://$other/t", "kafka:#://$other/t", "kafka:x://$other/t", "kafka:/?://$other/t", "kafka:://$other/t",
		"kafkas:?://$other/t", "kafkas:://$other/t", "KAFKA://$other/t", "kafka://$own,$other/t", "kafka://$other,$own/t",
		"kafka://$other?$own/t", "kafka://$own\@$other/t", "kafka://$own#\@$other/t", "kafka:///$other", "kafka:$other", "kafka:/$other/t",
		"kafka://$own\\\@$other/t", "kafka://$own,,$other/t", "kafka://$own ,$other/t", "kafka://$own%2C$other/t", "kafkas://$own/t",
		"kafkas://$other/t", "kafka://127.0.0.1/t", '');
	accepted('bus', "url => 'kafka://$own/other'", "url => 'KAFKA://$own/{topic}'", "url => 'kafka://$own,$own/t'",
		"config => '{\"sasl\": \"PLAIN\", \"tombstones\": true}'", "timeout => '30 s'", "url => 'kafka://$own/t', config => '{\"sasl\": \"PLAIN\"}'");
	settled('bus', "timeout => '20 s'");

	# What a mechanism proves, another one sends
	my $scram = $login =~ s/PLAIN/SCRAM-SHA-512/r;
	ask("SELECT outbox.create_endpoint('scram', 'kafkas://$own/t', '{scram}', $scram)");
	refused('scram', "url => 'kafkas://$own/t', $scram", q(config => '{"sasl": "PLAIN"}'), q(reset => '{config}'), "url => 'kafka://$own/t'",
		"url => 'kafka:?://$own/t'", "url => 'kafkas:?://$own/t'", "url => 'kafkas:://$own/t'", "url => 'kafka://$own/t', config => '{\"sasl\": \"PLAIN\"}'");
	accepted('scram', "reset => '{credentials,config}'", "url => 'kafka://$other/t'");
	ask("SELECT outbox.drop_endpoint('scram', discard => true)");
}

SKIP:
{
	skip 'outbox_aws was not built', 1 unless grep { $_ eq 'aws' } @sinks;
	my $arn = 'arn:aws:sqs:eu-central-1:123456789012';
	my $keys = qq(credentials => '{"access_key_id": "a", "secret_access_key": "b", "session_token": "$secret"}');
	my $at = sub { return qq(config => '{"endpoint_url": "$_[0]"}') };

	ask("SELECT outbox.create_endpoint('queue', '$arn:q', '{queue}', @{[$at->(\"http://$own\")]}, $keys)");
	refused('queue', $at->("http://$own") . ", $keys",
		(map { $at->($_) } "http://$other", "http:?://$other", "https:?://$other", "http:://$other", "https://$own", "http://$own\@$other",
			"http://$own?\@$other", "http://$own/\@$other", "http:$other", '', "HTTP://$other", "http://$own,$other"),
		q(reset => '{config}'), q(config => '{}'), q(config => '{"credentials": "role"}'),
		"url => 'arn:aws:sqs:eu-west-1:123456789012:q', config => '{}'", "url => 'arn:aws-cn:sqs:eu-central-1:123456789012:q', reset => '{config}'",
		"url => 'arn:aws:?://$other'", "url => 'aws://$other/t'", "url => 'https://$other/t'");
	accepted('queue', "url => '$arn:r'", $at->("HTTP://$own/"), $at->("http://$own"), "url => '$arn:q'");
	settled('queue', "timeout => '20 s'");
	ask("SELECT outbox.drop_endpoint('queue', discard => true)");
}

# A URL that a former version has stored does not lead elsewhere than what was checked
if (grep { $_ eq 'kafka' } @sinks)
{
	my $before = given_away('rightful');
	ask("UPDATE outbox.endpoint_settings SET url = 'kafka:?://$other/t', version = version + 1 WHERE name = 'bus'; SELECT outbox.endpoint_changed(0)");
	endpoint_shows($node, 'bus', "state = 'held' AND reason ~ 'names no sink'", 'a stored URL that is none is used for nothing');
	isnt(alter('bus', "url => 'kafka://$other/t'"), '', 'and nothing is known to be the same as it');
	is(alter('bus', "url => 'kafka://$own/t', credentials => '{\"username\": \"u\", \"password\": \"$secret\"}'"), '', 'with credentials it has a good one again');
	ok(wait_until(sub { given_away('rightful') > $before }, 'rightful'), 'which is used');
	is(join("\n", given_away('impostor')), '', 'the impostor has seen nothing');
}

$node->stop;
done_testing();
