package OutboxTest::MemoryBound;

# What a worker has of the system's memory (RssAnon, not its own account), beside the bound
# that doc/settings.md states.  In moderate shapes in test/t/memory/bound_of_a_worker.pl, in large
# ones and for long in test/torture/memory.pl.

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(max);
use OutboxTest;
use OutboxTest::Receiver;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(use_bound shape tokens longer_texts comes_back);

my ($node, $receiver, $down, $limit);
my %constant;	# MB

# The constants are those of the document.
sub use_bound
{
	($node) = @_;
	my $settings = slurp_file("$top/doc/settings.md");

	foreach my $of (qw(base endpoint connection))
	{
		my ($n, $unit) = $settings =~ /^\| `$of` \| (\d+) ([kM]B) \|/m or die "doc/settings.md has no `$of`\n";
		$constant{$of} = $unit eq 'MB' ? $n : $n / 1024;
	}
	$limit = ask("SELECT setting FROM pg_settings WHERE name = 'outbox.worker_memory'");
	$receiver = OutboxTest::Receiver->new('main');
	$down = OutboxTest::Receiver->new('down');
	$down->stop;
	endpoint($node, $receiver, 'well', '/ok/well', "topics => '{well}'");
	my $bound = ($limit + $constant{base} + $constant{endpoint}) * 1024 * 1024;
	ok(wait_sql($node, "SELECT in_flight = 0 AND endpoints = 1 AND resident_limit - $bound BETWEEN 1 AND 256 * 1024 AND resident BETWEEN memory AND resident_limit FROM outbox.workers"),
		'outbox.workers has the bound of the document, with the settings of one endpoint, and what the process has');
	return;
}

# Its open sockets.  One that ends meanwhile does not count.
sub connections
{
	my ($pid) = @_;
	return scalar grep { (readlink($_) // '') =~ /^socket:/ } glob "/proc/$pid/fd/*";
}

# What the worker has in all, and beyond what the number of its connections allows.
sub all_and_beyond
{
	my $pid = worker_pid($node);
	my $mb = eval { private_memory($pid) } // 0;
	return ($mb, $mb - $constant{connection} * connections($pid));
}

# The most of both, until the condition holds.
sub most_until
{
	my ($condition, $what, $seconds) = @_;
	my ($beyond, $most) = (0, 0);

	wait_until
	{
		my ($all_now, $beyond_now) = all_and_beyond();
		$beyond = max($beyond, $beyond_now);
		$most = max($most, $all_now);
		return $condition->();
	}
	$what, $seconds // 200;
	return ($beyond, $most);
}

sub make_endpoints
{
	my (%arg) = @_;
	my $t = $arg{tenants} // 0;
	my @urls = map { $_ eq 'down' ? $down->url('/ok/') : $receiver->url($arg{hold} // '/hang/') } @{ $arg{receivers} };
	my $urls = join ', ', map { "'$_'" } @urls;
	my $token = $arg{token_path} ? qq(config => '{"token_url": "@{[ $receiver->url($arg{token_path}) ]}", "client_id": "me"}', credentials => '{"client_secret": "x"}',) : '';
	$token = "config => '$arg{config}'," if $arg{config};

	return ask(<<"SQL");
SELECT count(outbox.create_endpoint('e' || n, (ARRAY[$urls])[n % ${\scalar @urls} + 1] || 'e' || n, topics => '{n}', secret => NULL, $token
	tenant => CASE WHEN $t > 0 THEN 't' || n % $t END, backoff_base => '100 ms', backoff_max => '1 s', timeout => '10 min'))
FROM generate_series(1, $arg{endpoints}) n
SQL
}

sub emit_all
{
	my (%arg) = @_;
	my $t = $arg{tenants} // 0;
	my $bytes = $arg{bytes} // 50;
	my $keys = $arg{keys} ? "'k' || n / greatest($t, 1) % $arg{keys}" : 'NULL';

	return ask("SELECT count(outbox.emit('n', jsonb_build_object('n', n, 'text', repeat('x', $bytes)), key => $keys,"
		  . " tenant => CASE WHEN $t > 0 THEN 't' || n % $t END)) FROM generate_series(1, $arg{events}) n");
}

# As many requests for a token are under way as there are endpoints, and the worker has read what
# came then: a later event of another endpoint has arrived.
sub tokens
{
	my (%arg) = @_;
	my $asked;

	return shape(
		'all wait for a token',
		%arg,
		well => 201,
		until => sub {
			return 1 if $asked;
			return 0 if $arg{endpoints} > grep { $_->{path} eq $arg{token_path} =~ s/\?.*//r } $receiver->requests;
			$asked = ask(q{SELECT outbox.emit('well', '{}')});
			return 1;
		});
}

# Half of the tenants have a request under way, so that payloads are left in the log.  Then each
# of the others gets one whose text is 45 times as large as its jsonb.
sub longer_texts
{
	my (%arg) = @_;
	my $half = $arg{endpoints} / 2;
	my $large = 0;

	return shape(
		'all hang, payloads whose texts are larger than they',
		%arg,
		events => $half,
		tenants => $arg{endpoints},
		payload => 1,
		until => sub {
			my ($sent, $lack) = split /\|/,
			  ask("SELECT count(*) FILTER (WHERE processing > 0), count(*) FILTER (WHERE reason ~ 'worker_memory is used up') FROM outbox.stats WHERE endpoint <> 'well'");

			$large ||= $sent >= $half && ask("SELECT count(outbox.emit('n', payload, tenant => 't' || n % $arg{endpoints})) FROM generate_series($half + 1, $arg{endpoints}) n,"
				  . " (SELECT jsonb_build_object('n', jsonb_agg(1e700)) AS payload FROM generate_series(1, 1300)) p");
			return $large && ($sent > 1.5 * $half || $lack > $half / 4);
		});
}

# The receivers have been down for so long that half of the endpoints back off, or they hold
# requests.  'until' is another condition.  And another endpoint has got its events meanwhile.
# 'unsettled': a lock holds up the first settle.
sub shape
{
	my ($name, %arg) = @_;
	my $begun = time;
	my $well = $arg{well} // 200;
	my $before = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'well'");
	my $known = "SELECT count(*) >= $arg{endpoints} / 2.0 FROM outbox.stats WHERE endpoint <> 'well' AND (state = 'backing_off' OR processing > 0)";

	# The worker gives back once a second what the connections of the shape before have taken.
	wait_until { (all_and_beyond())[1] < $limit + $constant{base} } "$name: memory was given back";
	make_endpoints(%arg);
	my $locker = $arg{unsettled} ? $node->background_psql('postgres') : undef;
	$locker->query_safe('BEGIN; LOCK TABLE outbox.positions IN SHARE MODE') if $locker;
	emit_all(%arg);
	ask(q{SELECT count(outbox.emit('well', '{}'::jsonb)) FROM generate_series(1, 200)});
	if ($locker)
	{
		ok(wait_sql($node, 'SELECT sum(failed_attempts) > 500 FROM outbox.stats'), "$name: many have failed and cannot be settled");
		$locker->query_safe('COMMIT');
		$locker->quit;
	}
	my ($beyond, $most) = most_until(
		sub {
			return ($arg{until} ? $arg{until}->() : ask($known) eq 't')
			  && ask("SELECT delivered >= $before + $well FROM outbox.stats WHERE endpoint = 'well'") eq 't';
		},
		"$name: half of them know it, and another one got its events", $arg{seconds});
	my $bound = $limit + $constant{base} + $constant{endpoint} * ($arg{endpoints} + 1) + ($arg{payload} // 0) * 3;
	cmp_ok($beyond, '<', $bound, "$name: memory of the worker");
	is(ask("SELECT delivered - $before FROM outbox.stats WHERE endpoint = 'well'"), $well, "$name: another one gets its events");
	diag(sprintf '%s: %.0f MB, %.0f without connections, bound %.0f, account %s, %s rows, %.0f s', $name, $most, $beyond, $bound,
		ask('SELECT memory / 1024 / 1024 FROM outbox.workers'), ask('SELECT count(*) FROM outbox.parked'), time - $begun);
	drop_all();
	return;
}

# Connections that closed have their memory for a second more, until it is returned to the
# system: no shape begins with that of the one before.
sub drop_all
{
	ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name <> 'well'");
	wait_until
	{
		my $pid = worker_pid($node);
		my $open = connections($pid);
		return (private_memory($pid) // 0) < $limit + $constant{base} + $constant{endpoint} + $constant{connection} * $open;
	}
	'what the closed connections had is returned';
	return;
}

# The receivers are back: all events arrive once each, and those of a key in their order.
sub comes_back
{
	my (%arg) = @_;
	my %got;
	my $wrong = 0;
	my $each = $arg{events} / $arg{tenants};

	make_endpoints(receivers => [ 'down', 'holds' ], hold => '/status/503/', %arg);
	emit_all(%arg);
	ok(wait_sql($node, "SELECT count(*) = $arg{endpoints} FROM outbox.stats WHERE endpoint <> 'well' AND failed_attempts > 2"), 'all have failed');
	$receiver->control(path => "/status/503/e$_", behave => '/ok') foreach 1 .. $arg{endpoints};
	$down->start;
	ok(wait_sql($node, "SELECT sum(delivered) = $each * $arg{endpoints} FROM outbox.stats WHERE endpoint <> 'well'"), 'all are delivered');
	foreach my $r ($down, $receiver)
	{
		foreach my $request ($r->delivered)
		{
			next unless $request->{path} =~ /(e\d+)$/;
			my ($e, $key, $n) = ($1, $request->{headers}{'outbox-key'}, $request->{n});
			$wrong++ if $got{$e}{$key} && $got{$e}{$key} >= $n;
			$got{$e}{$key} = $n;
			$got{$e}{n}++;
		}
	}
	is($wrong, 0, 'once each, in order');
	is(scalar(grep { $_->{n} == $each } values %got), $arg{endpoints}, 'and all of them');
	$down->stop;
	drop_all();
	return;
}

1;
