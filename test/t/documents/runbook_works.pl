# Every command of doc/runbook.md works in the situation that it is for.
# A section has as many commands as there are checks here, in their order.  Each runs as
# an operator, or, where the document says so, as a superuser.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_prepared_transactions = 4\n");
my $receiver = OutboxTest::Receiver->new('main');
my $path = '/ok/billing';
my $runbook = slurp_file("$top/doc/runbook.md");
my $event = '00000000-0000-4000-8000-000000000000';    # the one a section is about
my $bystander;

$node->safe_psql('postgres', "CREATE ROLE oncall LOGIN; GRANT pg_monitor TO oncall; SELECT outbox.grant_to('oncall', 'operate')");

sub status
{
	my ($id) = @_;
	return ask("SELECT status FROM outbox.deliveries WHERE event_id = '$id' AND endpoint = 'billing'");
}

sub emit_many
{
	my ($n) = @_;
	return ask("SELECT count(outbox.emit('invoice.created', jsonb_build_object('n', n), key => 'k' || n))"
		  . " FROM generate_series(1, $n) n");
}

sub fresh
{
	my ($more) = @_;

	ask("SELECT outbox.drop_endpoint('billing', discard => true, if_exists => true)");
	$receiver->control(path => $path);
	endpoint($node, $receiver, 'billing', $path, "topics => '{invoice.*}'" . ($more // ''));
	return;
}

sub behave
{
	$receiver->control(path => $path, behave => $_[0]);
	return;
}

sub becomes
{
	my ($sql, $name) = @_;
	return ok(wait_sql($node, $sql), $name);
}

sub shows
{
	my ($pattern, $name) = @_;
	return sub { like($_[0], $pattern, $name) };
}

sub wait_for_state
{
	my ($state) = @_;
	return becomes("SELECT state = '$state' FROM outbox.stats WHERE endpoint = 'billing'", $state);
}

my $secret;
my %section = (
	'Nothing is sent at all' => [
		sub {
			fresh();
			$node->append_conf('postgresql.conf', 'outbox.enabled = off');
			$node->reload;
			becomes("SELECT state = 'disabled' FROM outbox.status", 'disabled');
			$event = emit($node, 'invoice.created', '{}');
		},
		shows(qr/^disabled\|/, 'status says why'),
		shows(qr/\|postgres\|disabled\|0\|/, 'there is a worker'),
		shows(qr{/postgresql\.conf\|\d+$}, 'where it was switched off'),
		sub {
			becomes("SELECT state = 'running' FROM outbox.status", 'it runs again');
			$receiver->wait_delivered(1, id => $event);
			$bystander = worker_pid($node);
			kill 'STOP', $bystander;
			ok($runbook =~ /`kill -(\w+) 4711`/ && kill($1, $bystander), 'one that was stopped goes on');
		},
		sub {
			is($_[0], 't', 'the worker is ended');
			ok(new_worker($node, $bystander), 'and there is another one');
		}
	],
	'An endpoint is held because a call did not return' => [
		sub { fresh() }, # faults/library_never_returns has such calls
		sub { is($_[0], '', 'none is held') },
		sub { is($_[0], 't', 'what was held would be tried again') }
	],
	'Why is this event not delivered?' => [
		sub {
			fresh(", max_attempts => 1");
			behave('/status/500');
			$event = emit($node, 'invoice.created', '{}');
			wait_status($node, $event, 'dead', 'a dead delivery');
		},
		sub {
			like($_[0], qr/^billing\|dead\|max_attempts\|1\|\|500\|/, 'what became of it');
			behave('/ok');
		},
		shows(qr/^1$/, 'retry takes it'),
		sub {
			becomes("SELECT outbox.wait_for('$event')", 'it is delivered when the receiver is well');
			is(status($event), 'delivered', 'delivered');
		},
		shows(qr/^billing\|\{invoice\.\*\}\|t\|t$/m, 'which endpoint subscribes to it')
	],
	'Millions are waiting' => [
		sub {
			fresh(', max_in_flight => 1, rate_limit => 20');
			ask("SELECT outbox.pause_endpoint('billing')");
			emit_many(4000);
			ask("SELECT outbox.resume_endpoint('billing')");
			becomes("SELECT rate_per_s > 0 AND pending > 1000 FROM outbox.stats WHERE endpoint = 'billing'",
				'a backlog');
		},
		shows(qr/^billing\|active\|\d+\|t\|\d.*\|\d\d:\d\d:\d\d/, 'how much, how fast, how long'),
		sub {
			is(ask("SELECT max_in_flight, rate_limit FROM outbox.endpoints"), '128|', 'faster');
			ask("SELECT outbox.pause_endpoint('billing')");
			emit_many(1000);
		},
		sub {
			ask("SELECT outbox.resume_endpoint('billing')");
			becomes("SELECT pending = 0 AND processing = 0 FROM outbox.stats WHERE endpoint = 'billing'",
				'the backlog is skipped');
			$event = emit($node, 'invoice.created', '{"fresh": true}');
			$receiver->wait_delivered(1, id => $event);
			pass('what is fresh is sent');
		},
		sub {
			cmp_ok($_[0], '>=', 5000, 'all of it is to be sent again');
			becomes("SELECT bool_and(finished_at IS NOT NULL) FROM outbox.replays", 'the replay ends');
		},
		shows(qr/^billing\|[^|]*\|[^|]*\|\d{4,}\|\d/, 'and shows how far it is')
	],
	'One customer is down' => [
		sub {
			fresh(", backoff_base => '50 ms', backoff_max => '1 s'");
			endpoint($node, $receiver, 'other', '/ok/other', "topics => '{invoice.*}'");
			behave('/status/503');
			emit_many(100);
			wait_for_state('backing_off');
			$receiver->wait_delivered(100, path => '/ok/other');
			pass('the other endpoint notices nothing');
		},
		sub {
			like($_[0], qr/^billing\|backing_off\|.*503/, 'which endpoint, since when, why');
			unlike($_[0], qr/^other/m, 'and no other endpoint');
		},
		sub { is(ask("SELECT max_age FROM outbox.endpoints WHERE name = 'billing'"), '14 days', 'more patience') },
		sub { wait_for_state('paused') },
		sub {
			behave('/ok');
			is(ask("SELECT state FROM outbox.endpoints WHERE name = 'billing'"), 'active', 'resumed');
		},
		sub {
			my $id = $_[0];
			becomes("SELECT outbox.wait_for('$id')", 'the test event arrives');
			$receiver->wait_delivered(100, path => $path);
			pass('and then all that waited');
			is(scalar(() = $receiver->requests(path => '/ok/other', id => $id)), 0, 'it went nowhere else');
		},
		shows(qr/\|200\|$/m, 'the attempts show the answers'),
		sub { is($_[0], '0', 'nothing had died') },
		sub { ask("SELECT outbox.drop_endpoint('other', discard => true)") }
	],
	'A poison event' => [
		sub {
			fresh(", max_attempts => 1, on_exhausted => 'block'");
			behave('/status/422?body=no%20such%20customer');
			$event = emit($node, 'invoice.created', '{"customer": 7}', "key => 'c7'");
			wait_status($node, $event, 'dead', 'a dead head');
			behave('/ok');
			$bystander = emit($node, 'invoice.paid', '{"customer": 7}', "key => 'c7'");
			becomes("SELECT blocked = 1 FROM outbox.stats WHERE endpoint = 'billing'", 'that blocks its key');
		},
		sub { like($_[0], qr/^\Q$event\E\|c7\|dead\|1\|.*\|422\|/, 'which one') },
		shows(qr/\|1\|422\|.*no such customer/, 'what the receiver says'),
		shows(qr/^invoice\.created\|.*\{"customer": 7\}/, 'what is in it'),
		shows(qr/^1$/, 'how many wait behind it'),
		sub { is($_[0], 'f', 'a dead one cannot be taken back') },
		sub {
			is($_[0], '1', 'but given up');
			$receiver->wait_delivered(1, id => $bystander);
			is(status($event), 'cancelled', 'its key goes on');
		},
		sub {
			is(ask('SELECT max_attempts, on_exhausted FROM outbox.endpoints'), '12|skip', 'the next one gives way');
			ask("SELECT outbox.alter_endpoint('billing', backoff_base => '1 h')");
			behave('/status/422');
			$event = emit($node, 'invoice.created', '{"customer": 8}', "key => 'c8'");
			wait_status($node, $event, 'retrying', 'one that is retrying');
			behave('/ok');
			$bystander = emit($node, 'invoice.paid', '{"customer": 8}', "key => 'c8'");
			is(ask("SELECT outbox.cancel('$event', 'billing')"), 't', 'is taken back');
			$receiver->wait_delivered(1, id => $bystander);
			pass('and its key goes on, too');
		}
	],
	'The disk fills' => [
		sub {
			fresh();
			becomes("SELECT count(*) = 0 FROM outbox.deliveries WHERE status NOT IN ('delivered', 'cancelled')", 'quiet');
			ask("SELECT outbox.pause_endpoint('billing')");
			ask("SELECT count(outbox.emit('invoice.created', jsonb_build_object('x', repeat(md5(n::text), 100))))"
				  . ' FROM generate_series(1, 3000) n');
			becomes("SELECT retained_by = 'billing' FROM outbox.status", 'an endpoint does not read');
		},
		shows(qr/[kM]B\|2\d\d\d-.*\|billing$/, 'how large, since when, for which endpoint'),
		shows(qr/^billing\|paused\|\d+ kB/, 'which endpoint keeps how much'),
		shows(qr/^events_[0-2]\|\d+ (?:kB|MB)$/m, 'what is large'),
		sub { ask("SELECT outbox.resume_endpoint('billing')") },
		sub { is(ask('SELECT retention, attempts_retention FROM outbox.status'), '00:01:00|00:01:00', 'less is kept') },
		sub {
			is(ask('SHOW outbox.log_attempts'), 'failures', 'and less is written');
			ask("SELECT outbox.set_retention(events => '2 s')");
			becomes('SELECT log_bytes < 1000000 FROM outbox.status', 'and the log shrinks');
			$bystander = $node->background_psql('postgres');
			$bystander->query_safe("BEGIN; SET application_name = 'reader'");
			$bystander->query_safe('SELECT count(*) FROM outbox.events');
			ask("BEGIN; SELECT outbox.emit('prepared.one', '{}'); PREPARE TRANSACTION 'forgotten'");
			becomes("SELECT bool_and(at < now() - interval '5 s') FROM (SELECT xact_start FROM pg_stat_activity"
				  . " WHERE application_name = 'reader' UNION ALL SELECT prepared FROM pg_prepared_xacts) t (at)",
				'a long transaction and a prepared one');
		},
		sub {
			like($_[0], qr/^\d+\|\|\w+\|idle in transaction\|.*outbox\.events/m, 'which session holds a lock');
			like($_[0], qr/^\|forgotten\|\w+\|\|\d/m, 'which prepared transaction');
			is(scalar(grep { /^\d*\|\w*\|\w+\|/ } split /\n/, $_[0]), 2, 'and nothing else') or diag($_[0]);
			$bystander->quit;
			ask("ROLLBACK PREPARED 'forgotten'");
		},
		sub { is(ask('SELECT count(*) FROM outbox.retention_here'), '0', 'as before') },
		sub { is(ask('SHOW outbox.log_attempts'), 'all', 'as before') }
	],
	'Events of a source do not come' => [    # follow/breaks_lose_nothing has real ones
		sub {
			fresh();
			$event = '01a1f78c-4fa9-7dc2-8c85-9f589eaa3fb3';
			ask("INSERT INTO outbox.followed (name, subscription, slot, keep, taken, taken_at, taken_lsn, round, timelines, behind, retained)"
				  . " VALUES ('shop', 1, 'outbox_shop', '1 day', '10:10:', now(), '0/0', 1, '{}', 2048, 4096)");
			ask("INSERT INTO outbox.missed_events (source, at_least, at_most, first_at, last_at) VALUES ('shop', 3, 3, '2026-11-20', '2026-11-21')");
			ask("INSERT INTO outbox.refused_events (source, event, error) SELECT 'shop', jsonb_build_object('id', i, 'topic', t, 'payload', '{}'), 'why'"
				  . " FROM (VALUES ('$event', 'invoice.created'), ('01a1f78c-4fa9-7dc2-8c85-9f589eaa3fb4', 'bad topic!')) v (i, t)");
		},
		shows(qr/^shop\|gone\|its subscription was dropped; .*\|\|2048 bytes\|4096 bytes\|\|3$/, 'its state, and why'),
		shows(qr/^shop\|.*\|3\|3\|2026-11-20 .*\|2026-11-21 /, 'what the source had removed'),
		shows(qr/^shop\|.*\|why\|invoice\.created\|01a1f78c-4fa9-7dc2-8c85-9f589eaa3fb3$/m, 'what was set aside'),
		sub {
			$receiver->wait_delivered(1, id => $event);
			is(ask('SELECT source, error FROM outbox.refused_events'), 'shop|invalid topic "bad topic!": it has a character other than ASCII letters, digits, "_", "-" and "."', 'the other one is set aside again');
			ask('DELETE FROM outbox.refused_events; DELETE FROM outbox.missed_events; DELETE FROM outbox.followed');
		}
	],
	'A secret has leaked' => [
		sub {
			fresh();
			$secret = ask("SELECT outbox.endpoint_secret('billing')");
		},
		sub { is(ask('SELECT count(previous) FROM outbox.endpoint_secrets'), '0', 'no grace') },
		sub {
			like($_[0], qr/^whsec_/, 'the new one');
			isnt($_[0], $secret, 'is another one');
			$event = emit($node, 'invoice.created', '{}');
			my ($request) = $receiver->wait_delivered(1, id => $event);
			is($request->{signature}, 'invalid', 'the old one is worth nothing any more');
		},
		sub {
			$event = emit($node, 'invoice.created', '{}');
			my ($request) = $receiver->wait_delivered(1, id => $event);
			like($request->{headers}{'webhook-signature'}, qr/^v1,\S+ v1,\S+$/, 'two signatures');
		},
		sub {
			$event = emit($node, 'invoice.created', '{}');
			my ($request) = $receiver->wait_delivered(1, id => $event);
			is($request->{headers}{authorization}, 'Bearer new', 'another token');
		},
		sub {
			is(ask("SELECT outbox.endpoint_secret('billing')"),
				'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3', 'the secret that was given');
		}
	],
	'The receiver has lost data' => [
		sub {
			fresh();
			$event = emit($node, 'invoice.created', '{}');
			$receiver->wait_delivered(1, id => $event);
			wait_settled($node);
		},
		sub {
			cmp_ok($_[0], '>=', 1, 'it is sent again');
			my @requests = $receiver->wait_delivered(2, id => $event);
			is($requests[1]{headers}{'outbox-redelivery'}, 'replay', 'and says so');
			is($requests[1]{sha256}, $requests[0]{sha256}, 'the same body');
		}
	]);

my @sections = split /^## /m, $runbook;
shift @sections;
foreach my $text (@sections)
{
	my ($title) = $text =~ /^(.*)/;
	my (@commands, %superuser);
	while ($text =~ /^```sql( superuser)?\n(.*?)^```$/msg)
	{
		push @commands, $2;
		$superuser{$2} = defined $1;
	}
	my ($set_up, @checks) = @{ delete $section{$title} // [] };

	ok($set_up, $title) or next;
	my $more = @checks - @commands;    # one more: to clean up
	ok($more == 0 || $more == 1, "$title: each command has a check") or next;
	note($title);
	$set_up->();
	foreach my $command (@commands)
	{
		(my $here = $command) =~ s/01a1f78c-4fa9-7dc2-8c85-9f589eaa3fb3/$event/g;
		my ($rc, $out, $err) = $node->psql('postgres', $here, on_error_stop => 1,
			$superuser{$command} ? () : (extra_params => [ '-U', 'oncall' ]));
		is($rc, 0, (split /\n/, $command)[0]) or diag($err);
		(shift @checks)->($out);
	}
	$checks[0]->() if @checks;
}
is(join(', ', keys %section), '', 'every section is there');
foreach my $text ($runbook, slurp_file("$top/doc/copies.md"))
{
	my @whole = grep { /outbox\.(?:deliveries|attempts)\b/ && !/\b(?:event_id|seq) =/ } $text =~ /^```sql[^\n]*\n(.*?)^```$/msg;
	is(join("\n", @whole), '', 'no statement reads all deliveries or attempts of the log');
}

# What says that nothing is left sees what is not due yet, and what no worker has read
my ($left) = slurp_file("$top/doc/copies.md") =~ /Nothing is left when.*?^```sql\n(.*?)^```$/ms;
my $nothing_left = sub { return $node->safe_psql('postgres', $left, extra_params => [ '-U', 'oncall' ]) eq 't' };
fresh();
ok(scalar(wait_until { $nothing_left->() } 'nothing left'), 'nothing is left');
$event = emit($node, 'invoice.created', '{}', "deliver_at => now() + '1 day'");
ok(!$nothing_left->(), 'an event that is not due yet is left');
ask("SELECT outbox.cancel('$event')");
ok(scalar(wait_until { $nothing_left->() } 'nothing left'), 'and is not once it is taken back');
ask('ALTER SYSTEM SET outbox.enabled = off');    # as the runbook has set it to on
$node->reload;
becomes("SELECT state = 'disabled' FROM outbox.status", 'disabled');
emit($node, 'invoice.created', '{}');
ok(scalar(wait_until { !$nothing_left->() } 'not exact'), 'nor is one that no worker has read forgotten, when a second has passed');

is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
