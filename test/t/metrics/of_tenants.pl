# outbox.metrics() shows the tenants that get most and fail most, where it is asked to.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('tenant_metrics');
my $receiver = OutboxTest::Receiver->new('tenant_metrics');

sub error { return ($node->psql('postgres', $_[0]))[2] }

# {"figure tenant status": value}
sub figures
{
	my ($top) = @_;
	return { map { /^(.*)=(.*)$/ ? ($1 => $2) : () } split /\n/, ask(<<"SQL") };
SELECT concat_ws(' ', replace(name, 'outbox_tenant_', ''), COALESCE(labels ->> 'tenant', '(others)'), labels ->> 'status') || '=' || value
FROM outbox.metrics(0, $top) WHERE name LIKE 'outbox\\_tenant\\_%'
SQL
}

sub shown { my ($of) = @_; return join(' ', sort map { /^delivered_per_second (.*)/ ? $1 : () } keys %$of) }

# A tenant has two endpoints, 'fails' gets nothing, and 'none' is idle.
foreach (
	[ 'many', '/ok/many', 1 ], [ 'many', '/ok/many2', 2 ], [ 'some', '/ok/some', 1 ], [ 'few', '/ok/few', 1 ], [ 'fails', '/status/500/fails', 1 ],
	[ 'none', '/ok/none', 1 ])
{
	my ($tenant, $path, $n) = @$_;
	ask("SELECT outbox.create_endpoint('$tenant.$n', '" . $receiver->url($path) . "', tenant => '$tenant', backoff_base => '10 ms', backoff_max => '1 h')");
}
endpoint($node, $receiver, 'operator', '/ok/operator', "topics => '{*}'");
ask(q[SELECT outbox.pause_endpoint('none.1')]);
ask("SELECT outbox.emit('a.x', '{}', tenant => '$_->[0]') FROM generate_series(1, $_->[1])") foreach [ 'many', 30 ], [ 'some', 20 ], [ 'few', 10 ], [ 'fails', 5 ], [ 'none', 3 ];
ok(wait_sql($node, q[SELECT bool_and(delivered = CASE endpoint WHEN 'operator' THEN 68 WHEN 'many.1' THEN 30 WHEN 'many.2' THEN 30 WHEN 'some.1' THEN 20
	WHEN 'few.1' THEN 10 ELSE 0 END) AND sum(failed_attempts) >= 5 FROM outbox.stats]), 'delivered');
my $of;
wait_until { $of = figures(2); ($of->{'deliveries fails retrying'} // 0) == 5 && ($of->{'delivered_per_second some'} // 0) > 0.33 } 'published';
is(shown($of), '(others) fails many some', 'the two that get most, and the one that fails');
cmp_ok($of->{'delivered_per_second many'}, '==', 1, 'sixty deliveries of both endpoints in a minute');
cmp_ok($of->{'failed_attempts_per_second fails'}, '>=', 5 / 60, 'and those that failed');
is($of->{'failed_attempts_per_second many'}, 0, 'of no other');
cmp_ok(abs($of->{'delivered_per_second (others)'} - 10 / 60), '<', 1e-9, 'the others are summed, without endpoints that have no tenant');
is($of->{'deliveries (others) pending'}, 3, 'also what waits');
cmp_ok($of->{'oldest_pending_seconds (others)'}, '>=', 0, 'and since when');
is(shown(figures(100)), '(others) fails few many none some', 'all of them');
is(figures(100)->{'delivered_per_second (others)'}, 0, 'then no other is left');
is(shown(figures(0)), '', 'not asked for, there are none');
is(ask(q[SELECT count(*) FROM outbox.metrics() WHERE labels ? 'tenant']), 0, 'nor by default');
OutboxTest::replace_worker($node);
wait_until { $of = figures(1); defined $of->{'delivered_per_second many'} } 'another worker';
cmp_ok($of->{'delivered_per_second many'}, '>', 0, 'goes on with the figures of the minute');
like(error('SELECT * FROM outbox.metrics(0, -1)'), qr/invalid top_tenants -1/, 'refused: a negative number');
like(error('SELECT * FROM outbox.metrics(0, NULL)'), qr/top_tenants must not be null/, 'refused: NULL');

done_testing();
