package OutboxTest::Storm;

# Everything at once, at random: producers that do all that a transaction can do,
# receivers that misbehave, settings that are altered, deliveries that are
# retried, replayed and taken back, workers and servers that die.  Then calm, and
# the history checker's verdict.
#
# The seed repeats the decisions, not the moments at which they fall.

use strict;
use warnings;

use JSON::PP;
use MIME::Base64;
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# How long the machine may keep a settle, or the word of a death, waiting.
our $slack = 1;
our $settle_interval = 0.01;
our $wal_writer_delay = 0.02;

# Endpoints.  'may': topics that it is subscribed to now and then.
my $patience = "backoff_base => '20 ms', backoff_max => '300 ms', timeout => '3 s'";
my %endpoint = (
	all => { must => [qw(a b c)] },
	some => { must => [qw(a b)], may => ['c'] },
	limited => { must => [qw(a b c)], more => 'max_attempts => 3' },
	loose => { must => [qw(a c)], more => "ordering => 'none'", unordered => 1 },
	slow => { must => ['b'], behave => '/slow?ms=20' },
	batch => { must => [qw(a c)], more => "batch_size => 10, batch_wait => '20 ms'", batch => 1 },
	bus => { must => [qw(a c)], kafka => 1 });
my $moody = '/mixed?fail=0.04&busy=0.005&gone=0.0005&hang=0.001&close=0.01&slow=0.05&ms=50';

# Options: seed, brief, conf, build (an OutboxTest::Build), endpoints => [names], must => { name => [topics] },
# kafka (an OutboxTest::Kafka): the endpoint "bus" leads there, and the broker dies, too
sub new
{
	my ($class, %option) = @_;
	my $self = bless {
		workers => 1,
		seed => $option{seed},
		round => 0,
		log => PostgreSQL::Test::Utils::tempdir('storm') . '/producer',
		kafka => $option{kafka},
		endpoints => $option{endpoints} // [ sort grep { $option{kafka} || !$endpoint{$_}{kafka} } keys %endpoint ],
		must => $option{must} // { map { $_ => $endpoint{$_}{must} } keys %endpoint },
		done => {},
		faults => {},
	}, $class;

	srand $self->{seed};
	diag("SEED=$self->{seed}");
	$self->{node} = outbox_node(
		'main', build => $option{build}, conf => <<CONF . ($option{conf} // ''));
max_prepared_transactions = 20
restart_after_crash = on
log_min_messages = debug1
wal_writer_delay = @{[ $wal_writer_delay * 1000 ]}ms
outbox.settle_interval = @{[ $settle_interval * 1000 ]}ms
@{[ $option{kafka} ? "outbox.sinks = 'webhook, kafka'" : '' ]}
CONF
	$option{kafka}->topic('bus', 4, '--config', 'message.timestamp.type=LogAppendTime') if $option{kafka};
	$self->{receiver} = OutboxTest::Receiver->new(
		'main',
		fsync => 1,
		brief => $option{brief},
		seed => $self->{seed});
	foreach my $name (@{ $self->{endpoints} })
	{
		my $e = $endpoint{$name};
		my $topics = $self->topics($name, 1);

		if ($e->{kafka})
		{
			# It waits for a broker that was killed.
			$self->{node}->safe_psql('postgres', "SELECT outbox.create_endpoint('$name', 'kafka://@{[$self->{kafka}->address]}/bus',"
				  . " '$topics', format => 'raw', $patience)" =~ s/timeout => '3 s'/timeout => '5 min'/r);
			next;
		}
		endpoint($self->{node}, $self->{receiver}, $name, "/ok/$name",
			"topics => '$topics', $patience" . ($e->{more} ? ", $e->{more}" : ''));
		$self->behave($name, $e->{behave} // $moody);
	}
	return $self;
}

# What an endpoint subscribes to always, or now and then.
sub topics
{
	my ($self, $name, $also) = @_;
	my @may = $also ? @{ $endpoint{$name}{may} // [] } : ();

	return '{' . join(',', map { "storm.*.$_" } @{ $self->{must}{$name} }, @may) . '}';
}

sub node { return $_[0]{node} }
sub receiver { return $_[0]{receiver} }

sub behave
{
	my ($self, $name, $how) = @_;
	$self->{receiver}->control(path => "/ok/$name", behave => $how);
	return;
}

# A head, or another one behind it
use constant CANCEL =>
  "SELECT outbox.cancel(event_id) FROM outbox.parked"
  . " WHERE status IN ('retrying', 'blocked') ORDER BY random() LIMIT 1";

sub pick { return $_[ int rand @_ ] }

# A statement that must not fail but for a server that is not there.
sub ask
{
	my ($self, $sql) = @_;
	my ($rc, $out, $err) = (0, '', '');

	eval { ($rc, $out, $err) = $self->{node}->psql('postgres', $sql); 1 } or $rc = 2;
	if ($rc == 3 || ($rc == 1 && $err =~ /ERROR/) || $err =~ /ERROR:(?!.*(?:terminat|recovery))/)
	{
		fail("this statement: $sql");
		diag($err);
	}
	return $rc == 0 ? $out : undef;
}

# ----------------------------------------------------------------- producers

sub produce
{
	my ($self, %option) = @_;
	my %route;

	$self->{round}++;
	foreach my $name (@{ $self->{endpoints} })
	{
		push @{ $route{$_}{must} }, "/ok/$name" foreach @{ $self->{must}{$name} };
		push @{ $route{$_}{may} }, "/ok/$name" foreach @{ $endpoint{$name}{may} // [] };
	}
	$_->{must} //= [] foreach values %route;
	return start_producer(
		$self->{node}, $self->{log},
		seconds => 100_000,
		topic => "storm.$self->{round}",
		routes => encode_json(\%route),
		seed => $self->{seed} + $self->{round},
		%option);
}

# -------------------------------------------------------------------- deaths

# A sender or a receiver is gone between two times.  What was delivered in the
# window before, or so many seconds after, may come again.
sub died
{
	my ($self, $at, $window, $after) = @_;

	PostgreSQL::Test::Utils::append_to_file("$self->{log}.deaths",
		encode_json({ wall => $at, until => time + ($after // 0), window => $window }) . "\n");
	return;
}

# Until each endpoint is with the worker that shall have it: when it moves, what
# takes longer than half a second is broken off, and sent again.
sub wait_divided
{
	my ($self) = @_;
	my $n = @{ $self->{endpoints} };

	return wait_until
	{
		($self->ask("SELECT count(*) = $self->{workers} AND sum(endpoints) = $n"
			  . ' AND max(endpoints) - min(endpoints) <= 1 FROM outbox.workers WHERE pid IS NOT NULL')
			  // '') eq 't'
	}
	'the workers have divided the endpoints';
}

sub faults
{
	my ($self) = @_;
	my $node = $self->{node};
	my $server = $settle_interval + 3 * $wal_writer_delay + $slack;

	return (
		'kill everything' => [ $server, sub { kill_everything($node) } ],
		'kill the postmaster' => [ $server, sub { $node->kill9 } ],
		'immediate' => [ $server, sub { $node->stop('immediate') } ],
		'fast' => [ $slack, sub { $node->stop('fast') } ],
		'kill the worker' => [ $server, sub {
				my $pid = worker_pid($node);
				kill 'KILL', $pid;
				new_worker($node, $pid);
			} ],
		'terminate the worker' => [ $slack, sub {
				my $pid = worker_pid($node);
				kill 'TERM', $pid;
				new_worker($node, $pid);
			} ],
		'kill the receiver' => [ $slack, sub {
				$self->{receiver}->stop('KILL');
				$self->{receiver}->start;
				$self->behave($_, $endpoint{$_}{behave} // $moody)
				  foreach @{ $self->{endpoints} };
			} ],

		# By itself that repeats nothing.  But until a record that is stored was answered, a
		# worker may die: librdkafka tries again after up to 2 s.
		$self->{kafka} ? ('kill the broker' => [ $slack, sub {
				$self->{kafka}->stop('KILL');
				$self->{kafka}->start(1);
			}, 2 + $slack ]) : ());
}

# One fault, of any kind or the one that is named.  Afterwards all is up again.
sub strike
{
	my ($self, $name) = @_;
	my %fault = $self->faults;

	$name //= pick(sort keys %fault);
	my ($window, $do, $after) = @{ $fault{$name} };
	my $at = time;
	$do->();
	start_again($self->{node}) unless defined $self->{node}{_pid};
	my $ok = $self->wait_divided;
	$self->died($at, $window, $after);
	$self->{faults}{$name}++;
	return $ok ? $name : undef;
}

# ------------------------------------------------------------------- changes

sub secret
{
	return 'whsec_' . encode_base64(join('', map { chr int rand 256 } 1 .. 32), '');
}

my %change = (
	max_in_flight => sub {
		my ($self, $name) = @_;
		$self->ask("SELECT outbox.alter_endpoint('$name', max_in_flight => @{[1 + int rand 64]})");
	},
	rate_limit => sub {
		my ($self, $name) = @_;
		$self->ask(rand() < 0.5
			? "SELECT outbox.alter_endpoint('$name', rate_limit => @{[50 + int rand 2000]})"
			: "SELECT outbox.alter_endpoint('$name', reset => '{rate_limit}')");
	},
	format => sub {
		my ($self, $name) = @_;
		$self->ask("SELECT outbox.alter_endpoint('$name', format => '@{[pick(qw(standard cloudevents))]}')");
	},
	ordering => sub {
		my ($self) = @_;
		$self->ask("SELECT outbox.alter_endpoint('all', ordering => '@{[pick(qw(key key strict))]}')");
	},
	disorder => sub {
		my ($self) = @_;
		$self->ask("SELECT outbox.alter_endpoint('loose', ordering => '@{[pick(qw(key none))]}')");
	},
	topics => sub {
		my ($self) = @_;
		$self->ask("SELECT outbox.alter_endpoint('some', topics => '@{[$self->topics('some', rand() < 0.5)]}')");
	},
	filter => sub {
		my ($self) = @_;
		$self->ask(pick(
			"SELECT outbox.alter_endpoint('some', filter => '\$.n > 0')",
			"SELECT outbox.alter_endpoint('some', reset => '{filter}')"));
	},
	batches => sub {
		my ($self) = @_;
		$self->ask(rand() < 0.2
			? "SELECT outbox.alter_endpoint('batch', reset => '{batch_size,batch_wait}')"
			: "SELECT outbox.alter_endpoint('batch', batch_size => @{[pick(2, 20, 20, 100)]},"
			  . " batch_wait => '@{[pick(0, 0, 5, 50)]} ms')");
	},
	'partial answers' => sub {
		my ($self) = @_;
		$self->behave('batch', pick(qw(/partial?rate=0.05 /partial?rate=0.3&ms=20)));
	},
	on_exhausted => sub {
		my ($self) = @_;
		$self->ask("SELECT outbox.alter_endpoint('limited', on_exhausted => '@{[pick(qw(skip block))]}')");
	},
	pause => sub {
		my ($self, $name) = @_;
		$self->ask("SELECT outbox.pause_endpoint('$name')");
	},
	resume => sub {
		my ($self) = @_;
		$self->ask("SELECT count(outbox.resume_endpoint(name)) FROM outbox.endpoints WHERE state <> 'active'");
	},
	rotate_secret => sub {
		my ($self, $name) = @_;
		return if $endpoint{$name}{kafka};
		my $secret = secret();
		$self->{receiver}->control(path => "/ok/$name", secret => $secret);
		$self->ask("SELECT outbox.rotate_secret('$name', grace => '@{[pick('0', '1 s', '1 h')]}', secret => '$secret')");
	},
	retry => sub {
		my ($self, $name) = @_;
		$self->ask("SELECT outbox.retry('$name')");
	},
	'retry one' => sub {
		my ($self) = @_;
		$self->ask("SELECT outbox.retry(endpoint, event_id) FROM outbox.dead_letters LIMIT 1");
	},
	discard => sub {
		my ($self) = @_;
		$self->ask("SELECT outbox.discard(endpoint, event_id) FROM outbox.dead_letters LIMIT 1");
	},
	replay => sub {
		my ($self, $name) = @_;

		# Of a batch the receiver is not told that it was asked for.
		return if $endpoint{$name}{batch};
		$self->ask("SELECT outbox.replay('$name', now() - interval '500 ms')");
	},
	cancel => sub {
		my ($self) = @_;
		$self->ask(CANCEL);
	},
	'cancel a new one' => sub {
		my ($self) = @_;
		$self->ask('SELECT outbox.cancel(id) FROM (SELECT id FROM outbox.events'
			  . ' WHERE seq > 0 ORDER BY seq DESC LIMIT 1) e');
	},
	enabled => sub {
		my ($self) = @_;
		$self->ask('ALTER SYSTEM SET outbox.enabled = off');
		$self->ask('SELECT pg_reload_conf()');
		usleep(rand 300_000);
		$self->ask(CANCEL) if rand() < 0.5;
		$self->ask('ALTER SYSTEM RESET outbox.enabled');
		$self->ask('SELECT pg_reload_conf()');
	},
	workers => sub {
		my ($self) = @_;
		my $at = time;

		$self->{workers} = 1 + int rand 3;
		$self->ask("ALTER SYSTEM SET outbox.workers_per_database = $self->{workers}");
		$self->ask('SELECT pg_reload_conf()');
		$self->wait_divided;
		$self->died($at, $slack);
	},
	'a bad receiver' => sub {
		my ($self, $name) = @_;
		$self->behave($name,
			pick(qw(/status/500 /status/503?retry_after=1 /status/429 /status/410 /hang
				  /slow?ms=200 /close /rst /drip?ms=2 /fail?rate=0.5 /partial?rate=0.2)));
	},
	'a moody receiver' => sub { my ($self, $name) = @_; $self->behave($name, $moody) },
	'a good receiver' => sub { my ($self, $name) = @_; $self->behave($name, '/ok') },
	'the network' => sub {
		my ($self) = @_;
		my $at = time;
		$self->{receiver}->control(down => 1);
		usleep(rand 300_000);
		$self->{receiver}->control(down => 0);
		$self->died($at, $slack);
	});

# Changes that repair something are made more often than those that disturb.
my @changes = (sort keys %change, ('resume') x 4, ('partial answers') x 2, ('a moody receiver') x 2,
	('a good receiver') x 2);

sub change
{
	my ($self) = @_;
	my $what = pick(@changes);

	$change{$what}->($self, pick(@{ $self->{endpoints} }));
	$self->{done}{$what}++;
	return;
}

# ---------------------------------------------------------------------- calm

# Ends the changes that limit throughput.  Failures go on.
sub heal
{
	my ($self) = @_;

	$self->behave($_, $endpoint{$_}{behave} // $moody) foreach @{ $self->{endpoints} };
	$self->ask(<<'SQL');
SELECT outbox.alter_endpoint(name, max_in_flight => 64, reset => '{rate_limit}') FROM outbox.endpoints;
SELECT outbox.alter_endpoint(name, ordering => 'key') FROM outbox.endpoints WHERE ordering = 'strict';
SELECT outbox.resume_endpoint(name) FROM outbox.endpoints WHERE state <> 'active';
SQL
	return;
}

# A load, faults and changes at random for so many seconds, then calm and the
# verdict.  Options go to produce().
sub rage
{
	my ($self, $seconds, %option) = @_;
	my $producer = $self->produce(%option);
	my $end = time + $seconds;
	my $strike_at = time + 1;

	while (time < $end)
	{
		if (time > $strike_at)
		{
			my $what = $self->strike;
			ok($what, $what // 'a worker comes back') or last;
			$strike_at = time + rand 3;
		}
		$self->change;
		usleep(rand 100_000);
	}
	stop_producer($producer);
	$self->calm;
	return $self->judge('nothing is lost, made up, out of order, or repeated without a death');
}

# Ends all changes, and waits until everything is delivered or dead.
sub calm
{
	my ($self) = @_;

	$self->heal;
	$self->behave($_, '/ok') foreach @{ $self->{endpoints} };
	$self->ask("SELECT outbox.alter_endpoint(name, on_exhausted => 'skip') FROM outbox.endpoints");
	my $quiet = $self->wait_quiet;
	if ($quiet)
	{
		# Dead deliveries are tried again, too.
		$self->ask('SELECT outbox.retry(name) FROM outbox.endpoints');
		$quiet = $self->wait_quiet;
	}
	return ok($quiet, 'calm: everything comes to an end');
}

# Waits as long as there is progress.
sub wait_quiet
{
	my ($self) = @_;
	my $progress = '';
	my $end = time + 60;

	while (1)
	{
		my $waits = $self->ask(<<'SQL') // '';
SELECT (SELECT count(*) FROM outbox.stats
        WHERE NOT pending_exact OR pending + processing + retrying + blocked > 0)
     + (SELECT count(*) FROM outbox.scheduled)
     + (SELECT count(*) FROM outbox.commands)
     + (SELECT count(*) FROM outbox.replays WHERE finished_at IS NULL),
       (SELECT sum(delivered) FROM outbox.stats)
SQL
		last if $waits =~ /^0\|/;

		# An answer that was on its way may have come after it was resumed.
		$self->ask("SELECT outbox.resume_endpoint(name) FROM outbox.endpoints WHERE state = 'disabled'");
		$end = time + 60 if $waits ne $progress;
		$progress = $waits;
		if (time > $end)
		{
			$self->tell;
			return 0;
		}
		usleep(100_000);
	}
	my $settled = wait_settled($self->{node});
	$self->tell unless $settled;
	return $settled;
}

# What is needed to look into a failure.
sub tell
{
	my ($self) = @_;
	foreach my $sql (
		'SELECT s::text FROM outbox.stats s',
		'SELECT w::text FROM outbox.worker_slots() w',
		"SELECT d::text FROM outbox.deliveries d WHERE status NOT IN ('delivered', 'dead', 'cancelled') LIMIT 20",
		'SELECT p::text FROM outbox.parked p ORDER BY seq LIMIT 20',
		'SELECT c::text FROM outbox.commands c LIMIT 20',
		'SELECT r::text FROM outbox.replays r WHERE finished_at IS NULL LIMIT 20',
		'SELECT count(*) || \' scheduled\' FROM outbox.scheduled',
		'SELECT p::text FROM outbox.endpoint_positions p')
	{
		my (undef, $out) = $self->{node}->psql('postgres', $sql);
		diag("-- $sql\n$out");
	}
	return;
}

# ------------------------------------------------------------------- verdict

# The lines "path id" of a query that yields endpoint and event.
sub write_pairs
{
	my ($self, $file, $sql) = @_;

	$self->{node}->command_ok(
		[
			'psql', '-XAtq', '-F', ' ', '-d', $self->{node}->connstr('postgres'), '-o', $file,
			'-c', $sql
		],
		"written: @{[$file =~ /([^.]*)$/]}");
	return;
}

# Deliveries that were dead for a while: the server's log says so.
sub write_skipped
{
	my ($self, $file) = @_;

	open(my $in, '<', $self->{node}->logfile) or die "log: $!";
	open(my $out, '>', $file) or die "$file: $!";
	while (my $line = <$in>)
	{
		print $out "/ok/$2 $1\n"
		  if $line =~ /outbox delivery of event (\S+) to "(\w+)" is dead/;
	}
	close $out;
	close $in;
	return;
}

# Lets the checker judge.  On a violation everything that it looked at is kept.
sub judge
{
	my ($self, $name) = @_;
	my $log = $self->{log};

	PostgreSQL::Test::Utils::append_to_file("$log.deaths", '');
	$self->write_pairs("$log.exists", 'SELECT id FROM outbox.all_events');
	$self->write_pairs("$log.dead",
		"SELECT '/ok/' || name, event_id FROM outbox.parked JOIN outbox.endpoint_settings"
		  . " USING (endpoint_id) WHERE status IN ('dead', 'cancelled')");
	$self->write_pairs("$log.delivered",
		"SELECT '/ok/' || endpoint, event_id FROM outbox.deliveries WHERE status = 'delivered'");
	$self->write_pairs("$log.replayed",
		"SELECT DISTINCT '/ok/' || s.name, e.id FROM outbox.replays r JOIN outbox.endpoint_settings s USING (endpoint_id)"
		  . " JOIN outbox.all_events e ON e.created_at BETWEEN r.from_time AND r.to_time");
	$self->write_skipped("$log.skipped");
	my $journal = $self->{receiver}{journal};
	if ($self->{kafka})
	{
		my @records = $self->{kafka}->records('bus');
		my $bus = $self->{kafka}->journal("$log.bus", '/ok/bus', @records);
		system("cat '$journal' '$bus->{journal}' > '$log.journal'") == 0 or die "cat\n";
		$journal = "$log.journal";
		diag(scalar @records . ' records in Kafka');
	}
	my $report = "$log.report";
	my $status = system(
		join(' ', map { "'$_'" } 'python3', "$top/test/tools/check_history.py", '--producer', $log,
			'--journal', $journal,
			(map { ("--$_", "$log.$_") } qw(exists dead skipped delivered deaths replayed)),
			# when an endpoint starts over, requests are cut off after a second
			'--timeout', 0.9,
			(map { $endpoint{$_}{unordered} ? ('--unordered', "/ok/$_") : () }
				@{ $self->{endpoints} }),
			map { ('--endpoint', "/ok/$_") } @{ $self->{endpoints} })
		  . " > '$report' 2>&1");
	my $ok = ok($status == 0, $name);

	diag(PostgreSQL::Test::Utils::slurp_file($report));
	unless ($ok)
	{
		$self->tell;
		diag("kept: $log*, $self->{receiver}{journal}, ", $self->{node}->logfile);
	}
	return $ok;
}

1;
