# An emitter at a source learns nothing of the events of others, also not by what the planner guesses.
use strict;
use warnings;

use JSON::PP ();
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE provided LOGIN; CREATE ROLE app LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE shop OWNER provided');

sub as
{
	my ($user, $sql) = @_;
	return $node->safe_psql('shop', $sql, extra_params => [ '-q', '-U', $user ]);
}

# The rows that are guessed, and all counts of rows that were judged
sub plan_of
{
	my ($condition) = @_;
	my $json = as('app', "BEGIN; SELECT outbox.emit('own', '{}') \\g /dev/null\nEXPLAIN (FORMAT JSON, ANALYZE) SELECT * FROM outbox.outgoing WHERE $condition; ROLLBACK");
	my @removed = $json =~ /"Rows Removed by Filter": ([1-9]\d*)/g;
	return (JSON::PP::decode_json($json)->[0]{Plan}{'Plan Rows'}, "@removed");
}

as('provided', "\\i $top/sql/source.sql");
as('provided', "SELECT outbox.grant_emit('app')");
as('provided', q{SELECT count(outbox.emit('theirs', '{}', key => CASE WHEN n % 100 = 0 THEN 'card 4711' ELSE 'none' END, tenant => 'acme')) FROM generate_series(1, 5000) n; ANALYZE outbox.events});
my %plan = map { ($_ => [ plan_of($_) ]) } "key = 'none'", "key = 'card 4711'", "key = 'card 4712'", "tenant = 'acme'", "tenant = 'globex'";
is(join(' ', map { $plan{$_}[0] } sort keys %plan), join(' ', ($plan{"key = 'none'"}[0]) x 5), 'every value is guessed to be as frequent as any other');
is(join(' ', map { $plan{$_}[1] } sort keys %plan), join(' ', (1) x 5), 'only the own event is judged');

# The view is as it was for those that use it.
is(as('app', q{INSERT INTO outbox.outgoing (topic, payload, key) VALUES ('own', '{"n": 1}', 'k') RETURNING topic, key, payload}), 'own|k|{"n": 1}', 'an INSERT returns its row');
is(as('app', q{BEGIN; INSERT INTO outbox.outgoing (topic, payload) VALUES ('own', '{"n": 2}'); SELECT topic, payload FROM outbox.outgoing; COMMIT}), 'own|{"n": 2}', 'and the transaction sees it');
done_testing();
