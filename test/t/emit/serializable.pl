# SERIALIZABLE transactions for endpoints, tenants and keys that never meet do not fail.
# doc/limits.md names those that may.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use Test::More;

my $node = outbox_node('main', conf => $ENV{CONF} // '');
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/ok/one');
my $many = $ENV{ENDPOINTS} // 200;
my $rounds = $ENV{ROUNDS} // 4;

# Each endpoint has a tenant of its own, a dead letter and a delivered event.
$node->safe_psql('postgres', <<SQL);
SELECT count(outbox.create_endpoint('e' || n, '$url', topics => '{load.*}', tenant => 't' || n, max_attempts => 1))
FROM generate_series(1, $many) n;
SELECT count(outbox.create_endpoint(name || n, '$url', topics => '{none.*}', tenant => 't' || n))
FROM generate_series(1, $rounds + $many / 2) n, unnest('{old,gone}'::text[]) name;
CREATE TABLE changed (id int PRIMARY KEY, customer text);
CREATE TRIGGER emit AFTER INSERT ON changed FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('load.row', 'customer', 'id', 'customer');
SQL
$receiver->control(path => '/ok/one', behave => '/status/500');
$node->safe_psql('postgres', "SELECT count(outbox.emit('load.dead', '{}', tenant => 't' || n)) FROM generate_series(1, $many) n, generate_series(1, 3)");
ok(wait_sql($node, "SELECT sum(dead) = 3 * $many FROM outbox.stats"), 'dead letters');
$receiver->control(path => '/ok/one', behave => '/ok');
$node->safe_psql('postgres', "SELECT count(outbox.emit('load.ok', '{}', tenant => 't' || n)) FROM generate_series(1, $many) n");
ok(wait_sql($node, "SELECT sum(delivered) = $many FROM outbox.stats"), 'delivered');
$node->safe_psql('postgres', "SELECT count(outbox.emit('load.later', '{}', tenant => 't' || n, deliver_at => now() + interval '1 day')) FROM generate_series(1, $many) n");
$node->safe_psql('postgres', "SELECT count(outbox.emit('load.one', '{}', dedup_key => 'used' || n)) FROM generate_series(1, $many) n");
$node->safe_psql('postgres', 'VACUUM ANALYZE');
my %id;
foreach (split /\n/, $node->safe_psql('postgres', "SELECT DISTINCT ON (topic, tenant) topic, tenant, id FROM outbox.all_events UNION ALL SELECT topic, tenant, id FROM outbox.scheduled"))
{
	my ($topic, $tenant, $id) = split /\|/;
	$id{$topic}{$tenant} = $id;
}

my @calls = (
	[ 'emit', "SELECT outbox.emit('load.one', '{}', key => 'k%d', tenant => 't%d')" ],
	[ 'emit, dedup_key', "SELECT outbox.emit('load.one', '{}', dedup_key => 'k%d')" ],
	[ 'emit, dedup_key that was used', "SELECT outbox.emit('load.one', '{}', dedup_key => 'used%d')",
		"SELECT outbox.emit('load.one', '{}', dedup_key => 'another%d')" ],
	[ 'emit, deliver_at', "SELECT outbox.emit('load.one', '{}', tenant => 't%d', deliver_at => now() + interval '1 h')" ],
	[ 'emit_change', "INSERT INTO changed VALUES (%d * 1000 + NEXT, 't%d')" ],
	[ 'outgoing', "INSERT INTO outbox.outgoing (topic, payload, tenant) VALUES ('load.one', '{}', 't%d')" ],
	[ 'cancel scheduled', "SELECT outbox.cancel('LATER')" ],
	[ 'pause_endpoint', "SELECT outbox.pause_endpoint('e%d')" ],
	[ 'resume_endpoint', "SELECT outbox.resume_endpoint('e%d')" ],
	[ 'alter_endpoint', "SELECT outbox.alter_endpoint('e%d', max_in_flight => NEXT)" ],
	[ 'alter_endpoint, url', "SELECT outbox.alter_endpoint('e%d', url => '$url/NEXT')" ],
	[ 'alter_endpoint, secret', "SELECT outbox.alter_endpoint('e%d', secret => 'whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=')" ],
	[ 'rotate_secret', "SELECT outbox.rotate_secret('e%d')" ],
	[ 'set_secrets', "SELECT outbox.set_secrets('{\"e%d\": \"whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=\"}')" ],
	[ 'retry', "SELECT outbox.retry('e%d')" ],
	[ 'retry, event', "SELECT outbox.retry('e%d', 'DEAD')" ],
	[ 'discard, event', "SELECT outbox.discard('e%d', 'DEAD')" ],
	[ 'resend', "SELECT outbox.resend('e%d', 'OK')" ],
	[ 'cancel, endpoint', "SELECT outbox.cancel('DEAD', 'e%d')" ],
	[ 'replay', "SELECT outbox.replay('e%d', now() - interval '1 h')" ],
	[ 'send_test', "SELECT outbox.send_test('e%d')" ],
	[ 'seek_endpoint', "SELECT outbox.seek_endpoint('e%d', 'now')" ],
	[ 'seek_endpoint, time', "SELECT outbox.seek_endpoint('e%d', now() - interval '1 min')" ],
	[ 'create_endpoint', "SELECT outbox.create_endpoint('new%dx' || NEXT, '$url', tenant => 't%d')" ],
	[ 'drop_endpoint', "SELECT outbox.drop_endpoint('old%d', discard => true)" ],
	[ 'set_event_type', "SELECT outbox.set_event_type('type.t%d', 'NEXT')" ],
	[ 'drop_event_type', "SELECT outbox.drop_event_type('type.t%d', if_exists => true)" ],
	[ 'set_tenant_limits', "SELECT outbox.set_tenant_limits('t%d', max_in_flight => NEXT)" ],
	[ 'set_portal_limits', "SELECT outbox.set_portal_limits('t%d', max_endpoints => NEXT)" ],
	[ 'portal_endpoints', "SELECT outbox.portal_endpoints('t%d')" ],
	[ 'portal_alter_endpoint', "SELECT outbox.portal_alter_endpoint('t%d', 'e%d', '{\"label\": \"NEXT\"}')" ],
	[ 'portal_pause_endpoint', "SELECT outbox.portal_pause_endpoint('t%d', 'e%d')" ],
	[ 'portal_resume_endpoint', "SELECT outbox.portal_resume_endpoint('t%d', 'e%d')" ],
	[ 'portal_rotate_secret', "SELECT outbox.portal_rotate_secret('t%d', 'e%d')" ],
	[ 'portal_secret', "SELECT outbox.portal_secret('t%d', 'e%d')" ],
	[ 'portal_deliveries', "SELECT outbox.portal_deliveries('t%d')" ],
	[ 'portal_delivery', "SELECT outbox.portal_delivery('t%d', 'e%d', 'DEAD')" ],
	[ 'portal_attempts', "SELECT outbox.portal_attempts('t%d')" ],
	[ 'portal_retry', "SELECT outbox.portal_retry('t%d', 'e%d')" ],
	[ 'portal_replay', "SELECT outbox.portal_replay('t%d', 'e%d', now() - interval '1 h')" ],
	[ 'portal_replays', "SELECT outbox.portal_replays('t%d', 'e%d')" ],
	[ 'portal_figures', "SELECT outbox.portal_figures('t%d')" ],
	[ 'portal_send_test', "SELECT outbox.portal_send_test('t%d', 'e%d')" ],
	[ 'portal_drop_endpoint', "SELECT outbox.portal_drop_endpoint('t%d', 'gone%d', discard => true)" ],
);
my $next = 0;
my @session = map { $node->background_psql('postgres', on_error_stop => 0) } 1, 2;

sub call
{
	my ($sql, $n) = @_;

	$next = $next % 900 + 1;
	$sql =~ s/%d/$n/g;
	$sql =~ s/NEXT/$next/g;
	$sql =~ s/DEAD/$id{'load.dead'}{"t$n"}/;
	$sql =~ s/OK/$id{'load.ok'}{"t$n"}/;
	$sql =~ s/LATER/$id{'load.later'}{"t$n"}/;
	return "$sql;";
}

# How many of the pairs fail, and an error that is none of SERIALIZABLE.
sub pairs
{
	my ($one, $two) = @_;
	my ($failed, $other) = (0, '');

	foreach my $round (1 .. $rounds)
	{
		my @n = ($round, $round + $many / 2);
		my $errors = '';

		$_->query("\\set VERBOSITY verbose\nBEGIN ISOLATION LEVEL SERIALIZABLE;") foreach @session;
		foreach my $call ($one, $two)
		{
			foreach my $i (0, 1)
			{
				$session[$i]->query(call($call, $n[$i]));
				$errors .= $session[$i]->{stderr};
				$session[$i]->{stderr} = '';
			}
		}
		foreach (@session)
		{
			$_->query('COMMIT;');
			$errors .= $_->{stderr};
			$_->{stderr} = '';
		}
		$failed++ if $errors =~ /ERROR:  40001/;
		$other = $1 if $errors =~ /ERROR:  (?!40001|25P02)(.*)/;
	}
	return ($failed, $other);
}

# These count what others add to, so they read what another transaction writes.
my %counts = map { $_ => 1 } qw(set_secrets replay send_test portal_replay portal_send_test);

foreach my $call (@calls)
{
	my ($name, $sql, $then) = @$call;

	$node->safe_psql('postgres', 'SELECT outbox.resume_endpoint(name) FROM outbox.endpoints') if $name eq 'portal_resume_endpoint';
	my ($failed, $other) = pairs($sql, $then // ($sql =~ /drop_|create_endpoint|changed|LATER/ ? "SELECT outbox.pause_endpoint('e%d')" : $sql));
	is($other, '', "$name: no other error");
	if ($counts{$name})
	{
		note("$name: $failed of $rounds pairs fail");
		next;
	}
	is("$failed of $rounds", "0 of $rounds", "$name: pairs that fail");
}
$_->quit foreach @session;
$node->stop;
done_testing();
