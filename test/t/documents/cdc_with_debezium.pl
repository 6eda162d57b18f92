# The real Debezium, set up as doc/cdc.md says, gets every event in the order of its key.
# Also while the log is emptied.  "make clients" fetches what this needs, and runs it.
use strict;
use warnings;

use OutboxTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jars = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/debezium';
plan skip_all => 'takes a minute or two and what Maven fetches: "make clients" runs it'
  unless $ENV{OUTBOX_TEST_CLIENTS};
plan skip_all => "no Debezium in $jars, or no java: Maven could not fetch it"
  unless -e "$jars/complete" && system('java -version > /dev/null 2>&1') == 0;

my $doc = slurp_file("$top/doc/cdc.md");
my ($properties) = $doc =~ /^```properties\n(.*?)^```/ms;
my @sql = $doc =~ /^```sql\n(.*?)^```/msg;
my $dir = PostgreSQL::Test::Utils::tempdir('cdc');
my $node = PostgreSQL::Test::Cluster->new('main');
my $sessions = 4;
my $each = 250;

# Debezium connects by TCP
$node->init(allows_streaming => 'logical', extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'outbox'
outbox.allowed_networks = '127.0.0.1/32'
outbox.retention = '2 s'
listen_addresses = '127.0.0.1'
CONF
$node->append_conf('pg_hba.conf', "host all debezium 127.0.0.1/32 trust\nhost replication debezium 127.0.0.1/32 trust\n");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION outbox');
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'all', '/ok/a', "topics => '{order.*}'");

foreach my $sql (@sql)
{
	my ($rc, undef, $err) = $node->psql('postgres', $sql);
	is($rc, 0, (split /\n/, $sql)[0]) or diag($err);
}

my ($host, $port) = ('127.0.0.1', $node->port);
$properties =~ s/^(database\.hostname=).*/$1$host/m;
$properties =~ s/^(database\.port=).*/$1$port/m;
append_to_file("$dir/properties", $properties . <<"MORE");
name=outbox
offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore
offset.storage.file.filename=$dir/offsets
offset.flush.interval.ms=500
MORE
my $pid;
my $start = sub {
	$pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>>', "$dir/log");
		open(STDERR, '>&', \*STDOUT);
		exec 'java', '-cp', "$jars/*", "$top/test/cdc/Events.java", "$dir/properties", "$dir/events"
		  or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
};
my $active = "SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'outbox_cdc' AND active";

# At a rate, so that the log goes on in another piece meanwhile
my $emit = sub {
	my ($round) = @_;
	my @pids;

	foreach my $session (1 .. $sessions)
	{
		my $child = fork // die "fork: $!";
		if ($child == 0)
		{
			$node->psql('postgres', <<"SQL");
DO \$\$ BEGIN
FOR i IN 1 .. $each LOOP
	PERFORM outbox.emit('order.created', jsonb_build_object('round', $round, 'n', i), key => 'k$session');
	IF i % 10 = 0 THEN ROLLBACK; PERFORM outbox.emit('order.created', jsonb_build_object('round', $round, 'n', i), key => 'k$session'); END IF;
	COMMIT;
	PERFORM pg_sleep(0.01);
END LOOP;
END \$\$
SQL
			POSIX::_exit(0);
		}
		push @pids, $child;
	}
	waitpid($_, 0) foreach @pids;
};
my $arrived = sub {
	open(my $fh, '<', "$dir/events") or return {};
	my %of;
	while (<$fh>)
	{
		chomp;
		my ($topic, $key, $value) = split /\t/, $_, 3;
		next unless $topic eq 'order.created';
		foreach ($key, $value)
		{
			$_ = decode_json("[$_]")->[0];
			$_ = $_->{payload} if ref $_ && exists $_->{schema};
		}
		$value = decode_json($value) unless ref $value;
		push @{ $of{$key} }, "$value->{round}.$value->{n}";
	}
	return \%of;
};
my $count = sub { my $of = $arrived->(); my $n = 0; $n += @$_ foreach values %$of; return $n };

$start->();
ok(wait_sql($node, $active), 'Debezium reads a slot') or diag(slurp_file("$dir/log"));
my $piece = $node->safe_psql('postgres', "SELECT piece FROM outbox.pieces WHERE log = 'events'");
$emit->(1);
ok(wait_until(sub { $count->() >= $sessions * $each }, 'all that was emitted arrives'), 'all that was emitted arrives')
  or diag(slurp_file("$dir/log"));
isnt($node->safe_psql('postgres', "SELECT piece FROM outbox.pieces WHERE log = 'events'"),
	$piece, 'the log went on in another piece meanwhile');

# A publication that says when a table is emptied
$node->safe_psql('postgres', "ALTER PUBLICATION outbox_cdc SET (publish = 'insert, truncate')");
$emit->(2);
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.events"), 'the log is emptied');
$emit->(3);
ok(wait_until(sub { $count->() >= 3 * $sessions * $each }, 'and what comes later arrives'), 'and what comes later arrives')
  or diag(slurp_file("$dir/log"));

# Down, and up again
kill 'TERM', $pid;
waitpid($pid, 0);
$emit->(4);
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.events"), 'the log is emptied while Debezium is down');
$start->();
ok(wait_until(sub { $count->() >= 4 * $sessions * $each }, 'what was emitted while it was down arrives'),
	'what was emitted while it was down arrives')
  or diag(slurp_file("$dir/log"));
kill 'TERM', $pid;
waitpid($pid, 0);

my $got = $arrived->();
my @all = map { my $round = $_; map { "$round.$_" } 1 .. $each } 1 .. 4;
foreach my $key (map { "k$_" } 1 .. $sessions)
{
	my %seen;
	my @first = grep { !$seen{$_}++ } @{ $got->{$key} // [] };
	is("@first", "@all", "$key: every event, in order");
	note(@{ $got->{$key} // [] } - @first . ' repeated');
}
unlike(slurp_file("$dir/log"), qr/\bERROR\b/, 'no error in its log');

$node->stop;
done_testing();
