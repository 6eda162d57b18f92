# A page between two times has the events of a source that came later, and no others.
# A replay has those whose time is ahead of the clock here.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new;
my ($follower, $receiver) = @$servers{qw(follower receiver)};

sub ask { return $servers->ask(@_) }
sub here { return ask("SELECT outbox.emit('here.$_[0]', '{}')") }
sub there { return $servers->at_source("SELECT outbox.emit('there.$_[0]', '{}')", 'shop_app') }

sub comes
{
	my ($id) = @_;
	return ok(wait_sql($follower, "SELECT count(*) = 1 FROM outbox.all_events WHERE id = '$id'"), 'it comes');
}

# Each event of the source has a time before those that are in the log already.
endpoint($follower, $receiver, 'all', '/ok/all');
my $first = there(1);
here(1);
$servers->follow;
comes($first);
ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
my $second = there(2);
here($_) foreach 2, 3;
ask('ALTER SUBSCRIPTION outbox_shop ENABLE');
comes($second);
ok(wait_settled($follower), 'all is delivered');
is(ask("SELECT string_agg(topic, ' ' ORDER BY seq) FROM outbox.all_events"), 'here.1 there.1 here.2 here.3 there.2', 'the order in the log');

sub pages_are_right
{
	my ($when) = @_;
	my @times = split /\n/, ask('SELECT created_at FROM outbox.all_events ORDER BY created_at');
	foreach my $from (undef, @times)
	{
		foreach my $to (undef, @times)
		{
			my ($since, $until) = map { defined $_ ? "'$_'::timestamptz" : 'NULL::timestamptz' } $from, $to;
			is( ask("SELECT string_agg(topic, ' ') FROM outbox.deliveries_page('all', from_time => $since, to_time => $until)"),
				ask("SELECT string_agg(topic, ' ' ORDER BY seq DESC) FROM outbox.deliveries"
					  . " WHERE created_at BETWEEN COALESCE($since, '-infinity') AND COALESCE($until, 'infinity')"),
				"$when: from $since to $until");
		}
	}
	return;
}

pages_are_right('followed');
my $ahead = $servers->at_source("INSERT INTO outbox.events (created_at, topic, payload) VALUES (now() + interval '1 hour', 'there.3', '{}') RETURNING id");
comes($ahead);
ok(wait_settled($follower), 'an event from a clock that is ahead');
is(ask("SELECT outbox.replay('all', now() + interval '30 min', now() + interval '2 hours')"), 1, 'is counted by a replay');
ok(wait_sql($follower, 'SELECT finished_at IS NOT NULL FROM outbox.replay_progress'), 'which ends');
is(ask('SELECT events FROM outbox.replay_progress'), 1, 'and sends it');
ok(wait_settled($follower), 'all is delivered');
ask("SELECT outbox.unfollow('shop')");
here(4);
ok(wait_settled($follower), 'an event comes after it is followed no more');
pages_are_right('no more');

$_->stop foreach $follower, $servers->{source};
done_testing();
