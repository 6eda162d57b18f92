# The grants of each purpose are all that a role needs where functions are not PUBLIC's by default.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', extension => 0);
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql, $role) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role // 'postgres' ]);
}

sub fine
{
	my ($role, $sql, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', $role ]);
	is($err, '', "$role: $name");
	return $out;
}

ask('ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC');
ask('CREATE EXTENSION outbox');
ask('CREATE ROLE worker_of_this_test') unless $node->{has_worker_role};
foreach my $purpose (qw(emit watch operate portal))
{
	ask("CREATE ROLE $purpose LOGIN; SELECT outbox.grant_to('$purpose', '$purpose')");
}
endpoint($node, $receiver, 'a', '/ok/a', "tenant => 'acme'");

fine('emit', q{SELECT outbox.emit('order.a', '{}', tenant => 'acme')}, 'emit()');
fine('emit', q{INSERT INTO outbox.outgoing (topic, payload, tenant) VALUES ('order.a', '{}', 'acme')}, 'INSERT');
fine('emit', qq{COPY outbox.events (topic, payload, tenant) FROM STDIN;\norder.a\t{}\tacme\n\\.\n}, 'COPY');
fine('emit', q{SELECT outbox.new_event_id()}, 'an id');
$receiver->wait_delivered(3, path => '/ok/a');
ok(wait_settled($node), 'all three are delivered');
is(fine('watch', 'SELECT count(*) FROM outbox.deliveries', 'deliveries'), '3', 'and seen');
fine('watch', "SELECT * FROM outbox.$_", $_) foreach qw(status stats workers replay_progress forget_progress);
fine('operate', "SELECT * FROM outbox.$_", $_) foreach qw(endpoints dead_letters attempts all_events scheduled);
fine('operate', "SELECT outbox.replay('a', now() - interval '1 day')", 'replay()');
fine('portal', "SELECT * FROM outbox.portal_deliveries('acme')", 'a page');
$receiver->wait_delivered(6, path => '/ok/a');

# A worker that owns nothing, from a start of the server on
unless ($node->{has_worker_role})
{
	ask(q{SELECT outbox.grant_to('worker_of_this_test', 'work')});
	$node->append_conf('postgresql.conf', "outbox.worker_role = 'worker_of_this_test'\n");
	$node->restart;
}
fine('emit', q{INSERT INTO outbox.outgoing (topic, payload, tenant) VALUES ('order.b', '{}', 'acme')}, 'INSERT');
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'the worker runs')
  or diag(ask('SELECT state, reason FROM outbox.status'));
$receiver->wait_delivered(7, path => '/ok/a');
ok(wait_settled($node), 'and delivers');

# PUBLIC may do what it may anywhere else.
is(ask("SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace"
		  . " AND has_function_privilege('public', p.oid, 'EXECUTE')"),
	'check_event current_epoch current_piece log_xid new_event_id next_seq', 'PUBLIC has what the defaults of a table call');

$node->stop;
done_testing();
