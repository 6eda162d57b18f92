# No event of a followed source is lost, invented or out of order, whichever of the two servers dies.
# ROUNDS says how often something dies (default 40), SEED repeats the decisions.  Keys are written
# one transaction at a time, so the source's ledger has the order of each key.
use strict;
use warnings;

use IPC::Run qw(start);
use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $rounds = $ENV{ROUNDS} || 40;
my $seed = $ENV{SEED} || int time;
srand $seed;
diag("SEED=$seed");
alarm 300 + 30 * $rounds;

my $servers = OutboxTest::Followed->new(source => "wal_sender_timeout = '5s'\n", follower => "restart_after_crash = on\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

sub at_source { return $servers->provider(@_) }
sub ask { return $servers->ask(@_) }
sub follow { return $servers->follow("keep => '0'") }

at_source('CREATE TABLE ledger (k int, n int, id uuid, PRIMARY KEY (k, n))');
endpoint($follower, $receiver, 'all', '/ok/all', 'max_in_flight => 8');
follow();

my $script = $servers->emits_in_order;

my %way = (
	'the source dies' => sub { $source->stop('immediate'); $source->start },
	'the follower dies' => sub { $follower->stop('immediate'); $follower->start },
	'both die' => sub { $source->stop('immediate'); $follower->stop('immediate'); $follower->start; $source->start },
	'the follower restarts' => sub { $follower->restart },
	'the sender dies' => sub { at_source('SELECT pg_terminate_backend(pid) FROM pg_stat_replication') },
	'the subscription dies' => sub { ask('SELECT pg_terminate_backend(pid) FROM pg_stat_subscription') },
	'the worker dies' => sub { kill 'KILL', worker_pid($follower); $follower->poll_query_until('postgres', 'SELECT true') },
	'the tables are emptied' => sub { ask('SELECT outbox.keep_sources()') foreach 1 .. 3 },
	'it is followed anew' => sub { ask("SELECT outbox.unfollow('shop')"); follow() });
my @ways = sort keys %way;
my %done;
foreach my $round (1 .. $rounds)
{
	# Into a file: nothing reads a pipe while another program runs.  -d would be the option for debugging.
	my $load = start [ 'pgbench', '-n', '-T', 2, '-c', 3, '-R', 300, '-f', $script, $source->connstr('shop') ],
	  '>', "$script.log", '2>&1';
	usleep(200_000 + rand 1_500_000);
	my $name = $ways[ rand @ways ];
	$way{$name}->();
	$done{$name}++;
	$load->finish;    # it may have failed with the source
}
diag(join ', ', map { "$_: $done{$_}" } sort keys %done);

my %place = map { my ($id, $k, $n) = split /\|/; ($id => [ $k, $n ]) } split /\n/, at_source('SELECT id, k, n FROM ledger');
wait_until { my %got = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/all'); keys %got >= keys %place }
scalar(keys %place) . ' events have arrived';
ok(wait_settled($follower), 'and are delivered');
my (%seen, %last, @wrong);
foreach my $request ($receiver->delivered(path => '/ok/all'))
{
	next if $seen{ $request->{id} }++;
	my ($k, $n) = @{ $place{ $request->{id} } // [ 'unknown', 0 ] };
	push @wrong, "$request->{id} is not in the ledger" if $k eq 'unknown';
	push @wrong, "key $k: $n after $last{$k}" if $k ne 'unknown' && $n <= ($last{$k} // 0);
	$last{$k} = $n;
}
is(scalar(grep { !$seen{$_} } keys %place), 0, 'none is lost');
is(join("\n", @wrong), '', 'none is invented, and each key is in order');
is(ask('SELECT count(*) FROM outbox.refused_events'), 0, 'none is set aside');
is(ask('SELECT count(*) - count(DISTINCT id) FROM outbox.all_events'), 0, 'and none is twice in the log');
done_testing();
