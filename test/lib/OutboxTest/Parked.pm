package OutboxTest::Parked;

# Endpoints with many rows in outbox.parked, of each kind, and what a worker that
# starts makes of them, and how much memory that takes.

use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use Test::More;
use Time::HiRes qw(time usleep);

# Rows that were never emitted have numbers below those of all events.  The blocked
# ones: half of them are behind one head, the others each behind one of its own.
my %rows = (
	dead => [ "'k' || n, 'dead', 'max_attempts', NULL", '1, $n' ],
	cancelled => [ "'k' || n, 'cancelled', 'discarded', NULL", '1, $n' ],
	retrying => [ "'k' || n, 'retrying', NULL, now() + interval '1 h' + n * interval '1 us'", '1, $n' ],
	blocked => [ "'k' || CASE WHEN n % 2 = 0 THEN 0 ELSE n END, 'blocked', NULL, NULL", '1, $n' ],
	heads => [ "'k' || n, 'retrying', NULL, now() + interval '1 h'", '-1, $n, 2' ]);

sub fill
{
	my ($node, $receiver, $n) = @_;

	foreach my $kind (qw(dead cancelled retrying blocked))
	{
		my $dead = $kind eq 'dead' ? ", on_exhausted => 'block'" : '';

		endpoint($node, $receiver, $kind, "/ok/$kind",
			"topics => '{$kind.*}', backoff_base => '1 h', backoff_max => '7 d'$dead");
	}
	# Known to the worker, which holds back nothing that comes later.
	$receiver->wait_delivered(1, id => emit($node, "$_.first", '{}')) foreach qw(dead cancelled retrying blocked);
	stop($node);
	foreach my $kind (sort keys %rows)
	{
		my ($columns, $series) = @{ $rows{$kind} };
		my $endpoint = $kind eq 'heads' ? 'blocked' : $kind;
		my $number = $kind eq 'heads' ? "-2 * $n - 2 - n" : '-n';
		my $k = $kind eq 'heads' ? "'k' || CASE WHEN n = -1 THEN 0 ELSE n END" : "'k' || n";

		$series =~ s/\$n/$n/;
		$columns =~ s/'k' \|\| n/$k/ if $kind eq 'heads';
		$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, next_attempt_at, attempts, parked_at)
SELECT (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = '$endpoint'), $number, gen_random_uuid(),
	$columns, 1, now() FROM generate_series($series) n
SQL
	}
	$node->safe_psql('postgres', 'VACUUM ANALYZE outbox.parked');
	return;
}

# No worker until go().
sub stop
{
	my ($node) = @_;

	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
	$node->restart;
	return;
}

sub go
{
	my ($node) = @_;

	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'\n");
	$node->restart;
	return worker_pid($node);
}

# The most memory of its own, in MB, that the process has until the condition holds.
sub peak
{
	my ($pid, $condition, $seconds) = @_;
	my $end = time + $seconds;
	my $most = 0;
	my $asked = 0;

	while (time < $end)
	{
		$most = max($most, eval { private_memory($pid) } // 0);
		usleep(5_000);
		next if time < $asked + 0.5;
		return $most if $condition->();
		$asked = time;
	}
	fail('in time: all is counted');
	return $most;
}

sub counted
{
	my ($node, $n) = @_;
	my $heads = int(($n + 1) / 2) + 1;

	return $node->safe_psql('postgres', <<"SQL") eq 't';
SELECT count(*) = 4 AND bool_and(pending_exact) AND sum(dead) = $n AND sum(blocked) BETWEEN $n AND $n + 1 AND sum(retrying) = $n + $heads
FROM outbox.stats
SQL
}

1;
