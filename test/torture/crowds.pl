# Tenants with a steady load keep it beside a crowd.
# CROWD chooses among 'tenant' (one tenant has nine tenths of the endpoints and of the events, and its receivers are slow),
# 'herd' (the breakers of ENDPOINTS (10,000) open at once, all probes are due at once, and then all receivers are back),
# 'behind' (as many go on behind the log while their receivers are down, and then these are back) and
# 'bulk' (DEAD (200,000) dead letters are tried again, replayed and sent again).  There are no statistics.  Prints what an event
# of the others takes, from its emit to the receiver, and their rate.
use strict;
use warnings;
no warnings 'portable';    # hex() of 48 bits

use OutboxTest;
use OutboxTest::Explained;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my @crowds = split ' ', $ENV{CROWD} || 'tenant herd behind bulk';
my $endpoints = $ENV{ENDPOINTS} || 10_000;
my $dead = $ENV{DEAD} || 200_000;
my $others = 8;
alarm 3600;
$PostgreSQL::Test::Utils::timeout_default = 900;

my $node = outbox_node('main', conf => "autovacuum = off\nmax_wal_size = 4GB\nsynchronous_commit = off\n");
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $crowd = OutboxTest::Receiver->new('crowd', brief => 1);
vacuum_without_statistics($node);
endpoint($node, $receiver, "other$_", "/ok/other$_", "topics => '{other.*}', tenant => 'other$_'") foreach 1 .. $others;

my $session = $node->background_psql('postgres', on_error_stop => 1);
my $offset = 0;

sub quantiles
{
	my @sorted = sort { $a <=> $b } @_;
	return map { $sorted[ $_ * $#sorted ] } 0.5, 0.99, 1;
}

# An event for each of the others, twenty times a second, until the condition holds: how long they took.  Then 2,000 events
# for one of them at once: its rate.
my (%median, %rate);

sub beside
{
	my ($what, $seconds, $until) = @_;
	my $begun = time;
	my @ids;

	until (time - $begun >= $seconds && (!$until || $until->()))
	{
		push @ids, split /\n/, $session->query_safe("SELECT outbox.emit('other.n', '{}', tenant => 'other' || n) FROM generate_series(1, $others) n");
		usleep(50_000);
		last if time - $begun > 600;
	}
	my $lasted = time - $begun;
	wait_until { scalar $receiver->delivered(id => $ids[-1]) } "$what: the last one";
	my @took = map { my ($r) = $receiver->delivered(id => $_); $r ? $r->{wall} - hex(join '', (split /-/)[ 0, 1 ]) / 1000 : () } @ids;
	is(scalar(@took), scalar(@ids), "$what: all have come");
	my @q = quantiles(@took);
	$median{$what} = $q[0];

	my $had = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'other1'");
	$begun = time;
	ask("SELECT count(outbox.emit('other.n', '{}', tenant => 'other1')) FROM generate_series(1, 2000)");
	wait_sql($node, "SELECT delivered >= $had + 2000 FROM outbox.stats WHERE endpoint = 'other1'") or die 'nothing moves';
	$rate{$what} = 2000 / (time - $begun);
	diag(sprintf '%s (%.0f s): p50 %.0f ms, p99 %.0f ms, %.0f ms at most; %.0f/s', $what, $lasted, (map { 1000 * $_ } @q), $rate{$what});
	return;
}

sub drop_crowd
{
	ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name !~ '^other'");
	ok(wait_sql($node, "SELECT endpoints = $others FROM outbox.workers"), 'the crowd is gone');
	return;
}

sub one_tenant
{
	my $n = 9 * $others * 5;
	my $url = $crowd->url('/slow');
	ask("SELECT count(outbox.create_endpoint('big' || n, '$url/' || n || '?ms=500', topics => ARRAY['big.n'], tenant => 'big')) FROM generate_series(1, $n) n");
	my $more = sub { ask("SELECT count(outbox.emit('big.n', jsonb_build_object('text', repeat('x', 500)), tenant => 'big')) FROM generate_series(1, 300)") };
	$more->();
	beside('one tenant has most, and is slow', 20);
	ask("SELECT count(outbox.pause_endpoint('big' || n)) FROM generate_series(1, $n) n");
	$more->();
	ask("SELECT count(outbox.resume_endpoint('big' || n)) FROM generate_series(1, $n) n");
	beside('the same, behind', 20);
	return;
}

sub herd
{
	my $url = $crowd->url('/ok/herd');
	$crowd->stop;
	ask("SELECT count(outbox.create_endpoint('herd' || n, '$url', topics => '{herd.*}', backoff_base => '1 h', backoff_max => '1 h', max_attempts => 100)) FROM generate_series(1, $endpoints) n");
	ok(wait_sql($node, "SELECT endpoints = $others + $endpoints FROM outbox.workers"), 'all are there');
	beside('a herd that rests', 10);
	ask("SELECT count(outbox.emit('herd.n', '{}')) FROM generate_series(1, 20)");
	my $open = sub { ask("SELECT count(*) = $endpoints FROM outbox.stats WHERE state = 'backing_off'") eq 't' };
	beside('all breakers open', 10, $open);
	ask("SELECT count(outbox.resume_endpoint('herd' || n)) FROM generate_series(1, $endpoints) n");
	beside('all probes at once', 10, $open);
	$crowd->start;
	ask("SELECT count(outbox.resume_endpoint('herd' || n)) FROM generate_series(1, $endpoints) n");
	ask("SELECT count(outbox.retry('herd' || n)) FROM generate_series(1, $endpoints) n");
	beside('all receivers are back', 10, sub { ask('SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats') eq 't' });
	return;
}

# Each has 20 events that it has not read.
sub behind
{
	my $url = $crowd->url('/ok/behind');
	ask("SELECT count(outbox.create_endpoint('behind' || n, '$url', topics => '{behind.*}', backoff_base => '1 h', backoff_max => '1 h', max_attempts => 100)) FROM generate_series(1, $endpoints) n");
	ok(wait_sql($node, "SELECT endpoints = $others + $endpoints FROM outbox.workers"), 'all are there');
	ask("SELECT count(outbox.pause_endpoint('behind' || n)) FROM generate_series(1, $endpoints) n");
	ask("SELECT count(outbox.emit('behind.n', '{}')) FROM generate_series(1, 20)");
	ok(wait_sql($node, "SELECT sum(pending) = 20 * $endpoints FROM outbox.stats WHERE endpoint ~ '^behind'"), 'all are behind');
	$crowd->stop;
	ask("SELECT count(outbox.resume_endpoint('behind' || n)) FROM generate_series(1, $endpoints) n");
	beside('behind, and all receivers are down', 10, sub { ask("SELECT count(*) = $endpoints FROM outbox.stats WHERE state = 'backing_off'") eq 't' });
	$crowd->start;
	ask("SELECT count(outbox.resume_endpoint('behind' || n)) FROM generate_series(1, $endpoints) n");
	ask("SELECT count(outbox.retry('behind' || n)) FROM generate_series(1, $endpoints) n");
	beside('behind, and all receivers are back', 10, sub { ask('SELECT sum(pending + processing + retrying + blocked) = 0 FROM outbox.stats') eq 't' });
	return;
}

sub bulk
{
	endpoint($node, $crowd, 'bulk', '/ok/bulk', "topics => '{none}', tenant => 'bulk'");
	ask("SELECT count(outbox.emit('bulk.n', to_jsonb(n), key => 'k' || n % 50000, tenant => 'bulk')) FROM generate_series(1, $dead) n");
	ask(park_as_dead("s.name = 'bulk' AND e.topic = 'bulk.n'"));
	replace_worker($node);
	ok(wait_sql($node, "SELECT dead = $dead FROM outbox.stats WHERE endpoint = 'bulk'"), 'dead letters');
	beside('beside dead letters', 10);
	ask("SELECT outbox.retry('bulk')");
	beside('retry() of all', 20, sub { ask("SELECT dead + retrying + blocked = 0 FROM outbox.stats WHERE endpoint = 'bulk'") eq 't' });
	ask("SELECT outbox.alter_endpoint('bulk', topics => '{bulk.*}')");
	ask("SELECT outbox.replay('bulk', now() - interval '1 h')");
	beside('replay() of all', 20, sub { ask('SELECT count(*) = 0 FROM outbox.replays WHERE finished_at IS NULL') eq 't' });
	my $n = $dead / 10;
	ask("SELECT count(outbox.emit('bulk.again', '{}', key => 'k' || n, tenant => 'bulk')) FROM generate_series(1, $n) n");
	ok(wait_settled($node), 'some more are delivered');
	ask("SELECT count(outbox.resend('bulk', e.id)) FROM outbox.events e WHERE e.topic = 'bulk.again'");
	beside('resend() of as many as a tenth', 20, sub { ask("SELECT NOT EXISTS (SELECT FROM outbox.commands) AND (SELECT retrying + blocked = 0 FROM outbox.stats WHERE endpoint = 'bulk')") eq 't' });
	return;
}

my %run = (tenant => \&one_tenant, herd => \&herd, behind => \&behind, bulk => \&bulk);
beside('alone', 10);
foreach my $name (@crowds)
{
	$run{$name}->();
	drop_crowd();
}
$session->quit;
is(ask("SELECT sum(failed_attempts) FROM outbox.stats"), '0', 'the others have not failed');
foreach my $what (sort grep { $_ ne 'alone' } keys %rate)
{
	cmp_ok($rate{$what}, '>=', $rate{alone} / 10, "$what: the others have a tenth of their rate at least");
	cmp_ok($median{$what}, '<=', 1 + $median{alone}, "$what: and no second to wait");
}
unlike(slurp_file($node->logfile), qr/was terminated by signal|PANIC/, 'no process has crashed');
$node->stop;
done_testing();
