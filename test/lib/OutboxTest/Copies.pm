package OutboxTest::Copies;

# What a copy of a log has to deliver once it is adopted, worked out from its
# tables and from nothing else.

use strict;
use warnings;

use Exporter 'import';
use OutboxTest;
use Test::More;

our @EXPORT = qw(undelivered count_of redirect sent_to compare_sent number_requests is_ordered);

sub rows
{
	my ($node, $dbname, $sql) = @_;
	return map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql($dbname, $sql);
}

# Does a snapshot, as pg_snapshot prints it, see a transaction?
sub sees
{
	my ($snapshot, $xid) = @_;
	return 0 if $snapshot eq '';
	my ($xmin, $xmax, $running) = split /:/, $snapshot, -1;

	return 1 if $xid < $xmin;
	return 0 if $xid >= $xmax;
	return !grep { $_ == $xid } split /,/, $running;
}

sub matches
{
	my ($topic, $patterns) = @_;

	foreach my $pattern (split /,/, $patterns)
	{
		return 1 if $pattern eq '*' && $topic !~ /^outbox\./;
		return 1 if $pattern =~ /^(.*\.)\*$/ && index($topic, $1) == 0;
	}
	return 0;
}

# { endpoint => { event id => status } } of a copy that was not adopted yet:
# what each endpoint has not got, and why: new, pending, replay, retrying,
# blocked, dead.  'filter' has, for endpoints with a filter, the same as code
# over the payload's "n".
sub undelivered
{
	my ($node, $dbname, %filter) = @_;
	my %result;
	my %open;
	my $first = 0;

	foreach (rows($node, $dbname, 'SELECT epoch, first FROM outbox.origins WHERE adopted_by IS NULL'))
	{
		$open{ $_->[0] } = 1;
		$first = 1 if $_->[1] eq 't';
	}
	$open{0} = 1 if $first;
	my @events = rows($node, $dbname,
		"SELECT seq, id, xid, epoch, topic, payload->>'n', extract(epoch FROM created_at) FROM outbox.events ORDER BY seq");
	my %newest;
	foreach (rows($node, $dbname,
			'SELECT endpoint_id, generation, number, shared, read, reading, last_seq, outbox.pending_seqs(pending) FROM outbox.positions ORDER BY number'))
	{
		$newest{ $_->[0] } = $_;
	}
	foreach my $endpoint (rows($node, $dbname,
			"SELECT endpoint_id, name, array_to_string(topics, ','), generation, start_snapshot FROM outbox.endpoint_settings"))
	{
		my ($id, $name, $topics, $generation, $start) = @$endpoint;
		my $position = $newest{$id};
		my ($done, $under, $last_seq, $pending) = ($start, '', 0, '');

		if ($position && $position->[1] == $generation)
		{
			my $place = $position->[3] ne '' ? $newest{ $position->[3] } : $position;
			($done, $under, $last_seq) = @$place[ 4 .. 6 ];
			$pending = $position->[7];
		}
		my %pending = map { $_ => 1 } $pending =~ /\d+/g;
		my %parked = map { $_->[0] => $_->[1] }
		  rows($node, $dbname, "SELECT seq, status FROM outbox.parked WHERE endpoint_id = $id");
		my @replays = rows($node, $dbname,
			"SELECT extract(epoch FROM from_time), extract(epoch FROM to_time), read, reading, last_seq, target, array_to_string(topics, ',')"
			  . " FROM outbox.replays WHERE endpoint_id = $id AND finished_at IS NULL");
		my %status;

		foreach my $event (@events)
		{
			my ($seq, $event_id, $xid, $epoch, $topic, $n, $at) = @$event;

			if ($parked{$seq})
			{
				$status{$event_id} = $parked{$seq} if $parked{$seq} ne 'cancelled';
				next;
			}
			if ($pending{$seq})
			{
				$status{$event_id} = 'pending';
				next;
			}
			next unless matches($topic, $topics);
			next if $filter{$name} && !$filter{$name}->($n);
			if ($epoch == -1)
			{
				$status{$event_id} = 'new';
				next;
			}
			next unless $open{$epoch};
			if (!sees($done, $xid) && !($seq <= $last_seq && sees($under, $xid)))
			{
				$status{$event_id} = 'new';
				next;
			}
			foreach my $replay (@replays)
			{
				my ($from, $to, $read, $reading, $read_to, $target, $again) = @$replay;
				$status{$event_id} = 'replay'
				  if matches($topic, $again) && $at >= $from && $at <= $to && sees($target, $xid) && !sees($read, $xid)
				  && !($reading eq 't' && $seq <= $read_to);
			}
		}
		foreach (rows($node, $dbname,
				"SELECT k.event_id, k.status FROM outbox.parked k JOIN outbox.kept_events e USING (seq)"
				  . " WHERE endpoint_id = $id AND status <> 'cancelled'"))
		{
			$status{ $_->[0] } = $_->[1];
		}
		$result{$name} = \%status;
	}
	return \%result;
}

# How many are to be delivered without an operator: what adopt() returns.
sub count_of
{
	my ($undelivered) = @_;
	return scalar grep { $_ ne 'dead' } map { values %$_ } values %$undelivered;
}

# Sends an endpoint's requests to /ok/NAME of another receiver, signed with a
# new secret: a dump has none.
sub redirect
{
	my ($node, $dbname, $receiver, @names) = @_;

	foreach my $name (@names)
	{
		my $url = $receiver->url("/ok/$name");
		my $secret = $node->safe_psql($dbname, <<SQL);
SELECT outbox.alter_endpoint('$name', url => '$url') \\g /dev/null
SELECT outbox.rotate_secret('$name') \\g /dev/null
SELECT outbox.endpoint_secret('$name')
SQL
		$receiver->control(path => "/ok/$name", secret => $secret);
	}
	return;
}

sub sent_to
{
	my ($receiver, $name) = @_;
	return map { $_->{id} } $receiver->requests(path => "/ok/$name");
}

# Waits for as many as are expected, and compares: each once, and no other.
sub compare_sent
{
	my ($receiver, $name, $expected, $what) = @_;

	my %sent;
	$receiver->wait_delivered(scalar @$expected, path => "/ok/$name");
	$sent{$_}++ foreach sent_to($receiver, $name);
	my @missing = grep { !$sent{$_} } @$expected;
	my @twice = grep { $sent{$_} > 1 } keys %sent;
	delete @sent{@$expected};
	return is(@missing . ' missing, ' . keys(%sent) . ' too many, ' . @twice . ' repeated',
		'0 missing, 0 too many, 0 repeated', "$what: $name gets exactly its " . @$expected);
}

# For is_ordered(): the requests to all endpoints have numbers from now on.
sub number_requests
{
	my ($node) = @_;
	return $node->safe_psql('postgres', q[SELECT outbox.alter_endpoint(name, config => '{"outbox_headers": "all,sequence"}') FROM outbox.endpoints]);
}

# Of each key one request after the other, in the order of the log.
sub is_ordered
{
	my ($receiver, $name, $what) = @_;
	my %last;
	my $wrong = 0;

	foreach my $request ($receiver->requests(path => "/ok/$name"))
	{
		my $key = $request->{key} // next;
		my $seq = $request->{headers}{'outbox-sequence'};

		$wrong++ if !$seq || ($last{$key} // 0) > $seq;
		$last{$key} = $seq;
	}
	return is($wrong, 0, "$what: in the order of each key");
}

1;
