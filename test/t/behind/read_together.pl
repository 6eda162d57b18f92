# Endpoints without a tenant that are behind read the log together, each from its own place.
# Each gets all of its events once and in order.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $endpoints = 40;
my $rows = 0;    # in the log

# Events of each endpoint's topic in turn, and two for all of them
sub emit_many
{
	my ($first, $count, $client) = @_;
	my $sql = "SELECT count(outbox.emit('t.' || i % $endpoints, jsonb_build_object('n', i), key => 'k'))"
	  . " FROM generate_series($first, $first + $count - 1) i";
	$sql .= "; SELECT outbox.emit('all', jsonb_build_object('n', $first + $count + i), key => 'k') FROM generate_series(0, 1) i";

	$rows += $count + 2;
	return $client ? $client->query_safe($sql) : ask($sql);
}

sub for_all
{
	my ($what, $from, $to) = @_;
	return ask("SELECT count(outbox.$what('e' || i)) FROM generate_series($from, $to) i");
}

# What each endpoint has delivered, and whether nothing is left
sub all_delivered
{
	return wait_sql($node, "SELECT bool_and(pending = 0 AND pending_exact) AND sum(delivered) = $_[0] FROM outbox.stats WHERE endpoint ~ '^e'");
}

endpoint($node, $receiver, 'marker', '/ok/marker', "topics => '{marker}'");
# The filter of one of them leaves out some.
ask("SELECT count(outbox.create_endpoint('e' || i, '" . $receiver->url('/ok/e') . "' || i, topics => ARRAY['t.' || i, 'all'],"
	  . " batch_size => 50, filter => CASE WHEN i = 5 THEN '\$.n > 3000'::jsonpath END))"
	  . " FROM generate_series(0, $endpoints - 1) i");
ok(all_delivered(0), 'settled');

# They stop at several places, one within a tick, and two transactions commit late.
my @late = map { $node->background_psql('postgres', on_error_stop => 1) } 1 .. 2;
$_->query_safe('BEGIN') foreach @late;
emit_many(100_001, 2_000, $late[0]);
for_all('pause_endpoint', 0, 2);
for_all('pause_endpoint', 4, 9);
emit_many(1, 400);
for_all('pause_endpoint', 10, 19);
emit_many(501, 400);
wait_sql($node, "SELECT bool_and(pending = 0) FROM outbox.stats WHERE endpoint ~ '^e[23].'");
emit_many(200_001, 2_000, $late[1]);
$receiver->control(path => '/ok/e3', behave => '/slow?ms=1000');
ask("SELECT outbox.alter_endpoint('e3', max_in_flight => 2)");
ask("SELECT count(outbox.emit('t.3', jsonb_build_object('n', i))) FROM generate_series(300001, 304000) i");
$rows += 4000;
my $then = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'e3'");
wait_sql($node, "SELECT delivered > $then FROM outbox.stats WHERE endpoint = 'e3'");
for_all('pause_endpoint', 3, 3);
for_all('pause_endpoint', 20, $endpoints - 1);
emit_many(1_001, 4_000);
$late[0]->query_safe('COMMIT');
emit_many(10_001, 8_000);
$late[1]->query_safe('COMMIT');
$_->quit foreach @late;
emit_many(20_001, 400);

$receiver->control(path => '/ok/e3', behave => '');
# Requests that a restart ends would be repeated.
ok(wait_sql($node, "SELECT processing = 0 FROM outbox.stats WHERE endpoint = 'e3'"), 'its requests have ended');
ask("SELECT outbox.alter_endpoint('e3', reset => '{max_in_flight}')");

# After a restart nobody knows how much it is.
my $begun = log_rows_read($node, $receiver);
$node->restart;
ok(wait_sql($node, "SELECT bool_and(pending_exact) FROM outbox.stats WHERE endpoint ~ '^e'"), 'counted');
is(ask("SELECT reading IS NOT NULL FROM outbox.positions JOIN outbox.endpoint_settings USING (endpoint_id)"
	  . " WHERE name = 'e3' ORDER BY number DESC LIMIT 1"), 't', 'one of them is within a tick');
my $counted = log_rows_read($node, $receiver) - $begun;

sub resume
{
	return ask("SELECT count(outbox.resume_endpoint('e' || $endpoints - i)) FROM generate_series(1, $endpoints) i");
}

# Those that are read again from their places get nothing again.
foreach (1 .. 3)
{
	my $then = ask("SELECT sum(delivered) FROM outbox.stats WHERE endpoint ~ '^e'");

	resume();
	ok(wait_sql($node, "SELECT sum(delivered) > $then OR bool_and(pending = 0 AND pending_exact) FROM outbox.stats WHERE endpoint ~ '^e'"),
		'some are delivered, or none is left');
	for_all('pause_endpoint', 0, $endpoints - 1);
}
resume();
my $events = ask("SELECT count(*) FROM outbox.events, generate_series(0, $endpoints - 1) i WHERE topic IN ('t.' || i, 'all')"
	  . " AND (i <> 5 OR (payload ->> 'n')::int > 3000)");
ok(all_delivered($events), 'all is delivered');
my $read = log_rows_read($node, $receiver) - $begun - $counted;
note("$rows rows in the log, $counted read to count, $read to deliver");
cmp_ok($counted, '<', 15 * $rows, 'rows that were read to count');
cmp_ok($read, '<', 25 * $rows, 'rows that were read to deliver');

my %got;
push @{ $got{ $_->{path} } }, $_->{n} // $_->{body} =~ /"n": ?(\d+)/ foreach grep { $_->{delivered} } $receiver->events;
foreach my $i (0 .. $endpoints - 1)
{
	my @n = @{ $got{"/ok/e$i"} };
	my $wanted = ask("SELECT string_agg(payload ->> 'n', ' ' ORDER BY (payload ->> 'n')::int) FROM outbox.events"
		  . " WHERE topic IN ('t.$i', 'all')" . ($i == 5 ? " AND (payload ->> 'n')::int > 3000" : ''));

	is(join(' ', sort { $a <=> $b } @n), $wanted, "endpoint $i: each event once");
	foreach my $part (0, 100_000, 200_000)
	{
		my @of = grep { $_ > $part && $_ < $part + 100_000 } @n;
		is("@of", join(' ', sort { $a <=> $b } @of), 'in order');
	}
}

# The endpoints of one tenant, while those of more other tenants wait for their turn
ask("SELECT count(outbox.create_endpoint(CASE WHEN i <= 10 THEN 'team' ELSE 'other' END || i, '" . $receiver->url('/ok/team') . "',"
	  . " topics => '{team}', tenant => CASE WHEN i <= 10 THEN 'team' ELSE 't' || i END, batch_size => 100)) FROM generate_series(1, 30) i");
ask("SELECT count(outbox.pause_endpoint(name)) FROM outbox.endpoints WHERE name ~ '^(team|other)'");
ok(wait_sql($node, "SELECT bool_and(state = 'paused') FROM outbox.stats WHERE endpoint ~ '^(team|other)'"), 'paused');
ask("SELECT count(outbox.emit('team', '{}', tenant => 'team')) FROM generate_series(1, 900)");
ask("SELECT count(outbox.emit('team', '{}', tenant => 't' || i)) FROM generate_series(11, 30) i");
$begun = log_rows_read($node, $receiver);
ask("SELECT count(outbox.resume_endpoint(name)) FROM outbox.endpoints WHERE name ~ '^(team|other)'");
ok(wait_sql($node, "SELECT bool_and(pending = 0 AND pending_exact) AND sum(delivered) = 9020 FROM outbox.stats WHERE endpoint ~ '^(team|other)'"),
	'all is delivered');
$read = log_rows_read($node, $receiver) - $begun;
note("$read rows read");
cmp_ok($read, '<', 4_500, 'rows that were read for ten endpoints of a tenant with 900 events');

# Pairs of which one stopped earlier than the other one, both behind events of a transaction that commits late.  The place of who
# reads with the first one is told by what that one has read, but the second must not get again what it has had.
my $pairs = 5;
ask("SELECT count(outbox.create_endpoint(part || i, '" . $receiver->url('/ok/pair.') . "' || part || i, topics => '{pair}', batch_size => 1,"
	  . " max_in_flight => 1)) FROM unnest('{a,b}'::text[]) part, generate_series(1, $pairs) i");

sub for_names
{
	my ($what, $names) = @_;
	return ask("SELECT count(outbox.$what(name)) FROM unnest('{$names}'::text[]) name");
}

# It gets so much at once that it stops within the tick.
sub within
{
	my ($name, $sql) = @_;

	$receiver->control(path => "/ok/$name", behave => '/slow?ms=1000');
	ask($sql);
	$receiver->wait_for(1, path => "/ok/$name");
	for_names('pause_endpoint', $name);
	ok(wait_sql($node, "SELECT state = 'paused' FROM outbox.stats WHERE endpoint = '$name'"), "$name is paused");
	$receiver->control(path => "/ok/$name", behave => '');
	ok(wait_sql($node, "SELECT processing = 0 FROM outbox.stats WHERE endpoint = '$name'"), 'its requests have ended');
	return ok(wait_sql($node, "SELECT p.reading IS NOT NULL FROM outbox.positions p JOIN outbox.endpoint_settings USING (endpoint_id)"
			  . " WHERE name = '$name' ORDER BY p.number DESC LIMIT 1"), 'within a tick');
}

sub for_pairs
{
	my ($what, $parts) = @_;
	return ask("SELECT count(outbox.$what(part || i)) FROM unnest(string_to_array('$parts', NULL)) part, generate_series(1, $pairs) i");
}

ask("SELECT outbox.emit('pair', '{\"n\": 0}')");
ok(wait_settled($node), 'settled');
my $late = $node->background_psql('postgres', on_error_stop => 1);
$late->query_safe("BEGIN; SELECT count(outbox.emit('pair', jsonb_build_object('n', i))) FROM generate_series(1, 20) i");
ask("SELECT outbox.emit('pair', '{\"n\": 101}')");
ok(wait_sql($node, "SELECT bool_and(delivered = 2) FROM outbox.stats WHERE endpoint ~ '^[ab][1-$pairs]'"), 'both are behind its first events');
for_pairs('pause_endpoint', 'a');
ask("SELECT count(outbox.emit('pair', jsonb_build_object('n', 101 + i))) FROM generate_series(1, 9) i");
ok(wait_sql($node, "SELECT sum(delivered) = 11 * $pairs FROM outbox.stats WHERE endpoint ~ '^b[1-$pairs]'"), 'the second ones get what is committed');
for_pairs('pause_endpoint', 'b');
$late->query_safe('COMMIT');
$late->quit;
$node->restart;
ok(wait_sql($node, "SELECT bool_and(pending_exact) FROM outbox.stats WHERE endpoint ~ '^[ab][1-$pairs]'"), 'counted');
$receiver->control(path => "/ok/pair.b$_", behave => '/slow?ms=200') foreach 1 .. $pairs;
for_pairs('resume_endpoint', 'ab');
ok(wait_sql($node, "SELECT bool_and(delivered > 11) FROM outbox.stats WHERE endpoint ~ '^b[1-$pairs]'"), 'they get some of the late events');
for_pairs('pause_endpoint', 'ab');
$receiver->control(path => "/ok/pair.b$_", behave => '') foreach 1 .. $pairs;
for_pairs('resume_endpoint', 'ab');
ok(wait_settled($node), 'and then all');
foreach my $name (map { ("a$_", "b$_") } 1 .. $pairs)
{
	is(join(' ', sort { $a <=> $b } map { $_->{body} =~ m{"n": ?(\d+)} } $receiver->delivered(path => "/ok/pair.$name")), join(' ', 0 .. 20, 101 .. 110), "$name: each event once");
}

# One is within a tick, and one behind it within a later tick, which has events of a transaction that commits late.  The first one
# must not go over to the later tick, or it would pass these.
endpoint($node, $receiver, $_, "/ok/$_", "topics => '{$_,both}', batch_size => 1") foreach qw(later within);
ok(wait_settled($node), 'settled');
for_names('pause_endpoint', 'later');
$late = $node->background_psql('postgres', on_error_stop => 1);
$late->query_safe("BEGIN; SELECT count(outbox.emit('both', jsonb_build_object('n', i))) FROM generate_series(1, 10) i");
ask("SELECT count(outbox.emit('later', jsonb_build_object('n', i))) FROM generate_series(11, 3000) i");
within('within', 'SELECT count(outbox.emit(\'within\', jsonb_build_object(\'n\', i))) FROM generate_series(11, 3000) i');
$late->query_safe('COMMIT');
$late->quit;
within('later', 'SELECT outbox.resume_endpoint(\'later\')');
for_names('resume_endpoint', 'later,within');
ok(wait_settled($node), 'all is delivered');
is(join(' ', sort { $a <=> $b } map { $_->{body} =~ m{"n": ?(\d+)} } $receiver->delivered(path => "/ok/$_")), join(' ', 1 .. 3000), "$_: each event once")
  foreach qw(later within);

$receiver->stop;
$node->stop;
done_testing();
