# After pg_upgrade, the adopted cluster delivers exactly the events that the old one had left.
# It goes to PostgreSQL 17, with deliveries of every kind.  Nothing is sent while it
# runs, and the new cluster sends nothing until it is adopted.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Build;
use OutboxTest::Copies;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

sub leave_out
{
	my ($why) = @_;
	diag("NOT TESTED with pg_upgrade: $why");
	plan(skip_all => $why);
	return;
}

my $old_config = $ENV{PG_CONFIG} || 'pg_config';
my ($old_version) = qx{$old_config --version} =~ /PostgreSQL (\d+)/;
leave_out("PostgreSQL $old_version is not older than 17") if $old_version >= 17;
chomp(my $pg_config = qx{"$top/test/bin/postgresql" --cached 17 2>/dev/null} // '');
leave_out('PostgreSQL 17 is not to be had (test/bin/postgresql 17 says why)') if $? != 0;

my $dir = PostgreSQL::Test::Utils::tempdir('upgrade');
my $build = OutboxTest::Build->new("$dir/build", $pg_config);
$build->install;

my $old = outbox_node('old', conf => "max_prepared_transactions = 10\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = "$dir/producer";
my $slots = 4;
my %in_flight = (batches => 10 * $slots);
my %filter = (filtered => sub { $_[0] % 3 == 0 });
my @quiet = qw(all filtered slow strict none batches cloud paused replayed);
my @stuck = qw(fails dead blocks);

sub ask
{
	my ($sql, $node) = @_;
	return $node->safe_psql('postgres', $sql);
}

# Endpoints of each sort.  All of them are at /ok/NAME, so that they can change
# their behaviour.
sub make
{
	my ($name, $behaviour, $more) = @_;
	my $topics = $name eq 'replayed' ? 'load.*,bulk.*' : 'load.*,held.*';

	endpoint($old, $receiver, $name, "/ok/$name", "topics => '{$topics}', max_in_flight => $slots, $more");
	$receiver->control(path => "/ok/$name", behave => $behaviour);
	return;
}
my $never = "backoff_base => '1 h', backoff_max => '1 h'";
make('all', '/slow?ms=20', "start_at => 'beginning'");
make('filtered', '/slow?ms=10', "filter => '\$.n % 3 == 0'");
make('slow', '/slow?ms=200', "format => 'cloudevents-binary'");
make('strict', '/slow?ms=20', "ordering => 'strict'");
make('none', '/slow?ms=50', "ordering => 'none'");
make('batches', '/slow?ms=200', 'batch_size => 10');
make('cloud', '/slow?ms=20', "format => 'cloudevents'");
make('paused', '/ok', "format => 'raw'");
make('replayed', '/ok', "ordering => 'none'");
make('fails', '/status/500', $never);
make('dead', '/status/500', "max_attempts => 1, $never");
make('blocks', '/ok', "max_attempts => 1, on_exhausted => 'block', $never");

my $producer = start_producer($old, $log, rate => 50, keys => 2, topic => 'load.one');
$receiver->wait_delivered(200, path => '/ok/all');
ask("SELECT count(outbox.emit('bulk.n', '{\"n\": 1}'::jsonb)) FROM generate_series(1, 500)", $old);
$receiver->wait_delivered(500, path => '/ok/replayed', topic => 'bulk.n');
ask("SELECT outbox.pause_endpoint('paused')", $old);
$receiver->control(path => '/ok/blocks', behave => '/status/500');
ok(wait_sql($old, "SELECT dead > 0 AND blocked > 0 FROM outbox.stats WHERE endpoint = 'blocks'"),
	'a dead delivery blocks its key');
ok(wait_sql($old, "SELECT bool_and(retrying + dead > 0) FROM outbox.stats WHERE endpoint IN ('fails', 'dead')"),
	'others fail');
my $cancelled = emit($old, 'held.cancelled', '{"n": 2}');
is(ask("SELECT outbox.cancel('$cancelled', 'paused')", $old), 't', 'a delivery is cancelled');
my $scheduled = emit($old, 'load.scheduled', '{"n": 3}', "deliver_at => now() + interval '1 hour'");
my $once = emit($old, 'load.once', '{"n": 4}', "dedup_key => 'once'");

# pg_upgrade refuses prepared transactions: this one ends before
ask("BEGIN; SELECT outbox.emit('load.prepared', '{\"n\": 6}'::jsonb); PREPARE TRANSACTION 'p'", $old);
$receiver->control(path => '/ok/replayed', behave => '/slow?ms=300');
is(ask("SELECT outbox.replay('replayed', now() - interval '1 hour', now(), '{bulk.*}')", $old), 500, 'a replay');
ok(wait_sql($old, "SELECT events > 0 AND finished_at IS NULL FROM outbox.replays"), 'is under way');
ask("COMMIT PREPARED 'p'", $old);
$receiver->wait_new(20, '/ok/all');
stop_producer($producer);
my $secrets = ask("SELECT string_agg(outbox.endpoint_secret(name), ',' ORDER BY name) FROM outbox.endpoints", $old);
$old->stop;

# ---- pg_upgrade, with the receiver up

my $new = outbox_node('new', build => $build, extension => 0, start => 0, conf => "max_prepared_transactions = 10\n");
my %before = map { $_ => scalar(() = $receiver->events(path => "/ok/$_")) } @quiet, @stuck;
my $requests = () = $receiver->requests;
my %had = map { my $name = $_; $name => { map { $_->{id} => 1 } grep { $_->{delivered} } $receiver->events(path => "/ok/$name") } }
  @quiet, @stuck;
chomp(my $old_bindir = qx{$old_config --bindir});
chdir $dir or die "$dir: $!\n";
command_ok(
	[
		"$build->{install_path}/bin/pg_upgrade", '--no-sync',
		'-b', $old_bindir, '-B', "$build->{install_path}/bin", '-d', $old->data_dir, '-D', $new->data_dir,
		'-s', $new->host, '-p', $old->port, '-P', $new->port
	],
	'pg_upgrade');
is(scalar(() = $receiver->requests), $requests, 'nothing was sent while it ran');

# ---- the new cluster

$new->start;
like(ask('SHOW server_version', $new), qr/^17/, 'the new cluster');
ok(wait_sql($new, "SELECT state = 'held' AND reason LIKE '%copy%' FROM outbox.status"), 'held, and says why');
is(ask("SELECT string_agg(outbox.endpoint_secret(name), ',' ORDER BY name) FROM outbox.endpoints", $new),
	$secrets, 'the secrets came along');
is(emit($new, 'load.once', '{"n": 5}', "dedup_key => 'once'"), $once, 'so did the deduplication keys');
emit($new, 'held.one', "{\"n\": $_}", "key => 'load.one-s0-k" . ($_ % 4) . "'") foreach 1 .. 20;
foreach my $view (split /\n/,
	ask("SELECT oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'", $new))
{
	ask("SELECT count(*) FROM $view v", $new);
}

my $expected = undelivered($new, 'postgres', %filter);
my %has = map { $_ => 1 } map { values %$_ } values %$expected;
is(join(' ', sort keys %has), 'blocked dead new pending replay retrying', 'every kind of delivery is among them');
foreach my $name (sort keys %$expected)
{
	my $due = $expected->{$name};
	my %n;
	$n{$_}++ foreach values %$due;
	note(sprintf '%-10s %s', $name, join ' ', map { "$_: $n{$_}" } sort keys %n);
	cmp_ok(scalar(grep { $had{$name}{$_} } keys %$due),
		'<=', 2 * ($in_flight{$name} // $slots), "$name: no more is repeated than was in flight, and not settled")
	  if $name ne 'replayed';
}
nothing_arrives($receiver, 'the new cluster sends nothing', 1);
$new->restart;
ok(wait_sql($new, "SELECT state = 'held' FROM outbox.status"), 'nor after a restart');
is(scalar(() = $receiver->requests), $requests, 'nothing was sent');

# Adopted
$receiver->control(path => "/ok/$_", behave => '') foreach @quiet, @stuck;
my $unfiltered = count_of(undelivered($new, 'postgres'));
my $returned = ask('SELECT outbox.adopt()', $new);
cmp_ok($returned, '>=', count_of($expected), 'adopt() returns how many are due');
cmp_ok($returned, '<=', $unfiltered, 'before filters are judged');
my $after = emit($new, 'held.after', '{"n": 31}', "key => 'load.one-s0-k0'");
$expected->{$_}{$after} = 'new' foreach grep { !/filtered|replayed/ } @quiet, 'blocks', 'fails', 'dead';
ask("SELECT outbox.resume_endpoint('paused')", $new);
ok( wait_sql($new, "SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE endpoint IN ("
		  . join(',', map { "'$_'" } @quiet) . ") AND status NOT IN ('delivered', 'cancelled', 'scheduled'))"),
	'all is delivered');
ask("SELECT outbox.retry('$_')", $new) foreach @stuck;
foreach my $name (@quiet, @stuck)
{
	my $due = $expected->{$name};
	my @sent;

	wait_until { (@sent = $receiver->events(path => "/ok/$name")) >= $before{$name} + keys %$due } $name;
	my %sent;
	$sent{ $_->{id} }++ foreach splice @sent, $before{$name};
	my @missing = grep { !$sent{$_} } keys %$due;
	my @many = grep { !$due->{$_} } keys %sent;
	my @twice = grep { $sent{$_} > 1 } keys %sent;
	is(@missing . ' missing, ' . @many . ' too many, ' . @twice . ' repeated',
		'0 missing, 0 too many, 0 repeated', "$name gets exactly its " . keys(%$due));
}

# What was scheduled, what is new; and the producer's log against the journal of
# both clusters
ask("UPDATE outbox.scheduled SET deliver_at = now() WHERE id = '$scheduled'", $new);
$receiver->wait_events(1, path => '/ok/all', id => $scheduled);
pass('a scheduled event is delivered when it is due');
$producer = start_producer($new, $log, rate => 50, keys => 4, topic => 'load.two');
$receiver->wait_new(100, '/ok/all');
stop_producer($producer);
check_history($new, $receiver, $log, endpoints => [ map { "/ok/$_" } grep { !/none|filtered|replayed|blocks|dead/ } @quiet, @stuck ],
	max_duplicates => 7 * $slots + 10 * $slots, name => 'the history of both clusters: nothing lost, in order');
is(ask('SELECT sum(restarts) FROM outbox.workers', $new), '0', 'no worker ended with an error');

$new->stop;
done_testing();
