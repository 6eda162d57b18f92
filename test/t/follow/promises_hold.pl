# Events of a source expire, wait, are deduplicated and go to their tenant as others do.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask !emit);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(streaming => 1);
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};

sub ask { return $servers->ask(@_) }
sub emit { my ($more) = @_; return $servers->at_source("SELECT outbox.emit('order.n', '{}', $more)", 'shop_app') }

endpoint($follower, $receiver, 'all', '/ok/all');
endpoint($follower, $receiver, 'acme', '/ok/acme', "tenant => 'acme'");

# Events that were there before are taken in their order, whatever the plan: here by a join that sorts by the ids
my @early = split /\n/, $servers->at_source("INSERT INTO outbox.outgoing (id, topic, payload, key) SELECT lpad((99 - n)::text, 32, '0')::uuid, 'order.n', '{}', 'k' FROM generate_series(1, 50) n RETURNING id", 'shop_app');
ask("ALTER DATABASE postgres SET enable_hashjoin = off; ALTER DATABASE postgres SET enable_nestloop = off");
$servers->follow;
ask("ALTER DATABASE postgres RESET enable_hashjoin; ALTER DATABASE postgres RESET enable_nestloop");
$receiver->wait_delivered(1, path => '/ok/all', id => $early[-1]);
is(join(' ', map { $_->{id} } $receiver->delivered(path => '/ok/all')), "@early", 'those of before arrive in the order in which they were emitted');

# To its tenant, with all that a receiver is sent
my $whole = emit("key => 'k', type => 'created', tenant => 'acme', headers => '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}'");
my $others = emit("key => 'k', tenant => 'globex'");
$receiver->wait_delivered(1, path => '/ok/all', id => $_) foreach $whole, $others;
my ($request) = $receiver->wait_delivered(1, path => '/ok/acme', id => $whole);
is(join(' ', map { $request->{headers}{$_} // '' } qw(outbox-key outbox-type traceparent)), 'k created 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'with key, type and trace context');

# Expiry: at the follower, by the time that the source has given
ask("SELECT outbox.pause_endpoint('all')");
my $expires = emit("expires_at => clock_timestamp() + interval '200 ms'");
ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.all_events WHERE id = '$expires' AND expires_at < clock_timestamp()"), 'it is past its time');
ask("SELECT outbox.resume_endpoint('all')");
ok(wait_sql($follower, "SELECT status = 'dead' AND reason = 'expired' FROM outbox.deliveries WHERE event_id = '$expires' AND endpoint = 'all'"), 'it expires');

# Deduplication: at the source
my @same = map { emit("dedup_key => 'once'") } 1, 2;
is($same[1], $same[0], 'the second has the id of the first');
my $behind = emit("key => 'k'");
$receiver->wait_delivered(1, path => '/ok/all', id => $_) foreach $same[0], $behind;
is(ask("SELECT count(*) FROM outbox.all_events WHERE id = '$same[0]'"), 1, 'one event');

# Schedule: at the follower, and not before
my $due = $servers->at_source("SELECT clock_timestamp() + interval '1.5 s'");
my $later = emit("deliver_at => '$due'");
$receiver->wait_delivered(1, path => '/ok/all', id => $later);
is(ask("SELECT clock_timestamp() >= '$due'"), 't', 'it was delivered when it was due');
is(scalar(() = $receiver->requests(path => '/ok/acme')), 1, 'and the tenant has got its own only');

# No standby has it yet
$follower->backup('standby');
ask("ALTER SYSTEM SET outbox.wait_for_standbys = '1'; SELECT pg_reload_conf()");
ok(wait_sql($follower, "SELECT state = 'held' FROM outbox.status"), 'nothing is sent that a failover can lose');
my $waits = emit("key => 'k'");
ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.all_events WHERE id = '$waits'"), 'it is taken');
is(scalar(() = $receiver->requests(id => $waits)), 0, 'and not sent');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($follower, 'standby', has_streaming => 1);
$standby->start;
$receiver->wait_delivered(1, path => '/ok/all', id => $waits);
ok(wait_sql($standby, "SELECT count(*) = 1 FROM outbox.all_events WHERE id = '$waits'"), 'when the standby has it, it is sent');
done_testing();
