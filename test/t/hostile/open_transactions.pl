# A customer whose transaction stays open does not stop another one, or a worker.
# Every call of the portal is left open once, while another tenant makes every call and
# gets its events.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "lock_timeout = '10s'\nlog_lock_waits = on\ndeadlock_timeout = '100ms'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $n = 0;

ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");
ask("SELECT outbox.set_portal_limits(max_endpoints => 1000)");

# What each call has for an argument: %t its tenant, %e its endpoint, %u a URL, %v an event.
# An endpoint that is dropped is a new one.
my %arguments = (
	portal_endpoints => '%t', portal_create_endpoint => '%t, %u', portal_alter_endpoint => q(%t, %e, '{"topics": ["a.*", "%n.*"]}'),
	portal_pause_endpoint => '%t, %e', portal_resume_endpoint => '%t, %e', portal_drop_endpoint => '%t, %d, true',
	portal_secret => '%t, %e', portal_rotate_secret => '%t, %e', portal_deliveries => '%t', portal_attempts => '%t',
	portal_retry => '%t, %e, %v', portal_delivery => '%t, %e, %v', portal_replays => '%t, %e', portal_cancel_replay => '%t, %e, %r',
	portal_replay => q(%t, %e, now() - interval '1 hour'), portal_send_test => '%t, %e',
	portal_event_types => '%t', portal_limits => '%t', portal_figures => '%t, %e', portal_asyncapi => '%t', portal_changes => '%t, %e');
is( join(' ', sort keys %arguments),
	ask("SELECT string_agg(DISTINCT split_part(split_part(object, '.', 2), '(', 1), ' ' ORDER BY split_part(split_part(object, '.', 2), '(', 1))"
		  . " FROM outbox.privileges_of('portal') WHERE kind = 'FUNCTION'"),
	'every call of a portal');

my %event;

# A call's text, with an endpoint of its own that has one delivery
sub call
{
	my ($function, $tenant) = @_;
	my $arguments = $arguments{$function};
	my $name = "$tenant." . ++$n;
	my $path = "/ok/$name";

	endpoint($node, $receiver, $name, $path, "tenant => '$tenant', topics => '{a.*}'");
	if ($arguments =~ /%[vr]/)
	{
		$event{$name} = emit($node, 'a.b', '{}', "tenant => '$tenant'");
		$receiver->wait_delivered(1, path => $path, id => $event{$name});
		ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$event{$name}' AND endpoint = '$name'"), "$name has an event");
		$arguments =~ s/%v/'$event{$name}'/;
		$arguments =~ s/%r/ask("SELECT outbox.replay('$name', now() - interval '1 hour') \\g \/dev\/null\nSELECT outbox.portal_cipher(max(replay_id), 26, false) FROM outbox.replays")/e;
	}
	$arguments =~ s/%t/'$tenant'/;
	$arguments =~ s/%[ed]/'$name'/;
	$arguments =~ s/%n/t$n/;
	$arguments =~ s/%u/"'" . $receiver->url("\/ok\/$tenant.new") . "'"/e;
	return ("SELECT outbox.$function($arguments)", $name, $path);
}

# A wait for a lock that the open transaction holds ends in an error.
foreach my $open (sort keys %arguments)
{
	my ($sql) = call($open, 'acme');
	my @others = map { [ call($_, 'globex') ] } $open eq 'portal_create_endpoint' ? sort keys %arguments : ($open, 'portal_create_endpoint');
	my $session = $node->background_psql('postgres', extra_params => [ '-U', 'portal' ]);
	$session->query_safe("BEGIN; $sql");
	foreach my $other (@others)
	{
		my ($rc, $out, $err) = $node->psql('postgres', "$other->[0]", extra_params => [ '-U', 'portal' ]);
		is($err, '', "while a $open is open: $other->[0]");
	}
	endpoint($node, $receiver, "globex.late.$n", "/ok/late.$n", "tenant => 'globex', topics => '{late.*}'");
	my $id = emit($node, 'late.event', '{}', "tenant => 'globex'");
	$receiver->wait_delivered(1, path => "/ok/late.$n", id => $id);
	ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$id' AND endpoint = 'globex.late.$n'"),
		"while a $open is open: a new endpoint of another tenant gets its events, and they are settled");
	is( ask("SELECT string_agg(DISTINCT c.relname || ' ' || l.mode, ', ' ORDER BY c.relname || ' ' || l.mode) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
			  . " JOIN pg_stat_activity a ON a.pid = l.pid WHERE a.usename = 'portal' AND a.state = 'idle in transaction'"
			  . " AND l.granted AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')"),
		'', "a $open holds no lock of a table that another call conflicts with");
	$session->query_safe('ROLLBACK');
	$session->quit;
}

# An endpoint whose row is locked does not hold up what is stored for the others.
my ($sql, $name, $path) = call('portal_alter_endpoint', 'acme');
my $session = $node->background_psql('postgres', extra_params => [ '-U', 'portal' ]);
$session->query_safe("BEGIN; $sql");
$receiver->control(path => $path, behave => '/status/410');
emit($node, 'a.gone', '{}', "tenant => 'acme'");
$receiver->wait_for(2, path => $path) if $event{$name};
$receiver->wait_for(1, path => $path);
foreach my $round (1 .. 5)
{
	my $id = emit($node, 'late.event', '{}', "tenant => 'globex'");
	ok(wait_sql($node, "SELECT bool_and(status = 'delivered') AND count(*) > 0 FROM outbox.deliveries WHERE event_id = '$id'"),
		"a receiver is gone whose endpoint is locked: the others' events are settled ($round)");
}
$session->query_safe('COMMIT');
$session->quit;
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = '$name'"), 'and it is disabled after that');

# A tenant is being forgotten: its scheduled events wait for that, and those of others do not.
# Tenants share 64 locks, so one of these may wait as well.
endpoint($node, $receiver, 'soon', '/ok/soon', "topics => '{soon.*}'");
$session = $node->background_psql('postgres', on_error_stop => 1);
$session->query_safe("BEGIN; SELECT outbox.forget('acme')");
my $acme = emit($node, 'soon.event', '{}', "tenant => 'acme', deliver_at => now() + interval '1 s'");
my @soon = map { emit($node, 'soon.event', '{}', "tenant => '$_', deliver_at => now() + interval '1 s'") } qw(globex initech hooli);
my $none = emit($node, 'soon.event', '{}', "deliver_at => now() + interval '1 s'");
wait_until { (grep { $receiver->delivered(id => $_) } $none, @soon) >= 3 } 'scheduled events of others';
is($receiver->delivered(id => $acme), 0, 'one of the tenant waits');
$session->query_safe('ROLLBACK');
$session->quit;
$receiver->wait_delivered(1, id => $_) foreach $acme, @soon;
pass('and comes when nothing is forgotten after all');

# A replay is being cancelled: the worker does not wait for that, and goes on if it is not
my $pid = worker_pid($node);
endpoint($node, $receiver, 'again', '/ok/again', "tenant => 'acme', topics => '{again.*}'");
my $again = emit($node, 'again.event', '{}', "tenant => 'acme'");
$receiver->wait_delivered(1, id => $again);
wait_status($node, $again, 'delivered', 'an event that is replayed');
ask('ALTER SYSTEM SET outbox.enabled = off');
$node->reload;
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.workers WHERE pid = $pid"), 'the worker is off');
my $replay = ask("SELECT outbox.replay('again', now() - interval '1 hour') \\g /dev/null\nSELECT max(replay_id) FROM outbox.replays");
$session = $node->background_psql('postgres', on_error_stop => 1);
$session->query_safe("BEGIN; SELECT outbox.cancel_replay('again', $replay)");
ask('ALTER SYSTEM RESET outbox.enabled');
$node->reload;
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'replay' AND endpoint = 'again' AND reason = 'locked' AND failures > 2"),
	'a replay that is being cancelled: its next page is tried again');
unlike(slurp_file($node->logfile), qr/process $pid still waiting/, 'and no lock is waited for');
$session->query_safe('ROLLBACK');
$receiver->wait_delivered(2, id => $again);
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.held_steps WHERE step = 'replay'"), 'and goes on after that');

# A piece of the log cannot be emptied: until it can, positions are not read again and again for that
my $looks = "SELECT sum(idx_scan) FROM pg_stat_user_tables WHERE relname IN ('positions_0', 'positions_1')";
my $endpoints = ask('SELECT count(*) FROM outbox.endpoints');
$session->query_safe("BEGIN; SELECT outbox.pause_endpoint('again')");
ask("SELECT outbox.set_retention(events => '2 s')");
ok(wait_sql($node, "SELECT since < now() - interval '3 s' FROM outbox.pieces WHERE log = 'events'"), 'a piece is due');
my $before = ask($looks);
my $from = time;
while (time < $from + 4)
{
	my $id = emit($node, 'soon.event', '{}');
	$receiver->wait_delivered(1, id => $id);
}
cmp_ok(ask($looks) - $before, '<', 10 * $endpoints, "the positions of $endpoints endpoints are read a few times");
my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
$session->query_safe('COMMIT');
$session->quit;
ok(wait_sql($node, "SELECT piece <> $piece FROM outbox.pieces WHERE log = 'events'"), 'it is emptied after that');

$node->stop;
done_testing();
