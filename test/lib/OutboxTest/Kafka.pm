package OutboxTest::Kafka;

# Apache Kafka beside a test: a broker or several of one cluster, which can be killed and
# stopped, and what is in their topics.  "make clients" fetches it.

use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use IO::Handle;
use IO::Socket::INET;
use IPC::Open2;
use JSON::PP;
use List::Util qw(first);
use OutboxTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

our $jars = ($ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test') . '/kafka';

# Why there is no Kafka here.  Nothing if there is.
sub missing
{
	return 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');
	return 'there is no kcat to read with' if system('kcat -V > /dev/null 2>&1') != 0;
	return "no Kafka in $jars, or no java: Maven could not fetch it"
	  unless -e "$jars/complete" && system('java -version > /dev/null 2>&1') == 0;
	return '';
}

# Starts librdkafka's mock broker.  Returns its address, and a function that gives it a line of
# test/kafka/mock.c, and returns true if that was carried out.  The broker ends with that function.
sub mock_broker
{
	my $dir = PostgreSQL::Test::Utils::tempdir('mock');

	system("gcc -o $dir/mock $OutboxTest::top/test/kafka/mock.c \$(pkg-config --cflags --libs rdkafka)") == 0 or die "no mock\n";
	push @OutboxTest::Receiver::started, open2(my $out, my $in, "$dir/mock");
	chomp(my $broker = readline $out);
	my $say = sub {
		print $in "$_[0]\n";
		$in->flush;
		return readline($out) eq "ok\n";
	};
	return ($broker, $say);
}

# Skips the test where there is no Kafka, or none is wanted.  Returns where the jars are.
sub needed
{
	plan skip_all => 'takes minutes and what Maven fetches: "make clients" runs it' unless $ENV{OUTBOX_TEST_CLIENTS};
	my $missing = missing();
	plan skip_all => $missing if $missing;

	# Brokers begin slowly on a busy machine, and a change of leaders takes time.
	$OutboxTest::timeout = 180 if $OutboxTest::timeout < 180;
	return $jars;
}

# Brokers that run.  Options:
#   jars       where they are
#   nodes      how many (1); the first one is the controller too, and must live
#   listeners  { NAME => protocol }, besides OPEN, which is PLAINTEXT
#   advertise  { NAME => host } where that is not its own address
#   data       where the data are kept (in a directory of its own), of one node only
#   conf       further lines of server.properties
#   format     further arguments of StorageTool
sub new
{
	my ($class, %arg) = @_;
	my $self = bless { jars => $arg{jars}, dir => PostgreSQL::Test::Utils::tempdir('kafka'), nodes => [] }, $class;
	my %protocol = (OPEN => 'PLAINTEXT', %{ $arg{listeners} // {} });
	my @names = sort keys %protocol;
	my @ports;

	# Ports below those of outgoing connections, or these could take them
	for (my $port = 20000 + $$ % 10000; @ports < (@names + 1) * ($arg{nodes} // 1); $port++)
	{
		push @ports, $port if IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1, ReuseAddr => 1);
	}
	my $controller = '127.0.0.1:' . shift @ports;
	foreach my $id (1 .. $arg{nodes} // 1)
	{
		my %port = map { $_ => shift @ports } @names;
		my $node = { id => $id, dir => "$self->{dir}/$id", address => { map { $_ => "127.0.0.1:$port{$_}" } @names } };
		my @listeners = map { "$_://$node->{address}{$_}" } @names;
		my @advertised = map { "$_://" . ($arg{advertise}{$_} // '127.0.0.1') . ":$port{$_}" } @names;
		push @listeners, "CONTROLLER://$controller" if $id == 1;
		my %conf = (
			'process.roles' => $id == 1 ? 'broker,controller' : 'broker',
			'node.id' => $id,
			'controller.quorum.voters' => "1\@$controller",
			'listeners' => join(',', @listeners),
			'advertised.listeners' => join(',', @advertised),
			'controller.listener.names' => 'CONTROLLER',
			'listener.security.protocol.map' => join(',', 'CONTROLLER:PLAINTEXT', map { "$_:$protocol{$_}" } @names),
			'inter.broker.listener.name' => 'OPEN',
			'log.dirs' => ($arg{data} // $node->{dir}) . '/data',
			'offsets.topic.replication.factor' => 1,
			'offsets.topic.num.partitions' => 1,
			'transaction.state.log.replication.factor' => 1,
			'transaction.state.log.min.isr' => 1,
			'transaction.state.log.num.partitions' => 1,
			'auto.create.topics.enable' => 'false',
			'num.network.threads' => 2,
			'num.io.threads' => 2,
			'log.cleaner.threads' => 1,
			'log.cleaner.dedupe.buffer.size' => 11000000);

		mkdir $node->{dir} or die "$node->{dir}: $!\n";
		append_to_file("$node->{dir}/address", "$node->{address}{OPEN}\n");
		append_to_file("$node->{dir}/server.properties",
			join('', map { "$_=$conf{$_}\n" } sort keys %conf) . ($arg{conf} // ''));
		push @{ $self->{nodes} }, $node;
		$self->command($id, 'format', @{ $arg{format} // [] }) or die $self->log($id);
	}
	$self->start(map { $_->{id} } @{ $self->{nodes} });
	return $self;
}

sub address
{
	my ($self, $listener) = @_;
	return $self->{nodes}[0]{address}{ $listener // 'OPEN' };
}

# All of them, as a URL has them
sub brokers
{
	my ($self) = @_;
	return join ',', map { $_->{address}{OPEN} } @{ $self->{nodes} };
}

sub log
{
	my ($self, $id) = @_;
	return slurp_file("$self->{nodes}[ $id - 1 ]{dir}/log");
}

# A command of test/kafka/broker, in the directory of a broker
sub command
{
	my ($self, $id, @command) = @_;
	my $dir = $self->{nodes}[ $id - 1 ]{dir};

	return system(join(' ', map { "'$_'" } "$top/test/kafka/broker", $self->{jars}, $dir, @command) . " >> '$dir/log' 2>&1") == 0;
}

sub topic
{
	my ($self, $name, $partitions, @more) = @_;

	return ok($self->command(1, 'topic', $name, $partitions, @more), "the topic $name is made") || diag($self->log(1));
}

# Starts brokers, and waits until they are there for clients.
sub start
{
	my ($self, @ids) = @_;

	foreach my $node (@{ $self->{nodes} }[ map { $_ - 1 } @ids ])
	{
		my $pid = fork // die "fork: $!";
		if ($pid == 0)
		{
			open(STDOUT, '>>', "$node->{dir}/log");
			open(STDERR, '>&', \*STDOUT);
			exec "$top/test/kafka/broker", $self->{jars}, $node->{dir}, 'run' or POSIX::_exit(127);
		}
		$node->{pid} = $pid;
		push @OutboxTest::Receiver::started, $pid;
	}
	foreach my $id (@ids)
	{
		wait_until { first { $_->{id} == $id } @{ $self->metadata->{brokers} } } "Kafka $id answers", 180
		  or die $self->log($id);
	}
	return;
}

sub signal
{
	my ($self, $signal, @ids) = @_;
	return kill $signal, map { $self->{nodes}[ $_ - 1 ]{pid} } @ids;
}

# Ends them, by KILL unless given.
sub stop
{
	my ($self, $signal, @ids) = @_;

	@ids = map { $_->{id} } grep { $_->{pid} } @{ $self->{nodes} } unless @ids;
	$self->signal($signal // 'KILL', @ids);
	foreach my $node (@{ $self->{nodes} }[ map { $_ - 1 } @ids ])
	{
		my $pid = delete $node->{pid};
		waitpid($pid, 0);
		@OutboxTest::Receiver::started = grep { $_ != $pid } @OutboxTest::Receiver::started;
	}
	return;
}

# Kills the only broker, and makes another cluster of this id in its place, without any topic.
sub renew
{
	my ($self, $id) = @_;
	local $ENV{KAFKA_CLUSTER} = $id;

	$self->stop('KILL');
	system('rm', '-rf', "$self->{nodes}[0]{dir}/data");
	$self->command(1, 'format') or die $self->log(1);
	$self->start(1);
	return;
}

# What the first broker knows of all: { brokers => [...], topics => [...] }
sub metadata
{
	my ($self) = @_;
	my $text = qx{kcat -L -J -b @{[$self->address]} -m 5 2>/dev/null};
	return eval { decode_json($text) } // {};
}

# The partitions of a topic: leader, replicas, isrs
sub partitions
{
	my ($self, $topic) = @_;
	my $found = first { $_->{topic} eq $topic } @{ $self->metadata->{topics} };
	return @{ $found->{partitions} // [] };
}

# How many records are in a topic, or in these partitions of it
sub count
{
	my ($self, $topic, @partitions) = @_;
	my $n = 0;

	@partitions = map { $_->{partition} } $self->partitions($topic) unless @partitions;
	my $text = qx{kcat -Q -b @{[$self->address]} @{[map { "-t $topic:$_:-1" } @partitions]} 2>/dev/null};
	$n += $1 while $text =~ /offset (\d+)/g;
	return $n;
}

# All records of a topic, partition by partition.  It takes long while some are written.
sub records
{
	my ($self, $topic) = @_;
	my @names = qw(partition offset key_len key time headers body);
	my @records;

	foreach (split /\n/, qx{kcat -C -q -e -b @{[$self->address]} -t $topic -o beginning -f '%p\\t%o\\t%K\\t%k\\t%T\\t%h\\t%s\\n' 2>/dev/null})
	{
		my %record;
		@record{@names} = split /\t/, $_, @names;
		$record{key} = undef if $record{key_len} < 0;
		($record{id}) = $record{headers} =~ /\boutbox-id=([0-9a-f-]{36})/;
		($record{n}) = $record{body} =~ /"n": (\d+)/;
		push @records, \%record;
	}
	return sort { $a->{partition} <=> $b->{partition} || $a->{offset} <=> $b->{offset} } @records;
}

# The records as the journal of a receiver that has answered each one with 200.  A key that
# has moved is in a partition with a higher number afterwards, and so further down.
sub journal
{
	my ($self, $file, $path, @records) = @_;
	my $n = 0;

	PostgreSQL::Test::Utils::append_to_file("$file.new", join '',
		map {
			sprintf qq({"path": "%s", "id": "%s", "round": "0.%d", "status": 200, "wall": %.3f, "sha256": "%s", "headers": {%s}}\n),
			$path, $_->{id}, ++$n, $_->{time} / 1000, md5_hex($_->{body}), join(', ',
				map { qq("$_->[0]": "$_->[1]") } grep { $_->[0] =~ /^(?:content-type|outbox-redelivery)$/ } map { [ split /=/, $_, 2 ] } split /,/, $_->{headers})
		} @records);
	rename "$file.new", $file or die "$file: $!";
	return { journal => $file };
}

# Judges what is in a topic by what a producer has emitted for the endpoint whose URL has this
# topic.  Options are those of check_history, and places: in how many partitions a key may be, one
# after the other (1).
sub check
{
	my ($self, $node, $log, $topic, %option) = @_;
	my $name = delete $option{name} // $topic;
	my $places = delete $option{places} // 1;
	my (%emitted, %places, %ranks, %at);
	my ($changed, $jumps) = (0, 0);

	wait_settled($node) or fail("$name: everything is delivered in time");
	my @records = $self->records($topic);
	check_history($node, $self->journal("$log.$topic", "/$topic", @records), $log,
		name => "$name: nothing is lost, made up, changed, or out of order", endpoints => ["/$topic"], %option);
	foreach (split /\n/, $node->safe_psql('postgres', 'SELECT id, key, topic, md5(payload::text) FROM outbox.all_events'))
	{
		my ($id, $rest) = split /\|/, $_, 2;
		$emitted{$id} = $rest;
	}
	$ranks{ $_->{key} }{ $_->{n} } = 0 foreach grep { defined $_->{key} } @records;
	foreach my $of (values %ranks)
	{
		my $rank = 0;
		$of->{$_} = ++$rank foreach sort { $a <=> $b } keys %$of;
	}
	foreach my $record (@records)
	{
		my ($key, $event) = ($record->{key}, $record->{headers} =~ /\boutbox-topic=([^,]+)/ ? $1 : '');

		$changed++ if ($emitted{ $record->{id} } // '') ne join '|', $key // '', $event, md5_hex($record->{body});
		next unless defined $key;
		my $rank = $ranks{$key}{ $record->{n} };
		$jumps++ if $rank > ($at{$key} // 0) + 1;
		$at{$key} = $rank;
		$places{$key}{ $record->{partition} } = 1;
	}
	is($changed, 0, "$name: key, topic and body are what was emitted");
	is($jumps, 0, "$name: each key goes on where it is, also after a repetition");
	is(scalar(grep { keys %$_ > $places } values %places), 0, "$name: each key is in one partition" . ($places > 1 ? ', and once in another' : ''));
	return @records;
}

1;
