package OutboxTest::CrashPoints;

# Lets processes die between two steps, at every place that the sources name
# (src/base/crash_point.h), under load, and judges the history.

use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $rate = 150;
my $slots = 8;

# [ name, may it throw? ] of each place.
sub points
{
	my ($build) = @_;
	my @points;

	foreach my $file (sort glob "$build->{tree}/{src/{,*/,*/*/},sinks/*/}*.c")
	{
		my $text = slurp_file($file);
		push @points, [ $2, $1 eq 'CRASH' ]
		  while $text =~ /\bOUTBOX_(CRASH|KILL)_POINT\("([^"]+)"\)/g;
	}
	return @points;
}

# With these sinks
sub build
{
	my (@sinks) = @_;
	my $build = OutboxTest::Build->new(PostgreSQL::Test::Utils::tempdir('crash_points') . '/build');

	$build->add_sink($_) foreach @sinks;

	$build->add('test/shims/crash_point.c', 'src');
	# Figures are written each second, and not each five minutes.
	$build->install('-DOUTBOX_CRASH_POINTS', '-DUSE_ASSERT_CHECKING=1', '-DOUTBOX_FIGURES_TIME=USECS_PER_SEC');
	return $build;
}

# A server, its load, and what is known of both.  With an OutboxTest::Kafka that has the topic
# "bus", one of the endpoints leads there.
sub new
{
	my ($class, $build, $kafka) = @_;
	my $quick = "backoff_base => '20 ms', backoff_max => '100 ms', max_in_flight => $slots";
	my $self = bless {
		kafka => $kafka,
		node => outbox_node('main', build => $build, conf => <<'CONF' . ($kafka ? "outbox.sinks = 'webhook, kafka'\n" : '')),
restart_after_crash = on
outbox.dedup_window = '1 s'
CONF
		receiver => OutboxTest::Receiver->new('main'),
		log => PostgreSQL::Test::Utils::tempdir() . '/producer',
		ids => {},
		rounds => 0,
		deaths => {},
	}, $class;
	my ($node, $receiver) = @$self{qw(node receiver)};

	endpoint($node, $receiver, 'ok', '/ok/a', $quick);
	endpoint($node, $receiver, 'fails', '/fail/b?rate=0.1', $quick);
	endpoint($node, $receiver, 'blocks', '/fail/c?rate=0.2',
		"$quick, max_attempts => 2, on_exhausted => 'block'");
	endpoint($node, $receiver, 'turns', '/slow/d?ms=2', $quick);
	endpoint($node, $receiver, 'batches', '/fail/e?rate=0.1', "$quick, batch_size => 8");
	endpoint($node, $receiver, 'again', '/ok/again', $quick);
	endpoint($node, $receiver, 'rests', '/ok/rests', "$quick, topics => '{load.later}'");
	$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('rests')");
	$node->safe_psql('postgres', "SELECT outbox.create_endpoint('bus', 'kafka://@{[$kafka->address]}/bus', format => 'raw', timeout => '60 s', $quick)")
	  if $kafka;
	$self->{producer} =
	  start_producer($node, $self->{log}, rate => $rate, keys => 4);
	return $self;
}

# Statements that may be cut off at any place, and their output so far.
sub try
{
	my ($self, $sql) = @_;
	my $out = '';

	eval { $self->{node}->psql('postgres', $sql, stdout => \$out, on_error_stop => 0) };
	return $out // '';
}

# What was emitted is forgotten two rotations later.
sub remember_ids
{
	my ($self) = @_;

	$self->{ids}{$_} = 1 foreach split /\n/, $self->try('SELECT id FROM outbox.events');
	return;
}

# Everything that leads to some place.  What it printed is committed.
sub provoke
{
	my ($self, $point, $restart) = @_;
	my $n = $self->{rounds}++;
	my $ordering = $n % 2 ? 'key' : 'strict';
	my $topics = $n % 2 ? '{load.*,other.*}' : '{load.*}';
	my $out = $self->try(<<SQL);
SELECT outbox.retry('blocks') AS x \\g /dev/null
SELECT outbox.replay('again', clock_timestamp() - interval '300 ms') AS x \\g /dev/null
SELECT 'id ' || outbox.emit('load.later', '{}'::jsonb, deliver_at => clock_timestamp() + interval '30 ms');
SELECT 'id ' || outbox.emit('load.once', '{}'::jsonb, dedup_key => 'round $n');
SELECT outbox.alter_endpoint('ok', topics => '$topics') AS x \\g /dev/null
SELECT outbox.alter_endpoint('turns', ordering => '$ordering') AS x \\g /dev/null
SQL
	my $json = JSON::PP->new->canonical;

	$self->{later}{$1} = 1 if $out =~ /^id (\S+)$/m;
	PostgreSQL::Test::Utils::append_to_file($self->{log},
		$json->encode({ id => $1, key => undef, n => 0, outcome => 'committed' }) . "\n")
	  while $out =~ /^id (\S+)$/mg;
	return unless $restart && $point =~ /^(?:start|stop|rotate|keep|attempts|tidy|endpoint|backlog|figures)\./;

	# A worker reads when it starts since when the pieces are in use.
	$self->remember_ids;
	$self->try(<<'SQL');
UPDATE outbox.pieces SET since = since - interval '8 days';
DELETE FROM outbox.figures WHERE at < now() - interval '2 days';
UPDATE outbox.figures SET at = at - interval '3 days';
SELECT pg_terminate_backend(pid) FROM outbox.workers;
SQL
	return;
}

# One death.  The order is written at one stroke, and only the process that
# removes it dies.
sub die_at
{
	my ($self, $point, $how) = @_;
	my $order = $self->{node}->data_dir . '/outbox_crash_point';
	my $end = time + 60;

	# Everything is under way again.
	$self->{receiver}->wait_new(5);
	PostgreSQL::Test::Utils::append_to_file("$order.new", "$point $how");
	rename "$order.new", $order or die "$order: $!";
	# It takes a worker some time until a piece may be emptied.
	for (my $n = 0; -e $order && time < $end; $n++)
	{
		$self->provoke($point, $n % 12 == 0);
		for (my $i = 0; $i < 15 && -e $order; $i++) { usleep(20_000) }
	}
	my $died = !-e $order;
	ok($died, "$point: $how");
	unlink $order;
	$self->{deaths}{$point}{$how}++ if $died;
	$self->{count}{$how}++ if $died;
	return;
}

# Events in flight (eight to a batch), and what a settle had not written: 10 ms, or what the WAL
# writer had not either.
sub bound
{
	my ($self) = @_;
	my $endpoints = 5;
	my %count = %{ $self->{count} };

	return $endpoints * (($count{kill} // 0) * (8 * $slots + 0.6 * $rate) +
		  (($count{error} // 0) + ($count{exit} // 0)) * (8 * $slots + 0.1 * $rate));
}

sub judge
{
	my ($self) = @_;
	my ($node, $receiver) = @$self{qw(node receiver)};

	stop_producer($self->{producer});
	# What a paused endpoint lacked when its piece was emptied
	wait_until
	{
		$self->try("SELECT outbox.resume_endpoint('rests')");
		my %got = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/rests');
		!grep { !$got{$_} } keys %{ $self->{later} }
	}
	'one that was paused gets all that it lacked';
	my %got;
	$got{ $_->{id} }++ foreach $receiver->delivered(path => '/ok/rests');
	is(scalar(grep { $_ > 1 } values %got), 0, 'and each once');

	$receiver->control(path => '/fail/c', behave => '/ok');
	wait_until
	{
		# the last of them may have been the server's
		$self->try("SELECT outbox.retry('blocks')");
		$self->try('SELECT count(*) FROM outbox.dead_letters') eq '0';
	}
	'no delivery is blocked any more';
	$self->remember_ids;

	# Between a crash and the worker's start events go to any piece of the log,
	# perhaps to the next one that is forgotten: what was reported as committed
	# need not be found at any time.
	foreach my $line (split /\n/, slurp_file($self->{log}))
	{
		my $event = decode_json($line);
		$self->{ids}{ $event->{id} } = 1 if $event->{outcome} eq 'committed';
	}

	my %common = (exists_too => [ keys %{ $self->{ids} } ]);
	check_history($node, $receiver, $self->{log}, %common,
		endpoints => [qw(/ok/a /fail/b /fail/c /slow/d /fail/e)],
		max_duplicates => int $self->bound,
		name => 'nothing lost, no phantom, order kept, duplicates within their bound');

	# Replays are duplicates that were asked for.
	check_history($node, $receiver, $self->{log}, %common,
		endpoints => ['/ok/again'],
		max_duplicates => 1_000_000,
		name => 'nor where parts of the log were read again meanwhile');

	# A record may be stored although the worker that sent it died.
	$self->{kafka}->check($node, $self->{log}, 'bus', %common,
		max_duplicates => int(($self->{count}{kill} // 0) * ($slots + 0.6 * $rate)))
	  if $self->{kafka};
	$node->stop;
	return;
}

sub table
{
	my ($self) = @_;
	my @lines = map {
		my $point = $_;
		sprintf("%-20s %s\n", $point,
			join(', ', map { "$_ $self->{deaths}{$point}{$_}" } sort keys %{ $self->{deaths}{$point} }))
	} sort keys %{ $self->{deaths} };
	return join '', @lines;
}

1;
