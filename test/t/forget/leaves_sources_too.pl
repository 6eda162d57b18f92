# Events that a follower forgets leave the source as well, and no others do.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask !emit);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new;
my ($follower, $receiver) = @$servers{qw(follower receiver)};
my ($anna, $bert) = ('XYZZYanna', 'XYZZYbert');

sub at_source { return $servers->at_source(@_) }
sub ask { return $servers->ask(@_) }

sub emit
{
	my ($tenant, $key, $more) = @_;
	$tenant = $tenant ? "'$tenant'" : 'NULL';
	return at_source("SELECT outbox.emit('order.n', '{\"of\": \"$key\"}', key => '$key', tenant => $tenant" . ($more ? ", $more" : '') . ')', 'shop_app');
}

# Each kind of event of each person. The ids, by tenant and key
sub emit_all
{
	my ($round) = @_;
	my %of;
	foreach my $who ([ 'acme', $anna ], [ 'acme', $bert ], [ 'globex', $anna ], [ '', $anna ])
	{
		my ($tenant, $key) = @$who;
		$of{"$tenant $key"} = [ emit(@$who), emit(@$who, "dedup_key => '$tenant $round $key'"), emit(@$who, "deliver_at => now() + interval '1 day', dedup_key => '$tenant later $round $key'") ];
	}
	return %of;
}

# What the source has of these events
sub kept
{
	my $ids = join ', ', map { "'$_'" } @_;
	return at_source("SELECT (SELECT count(*) FROM outbox.events WHERE id IN ($ids)), (SELECT count(*) FROM outbox.scheduled WHERE id IN ($ids)),"
		. " (SELECT count(*) FROM outbox.dedup WHERE event_id IN ($ids))");
}

sub complete
{
	return wait_until {
		ask('SELECT outbox.keep_sources()');
		ask('SELECT outbox.forget_at_sources()');
		ask("SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress") eq 't'
	} $_[0];
}

endpoint($follower, $receiver, 'all', '/ok/all');
my %early = emit_all('first');
$servers->follow;
my %of = emit_all('second');
my @all = map { @$_ } values %early, values %of;
wait_until { ask("SELECT (SELECT count(*) FROM outbox.all_events) || ' ' || (SELECT count(*) FROM outbox.scheduled)") eq '16 8' } 'all of it is here';

# --- One person

ask("SELECT outbox.forget('acme', '$anna')");
is(ask('SELECT sources FROM outbox.forget_progress'), '{shop}', 'the source has it still, and the view says so');
# Events that come after the call are new
my @new = map { emit('acme', $_, "dedup_key => 'new $_'") } $anna, $bert;
$receiver->wait_delivered(1, id => $_) foreach @new;
complete('a person is forgotten');
is(ask('SELECT sources, key FROM outbox.forget_progress'), '{}|forgotten', 'at the source, too, and the key is not stored any more');
my @gone = map { @{ $_->{"acme $anna"} } } \%early, \%of;
is(kept(@gone), '0|0|0', 'nothing of it is left there');
my %is_gone = map { $_ => 1 } @gone;
is(kept(grep { !$is_gone{$_} } @all), '12|6|12', 'and everything of others is');
is(kept(@new), '2|0|2', 'what came later is there');
is(emit('acme', $anna, "dedup_key => 'new $anna'"), $new[0], 'its deduplication key counts');
isnt(emit('acme', $anna, "dedup_key => 'acme second $anna'"), $of{"acme $anna"}[1], 'one that was forgotten may be used again');

# --- A row that was set aside, and the whole tenant

ask("ALTER SYSTEM SET outbox.max_payload_size = '1 kB'; SELECT pg_reload_conf()");
ok(wait_sql($follower, "SELECT current_setting('outbox.max_payload_size') = '1kB'"), 'the follower allows less than the source');
ask('SELECT pg_terminate_backend(pid) FROM pg_stat_subscription');
my @large = map { at_source("SELECT outbox.emit('order.large', to_jsonb(repeat('x', 2000)), key => '$anna', tenant => '$_')", 'shop_app') } qw(acme globex);
ok(wait_sql($follower, 'SELECT count(*) = 2 FROM outbox.refused_events'), 'two rows are set aside');
ask("SELECT outbox.forget('acme')");
is(ask("SELECT string_agg(event ->> 'tenant', ' ') FROM outbox.refused_events"), 'globex', 'what was set aside is removed here');
complete('a tenant is forgotten');
is(at_source("SELECT (SELECT count(*) FROM outbox.events WHERE tenant = 'acme'), (SELECT count(*) FROM outbox.scheduled WHERE tenant = 'acme'), (SELECT count(*) FROM outbox.dedup WHERE tenant = 'acme')"), '0|0|0', 'nothing of it is left at the source');
is(kept(map { @{ $_->{"globex $anna"} }, @{ $_->{" $anna"} } } \%early, \%of), '8|4|8', 'and everything of others is');

# --- A source that is followed anew before it has forgotten

emit('initech', $anna, "deliver_at => now() + interval '1 day'");
ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.scheduled WHERE tenant = 'initech'"), 'an event waits here');
ask("BEGIN; UPDATE outbox.followed SET round = round + 5; SELECT outbox.forget('initech'); COMMIT");
ok(wait_sql($follower, "SELECT count(*) = 0 FROM outbox.scheduled WHERE tenant = 'initech'"), 'and is forgotten');
wait_until { ask('SELECT outbox.keep_sources(), outbox.follow_anew()'); ask('SELECT state FROM outbox.sources') eq 'streaming' } 'the source is followed anew';
is(ask("SELECT count(*) FROM outbox.scheduled WHERE tenant = 'initech'"), 0, 'it does not come back');
complete('after that');
is(at_source("SELECT count(*) FROM outbox.scheduled WHERE tenant = 'initech'"), 0, 'and the source has forgotten it, too');

# --- A source that is away

ask("SELECT outbox.forget('globex', '$bert')");    # no event has it
complete('a key that no event has');
my $later = emit('globex', $bert);
$receiver->wait_delivered(1, id => $later);
$servers->{source}->stop;
ask("SELECT outbox.forget('globex', '$bert')");
my $emptied = sub { return wait_sql($follower, "SELECT payload IS NULL FROM outbox.all_events WHERE id = '$later'") };
ok($emptied->(), 'here it is removed at once');
ask('SELECT outbox.keep_sources(), outbox.forget_at_sources()');
is(ask('SELECT sources, complete_at IS NULL FROM outbox.forget_progress ORDER BY requested_at DESC LIMIT 1'), '{shop}|t', 'while the source is away it is not complete');
$servers->{source}->start;
complete('when it is back');
is(kept($later), '0|0|0', 'it is removed there');

# --- A source that is not followed any more is waited for no longer

ask("SELECT outbox.forget('globex')");
ask("SELECT outbox.unfollow('shop')");
ok(wait_sql($follower, 'SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress'), 'after unfollow() it is complete');
done_testing();
