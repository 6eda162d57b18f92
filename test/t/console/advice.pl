# For each state and reason of a delivery the console says why, what comes next, and what repairs it.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The words that the comment of a column lists before its first sentence ends.
sub listed
{
	my ($column, $from) = @_;
	my $said = $node->safe_psql('postgres', "SELECT col_description('outbox.deliveries'::regclass, attnum) FROM pg_attribute"
		  . " WHERE attrelid = 'outbox.deliveries'::regclass AND attname = '$column'") =~ s/\s+/ /gr;
	my ($list) = $said =~ /$from([^.]+)/ or die "no list in: $said";
	return join(', ', sort split /,? or |, /, $list);
}

is(join(', ', sort { $a cmp $b } OutboxTest::Console::names('STATUSES', 'words')), listed('status', '^'), 'the console has words for each status');
is(join(', ', sort { $a cmp $b } OutboxTest::Console::names('REASONS', 'words')), listed('reason', 'of dead: '), 'and for each reason of a death');

# Its advice about any of them, at an endpoint in any state
my $cases = <<'PYTHON';
import datetime, json
from outbox_console import advice, words
at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
for status in words.STATUSES:
    for reason in (words.REASONS if status == "dead" else [None]):
        for state in words.ENDPOINT_STATES:
            d = {"endpoint": "crm", "event_id": "E", "status": status, "reason": reason, "attempts": 1, "next_attempt_at": at, "last_status_code": 200}
            stats = {"state": state, "reason": None if state == "active" else "because", "next_attempt_at": at}
            head = {"event_id": "H", "status": "dead"} if status == "blocked" else None
            a = advice.of_delivery(d, stats, {"max_attempts": 9}, head)
            print(json.dumps({"case": "%s %s %s" % (status, reason, state), "status": status, "reason": reason, "state": state, "sentence": a.sentence,
                              "why": [w[0] for w in a.why], "actions": [x[0] for x in a.actions], "first": [x[0] for x in a.actions if x[2]]}))
PYTHON
append_to_file("$node->{_basedir}/advice.py", $cases);
my @advice = map { decode_json($_) } split /\n/, qx{PYTHONPATH="$OutboxTest::top/console" /usr/bin/python3 "$node->{_basedir}/advice.py"};
cmp_ok(scalar @advice, '>', 90, 'advice about each');

sub wrong
{
	my ($what, $of, $right) = @_;
	is(join('; ', map { "$_->{case}: @{ $_->{actions} }" } grep { $of->() && !$right->() } @advice), '', $what);
	return;
}

my %has;
sub has { my ($action) = @_; return scalar grep { $_ eq $action } @{ $_->{actions} } }
sub waits { return $_->{status} =~ /^(?:pending|processing|retrying|blocked)\z/ }
sub lost { return ($_->{reason} // '') =~ /^(?:expired|invalid event|event is gone)\z/ }

wrong('each has a sentence', sub { 1 }, sub { length $_->{sentence} });
wrong('one action at most stands out', sub { 1 }, sub { @{ $_->{first} } <= 1 });
wrong('what waits at an endpoint that is off offers to resume it', sub { waits() && $_->{state} =~ /paused|disabled/ }, sub { $_->{first}[0] eq 'resume' });
wrong('and does not offer to send it now', sub { waits() && $_->{state} =~ /paused|disabled/ && !/blocked/ }, sub { $_->{status} eq 'blocked' || !has('retry') });
wrong('what waits for a receiver that fails offers to try it', sub { waits() && $_->{state} eq 'backing_off' }, sub { has('resume') });
wrong('what waits and is not under way can be taken back', sub { $_->{status} =~ /pending|retrying|blocked|scheduled/ }, sub { has('cancel') });
wrong('what is blocked by a dead one offers both ways out', sub { $_->{status} eq 'blocked' }, sub { has('retry') && has('discard') });
wrong('what is dead can be discarded', sub { $_->{status} eq 'dead' }, sub { has('discard') });
wrong('it can be sent again, unless it never will be', sub { $_->{status} eq 'dead' }, sub { lost() != has('retry') });
wrong('and the page says what to do', sub { $_->{status} eq 'dead' }, sub { @{ $_->{why} } > 0 });
wrong('why an endpoint does not send is said', sub { waits() && $_->{state} ne 'active' }, sub { "@{ $_->{why} }" =~ /because/ });

# What is called lost is: sending it again ends the same way
endpoint($node, $receiver, 'crm', '/ok/crm');
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('crm')");
emit($node, 'order.created', '{}', "expires_at => now() + interval '200 ms'");
ok(wait_sql($node, "SELECT now() > max(expires_at) FROM outbox.all_events"), 'its time is over');
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('crm')");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats"), 'it is dead');
is($node->safe_psql('postgres', "SELECT outbox.retry('crm')"), 1, 'asked for again');
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.commands"), 'and taken');
ok(wait_sql($node, "SELECT dead = 1 AND retrying = 0 FROM outbox.stats"), 'it dies again');
is(scalar $receiver->requests, 0, 'and nothing is sent');
done_testing();
