# Retries that are due within 5 ms are read from outbox.parked by one query.
use strict;
use warnings;

use OutboxTest;
use Test::More;
use Time::HiRes 'time';

plan skip_all => 'pg_stat_statements is not installed' unless is_installed('pg_stat_statements');

my $node = outbox_node('main', conf => <<'CONF');
shared_preload_libraries = 'outbox, pg_stat_statements'
pg_stat_statements.track = all
CONF
my $receiver = OutboxTest::Receiver->new('main');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements');
endpoint($node, $receiver, 'mixed', '/mixed/once?fail=0.4',
	"topics => '{mixed.*}', ordering => 'none', backoff_base => '1 s', backoff_max => '1 s'");

# A retry is due at any time between 0.1 and 1 s later.
my $begun = time;
$node->safe_psql('postgres', "SELECT count(outbox.emit('mixed.n', '{}'::jsonb)) FROM generate_series(1, 3000)");
$receiver->wait_delivered(3000, path => '/mixed/once');
my ($calls, $rows) = split /\|/, $node->safe_psql('postgres', <<'SQL');
SELECT sum(calls), sum(rows) FROM pg_stat_statements
WHERE query LIKE 'SELECT p.* FROM pg_catalog.unnest($2) w(seq)%ORDER BY w.seq'
SQL
my $most = (time - $begun) / 0.005 + $rows / 32;    # of one time, up to 64 at once
cmp_ok($rows, '>', 1000, "there are many ($rows)");
cmp_ok($calls, '<', $most, "one query each 5 ms at most ($calls)");
done_testing();
