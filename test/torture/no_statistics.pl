# A million dead letters that are tried again leave others their rate without statistics.
# There are ROWS (1,000,000) with four of each key, and a quarter as many that are kept.  Autovacuum is off, and the tables were
# vacuumed while they were empty.  Prints rates.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Explained;
use Test::More;
use Time::HiRes qw(time sleep);

my $rows = $ENV{ROWS} || 1_000_000;
my $keys = $rows / 4;
my $beside = 20_000;
alarm 3600;
$PostgreSQL::Test::Utils::timeout_default = 900;

# Of two endpoints, one has 10,000 retries in memory, and they are read at once.
my $most_rows = 10_500;
my $node = outbox_node('main', conf => explained_conf() . "max_wal_size = 8GB\nsynchronous_commit = off\n");
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

vacuum_without_statistics($node);

# Statements for a few seconds
sub judge_some
{
	my ($what) = @_;

	skip_explained($node);
	log_plans($node, 1);
	sleep 3;
	log_plans($node, 0);
	sleep 0.5;
	judge($node, $what, $most_rows);
	return;
}

my $others = 0;
my %rate;

# Events a second of an endpoint that the rows do not concern
sub other
{
	my ($what) = @_;

	ask("SELECT count(outbox.emit('other.n', '{}', key => 'k' || n % 100)) FROM generate_series(1, $beside) n");
	my $begun = time;
	$others += $beside;
	wait_sql($node, "SELECT delivered >= $others FROM outbox.stats WHERE endpoint = 'other'") or die 'nothing moves';
	$rate{$what} = $beside / (time - $begun);
	return;
}

# Events a second of the rows
sub bulk
{
	my ($what, $seconds) = @_;
	my $delivered = "SELECT delivered FROM outbox.stats WHERE endpoint = 'bulk'";
	my ($begun, $before) = (time, ask($delivered));

	sleep $seconds;
	$rate{$what} = (ask($delivered) - $before) / (time - $begun);
	return;
}

# An endpoint for which all events of its topic are dead letters
sub dead
{
	my ($name) = @_;
	my $url = $receiver->url("/ok/$name");

	ask(<<"SQL");
BEGIN;
SELECT outbox.create_endpoint('$name', '$url', topics => '{$name.*}', max_in_flight => 64, on_exhausted => 'block');
@{[park_as_dead("s.name = '$name' AND e.topic = '$name.n'")]};
COMMIT;
SQL
	ok(wait_sql($node, "SELECT dead > 0 FROM outbox.stats WHERE endpoint = '$name'"), "$name: dead letters");
	return;
}

endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");
other('alone');
ask("SELECT count(outbox.emit('bulk.n', to_jsonb(n), key => 'k' || n % $keys)) FROM generate_series(1, $rows) n");
dead('bulk');
other('beside a million dead letters');
my $begun = time;
ask("SELECT outbox.retry('bulk')");
diag(sprintf 'retry() took %.1f s', time - $begun);
judge_some('commands');
other('while retry() is carried out');
my $patience = 20;
sleep 30 while $patience-- > 0 && ask("SELECT dead > 0 FROM outbox.stats WHERE endpoint = 'bulk'") eq 't';
is(ask("SELECT dead FROM outbox.stats WHERE endpoint = 'bulk'"), '0', 'all are tried again');
diag(sprintf 'carried out after %.1f s', time - $begun);
bulk('retries', 10);
other('beside the retries');
judge_some('retries');

replace_worker($node);
$begun = time;
$receiver->wait_delivered(1, id => emit($node, 'other.n', '{}'));
$others++;
diag(sprintf 'after the restart: the first event after %.2f s', time - $begun);
$others = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'other'");
bulk('after a restart', 10);
other('beside them');
judge_some('after a restart');

$node->restart;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'the server has started again');
ok(wait_sql($node, "SELECT retrying >= 0 FROM outbox.stats WHERE endpoint = 'bulk'"), 'rows are counted');
bulk('after a restart of the server', 10);
diag(ask("SELECT retrying FROM outbox.stats WHERE endpoint = 'bulk'") . ' are left');

# A piece of the log goes, of which many are dead letters
my $kept = $rows / 4;
ask("SELECT count(outbox.emit('gone.n', to_jsonb(n), key => 'k' || n % 100)) FROM generate_series(1, $kept) n");
dead('gone');
skip_explained($node);
$node->append_conf('postgresql.conf', "outbox.retention = '2s'");
log_plans($node, 1);
ok(wait_sql($node, "SELECT count(*) >= $kept FROM outbox.kept_events"), "$kept events are kept");
log_plans($node, 0);
sleep 0.5;
judge($node, 'while events are kept', $most_rows);
other('beside what is kept');
ask("SELECT outbox.discard('gone')");
other('while discard() is carried out');
ok(wait_sql($node, "SELECT dead = 0 FROM outbox.stats WHERE endpoint = 'gone'"), 'all are discarded');
is(ask("SELECT count(*) FROM pg_statistic s JOIN pg_class c ON c.oid = s.starelid"
		  . " WHERE c.relnamespace = 'outbox'::regnamespace"), '0', 'there are no statistics');
diag(join "\n", map { sprintf '%7.0f/s %s', $rate{$_}, $_ } sort keys %rate);
note($_) foreach worst_plans();
cmp_ok($rate{'while discard() is carried out'}, '>=', $rate{'beside what is kept'} / 2, 'discards leave the neighbour half of its rate at least');
cmp_ok($rate{$_}, '>=', $rate{alone} / 10, "$_, the neighbour has a tenth of its rate at least") foreach 'while retry() is carried out', 'beside the retries';
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');
$node->stop;
done_testing();
