# Settings that are read again and again while a request is in flight take no more memory.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# Bytes of all memory contexts of the worker
my $worker;
my $reports = 0;

sub memory
{
	my (@found, $log);

	$reports++;
	ask("SELECT pg_log_backend_memory_contexts($worker)");
	wait_until
	{
		$log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
		@found = $log =~ /Grand total: (\d+) bytes in \d+ blocks;/g;
		@found >= $reports;
	}
	'the contexts are shown';

	# PostgreSQL's cache of the catalog doubles at once when a rotation makes it read a bit
	# more.  Settings are not in it, and plans are in contexts of their own.
	my @cache = $log =~ /level: \d+; CacheMemoryContext: (\d+) total/g;
	return $found[-1] - $cache[-1];
}

# Secrets that are being rotated, and a request that is never answered
my $header = 'x' x 4000;
foreach my $name ('grace', 'altered')
{
	endpoint($node, $receiver, $name, "/hang/$name", "topics => '{$name.*}', timeout => '10 min', headers => '{\"x-long\": \"$header\"}'");
}
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");
ask("SELECT outbox.rotate_secret('grace')");
emit($node, 'grace.one', '{}');
emit($node, 'altered.one', '{}');
ok(wait_sql($node, "SELECT sum(in_flight) = 2 FROM outbox.workers"), 'two requests hang');
$worker = worker_pid($node);

# Each change has its event, which is delivered after it was read
sub change
{
	my ($times, $sql) = @_;

	for (1 .. $times)
	{
		ask(sprintf $sql, $_ % 2 + 10);
		$receiver->wait_delivered(1, id => emit($node, 'other.one', '{}'));
	}
	return;
}

foreach my $what ('other', 'altered')
{
	my $sql = "SELECT outbox.alter_endpoint('$what', max_in_flight => %d)";

	change(20, $sql);
	my $before = memory();
	change(150, $sql);
	my $grown = memory() - $before;
	note("$what is altered 150 times: " . int($grown / 1024) . ' kB more');
	cmp_ok($grown, '<', 150 * 1024, "what 150 changes of $what leave behind")
	  unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
}
is(worker_pid($node), $worker, 'the same worker');
is(ask('SELECT sum(in_flight) FROM outbox.workers'), 2, 'the two requests are still in flight');

# The earlier secret is given up when its time is over
ask("SELECT outbox.rotate_secret('grace', grace => '1 s')");
ok( wait_sql($node, "SELECT count(*) = 0 FROM outbox.endpoint_secrets WHERE previous IS NOT NULL"),
	'the earlier secret is forgotten in time');

$node->stop('fast');
done_testing();
