# A worker's memory stays below its bound with the largest settings of endpoints.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'a memory checker needs memory of its own' if $ENV{OUTBOX_MEMORY_CHECKER};

my $node = outbox_node('main', conf => "outbox.worker_memory = '16MB'\nsynchronous_commit = off\noutbox.workers_per_database = 2\n");
my $receiver = OutboxTest::Receiver->new('main');
my ($n, $patterns, $headers, $template) = (150, 1000, 8000, 3900);

endpoint($node, $receiver, 'well', '/ok/well', "topics => '{well}'");
ok(wait_sql($node, 'SELECT count(*) = 2 AND sum(endpoints) = 1 FROM outbox.workers'), 'two workers serve');
ask(<<"SQL");
SELECT count(outbox.create_endpoint('e' || n, '${\$receiver->url('/ok/e')}' || n, topics => ARRAY(SELECT rpad(concat('t', n, '.', p), 200, 'x') FROM generate_series(2, $patterns) p) || '{n}'::text[],
	headers => (SELECT jsonb_object_agg('X-H' || h, repeat('v', $headers / 15)) FROM generate_series(1, 15) h),
	filter => ('\$.n >= 0' || (SELECT string_agg(' || \$.a' || f || ' == 1', '') FROM generate_series(1, 25) f))::jsonpath,
	config => jsonb_build_object('payload', jsonb_build_object('text', repeat('t', $template))), secret => NULL, tenant => CASE WHEN n % 2 = 0 THEN 't' || n END))
FROM generate_series(1, $n) n
SQL
ok(wait_sql($node, "SELECT sum(endpoints) > $n FROM outbox.workers"), "$n endpoints with the largest settings");
ask(q{SELECT count(outbox.emit('n', jsonb_build_object('n', 1)))});
ok(wait_sql($node, "SELECT sum(delivered) = $n / 2 FROM outbox.stats"), 'the ones without a tenant have got an event');

# What doc/settings.md says of them
my ($connection) = slurp_file("$top/doc/settings.md") =~ /^\| `connection` \| (\d+) kB/m;
my ($times, $pattern, $without) = slurp_file("$top/doc/settings.md") =~ /^\| `settings` \| (\d) × their size \| .* (\d+) B more, and without a tenant (\d+) B more/m;
my $settings = ask("SELECT sum($times * (octet_length(topics::text) + octet_length(headers::text) + octet_length(filter::text) + octet_length(url) + octet_length(config::text))"
	  . " + cardinality(topics) * CASE WHEN tenant IS NULL THEN $without ELSE $pattern END) FROM outbox.endpoints WHERE name <> 'well'");
foreach my $worker (ask('SELECT string_agg(worker::text, chr(10)) FROM outbox.workers') =~ /\d+/g)
{
	my ($pid, $endpoints, $limit, $memory, $mb);
	wait_until {
		($pid, $endpoints, $limit, $memory) = split /\|/, ask("SELECT pid, endpoints, resident_limit, memory FROM outbox.workers WHERE worker = $worker");
		$mb = private_memory($pid);
		my $connections = grep { (readlink($_) // '') =~ /^socket:/ } glob "/proc/$pid/fd/*";
		$mb < $limit / 1024 / 1024 && $limit < (16 + 48 + $endpoints * 24 / 1024) * 1024 * 1024 + $connection * 1024 * $connections + $settings
	}
	"worker $worker is below its bound, and that is what the document says";
	diag(sprintf 'worker %d: %d endpoints, %.1f MB, bound %.1f MB, account %.1f MB', $worker, $endpoints, $mb, $limit / 1024 / 1024, $memory / 1024 / 1024);
	cmp_ok($memory, '<', 4 * 1024 * 1024, 'and has room for events');
}
ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name <> 'well'");
ok(wait_sql($node, 'SELECT bool_and(resident_limit < 80 * 1048576) FROM outbox.workers'), 'which goes with the endpoints');
$node->stop;
done_testing();
