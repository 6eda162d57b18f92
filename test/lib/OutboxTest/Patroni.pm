# Three PostgreSQL servers that Patroni and etcd keep, one of them the leader.
package OutboxTest::Patroni;

use strict;
use warnings;

use Carp;
use HTTP::Tiny;
use JSON::PP ();
use OutboxTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);

# Where test/bin/setup put Patroni, or undef.
sub place
{
	my $cache = $ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test';
	my ($complete) = glob("$cache/patroni-*/complete");
	return unless $complete && grep { -x "$_/etcd" } split /:/, $ENV{PATH};
	return $complete =~ s{/complete$}{}r;
}

my $http = HTTP::Tiny->new(timeout => 5);
my $user = getpwuid($<);

# Options: count (3), parameters (lines of YAML), synchronous
sub new
{
	my ($class, $name, %option) = @_;
	my $self = bless { name => $name, etcd_port => PostgreSQL::Test::Cluster::get_free_port() }, $class;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	$self->{etcd_data} = "$dir/etcd";
	$self->{peer_port} = PostgreSQL::Test::Cluster::get_free_port();
	$self->start_etcd;
	foreach my $n (1 .. $option{count} // 3)
	{
		my $node = PostgreSQL::Test::Cluster->new("${name}_$n");
		my $member = {
			node => $node,
			name => "${name}_$n",
			api => PostgreSQL::Test::Cluster::get_free_port(),
			file => "$dir/$n.yml",
			log => $ENV{TESTLOGDIR} . "/patroni_${name}_$n.log" };
		open(my $fh, '>', $member->{file}) or die "$member->{file}: $!";
		print $fh $self->configuration($member, %option);
		close $fh;
		push @{ $self->{members} }, $member;
	}
	$self->start_member($_) foreach @{ $self->{members} };
	return $self;
}

sub configuration
{
	my ($self, $member, %option) = @_;
	my $node = $member->{node};
	my $synchronous = $option{synchronous} ? 'true' : 'false';
	my ($bindir, $data, $socket, $port) =
	  (qx(pg_config --bindir) =~ s/\n//r, $node->data_dir, $node->host, $node->port);

	return <<YAML;
scope: $self->{name}
name: $member->{name}
restapi: {listen: '127.0.0.1:$member->{api}', connect_address: '127.0.0.1:$member->{api}'}
etcd3: {host: '127.0.0.1:$self->{etcd_port}'}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 5
    primary_start_timeout: 0
    maximum_lag_on_failover: 1073741824
    synchronous_mode: $synchronous
    synchronous_mode_strict: $synchronous
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters:
        shared_preload_libraries: outbox
        outbox.allowed_networks: 127.0.0.1/32
        wal_log_hints: 'on'
        wal_keep_size: 256MB
        max_connections: 60
        max_wal_senders: 10
        max_worker_processes: 12
$option{parameters}
  initdb: [{encoding: UTF8}, {locale: C}, {auth: trust}]
postgresql:
  listen: 127.0.0.1:$port
  connect_address: 127.0.0.1:$port
  data_dir: $data
  bin_dir: $bindir
  use_unix_socket: true
  authentication:
    superuser: {username: $user}
    replication: {username: $user}
  parameters: {unix_socket_directories: '$socket'}
  pg_hba: ['local all all trust', 'host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']
YAML
}

sub spawn
{
	my ($log, %env) = @_;
	my @command = @{ delete $env{command} };
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		@ENV{ keys %env } = values %env;
		delete @ENV{ grep { /^PG/ } keys %ENV };
		setpgrp;
		open(STDOUT, '>>', $log);
		open(STDERR, '>&', \*STDOUT);
		exec @command or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	return $pid;
}

sub start_etcd
{
	my ($self) = @_;
	my $client = "http://127.0.0.1:$self->{etcd_port}";
	my $peer = "http://127.0.0.1:$self->{peer_port}";

	$self->{etcd} = spawn(
		"$ENV{TESTLOGDIR}/etcd_$self->{name}.log",
		command => [
			'etcd', '--data-dir', $self->{etcd_data}, '--listen-client-urls', $client,
			'--advertise-client-urls', $client, '--listen-peer-urls', $peer,
			'--initial-advertise-peer-urls', $peer, '--initial-cluster', "default=$peer" ]);
	wait_until { $http->get("$client/health")->{success} } 'etcd answers';
	return;
}

sub start_member
{
	my ($self, $member) = @_;
	my $place = place();

	$member->{pid} = spawn(
		$member->{log},
		PYTHONPATH => $place,
		command => [ '/usr/bin/python3', "$place/bin/patroni", $member->{file} ]);
	return;
}

# The members as Patroni's own interface shows them: name => role
sub roles
{
	my ($self) = @_;

	foreach my $member (@{ $self->{members} })
	{
		my $answer = $http->get("http://127.0.0.1:$member->{api}/cluster");
		next unless $answer->{success};
		my $cluster = JSON::PP::decode_json($answer->{content});
		return map { $_->{name} => $_->{role} . ' ' . $_->{state} } @{ $cluster->{members} };
	}
	return ();
}

# The member that is the leader and takes writes, other than one.
sub leader
{
	my ($self, $other) = @_;
	my $found;

	wait_until
	{
		foreach my $member (@{ $self->{members} })
		{
			next if $other && $member == $other;
			my $answer = $http->get("http://127.0.0.1:$member->{api}/primary");
			next unless $answer->{status} == 200;
			my ($status, $out) =
			  $member->{node}->psql('postgres', 'SELECT pg_is_in_recovery()', timeout => 10);
			$found = $member if defined $status && $status == 0 && $out eq 'f';
		}
		$found;
	}
	'a leader', 180;
	return $found;
}

# Waits until all members stream, or lead.
sub wait_whole
{
	my ($self) = @_;

	return wait_until
	{
		my %role = $self->roles;
		my $leaders = grep { /^leader/ } values %role;
		my $streaming = grep { /streaming/ } values %role;
		$leaders == 1 && $streaming == @{ $self->{members} } - 1;
	}
	'all members stream', 180;
}

sub switchover
{
	my ($self, $from) = @_;
	my $answer = $http->post(
		"http://127.0.0.1:$from->{api}/switchover",
		{ content => JSON::PP::encode_json({ leader => $from->{name} }) });
	croak "switchover: $answer->{status} $answer->{content}" unless $answer->{success};
	return;
}

# The processes of a member's server, the postmaster first.
sub server_pids
{
	my ($member) = @_;
	my ($postmaster) = split /\n/,
	  PostgreSQL::Test::Utils::slurp_file($member->{node}->data_dir . '/postmaster.pid');
	my @children = split /\n/, qx(ps -o pid= --ppid $postmaster);
	return ($postmaster, map { int } @children);
}

sub stop
{
	my ($self) = @_;

	foreach my $member (@{ $self->{members} })
	{
		kill 'CONT', $member->{pid};
		kill 'TERM', $member->{pid};
	}
	waitpid($_->{pid}, 0) foreach @{ $self->{members} };
	kill 'CONT', $self->{etcd};
	kill 'TERM', $self->{etcd};
	waitpid($self->{etcd}, 0);
	return;
}

1;
