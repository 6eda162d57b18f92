package OutboxTest::Beside;

# A webhook endpoint with a steady load beside hostile peers, in the same worker.  It is to
# notice nothing of them.

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(max);
use OutboxTest;
use OutboxTest::Receiver;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(all_of);

# Begins, and waits until it is served.
sub new
{
	my ($class, $node) = @_;
	my $self = bless { node => $node, receiver => OutboxTest::Receiver->new('main'), log => PostgreSQL::Test::Utils::tempdir() . '/producer' }, $class;

	endpoint($node, $self->{receiver}, 'fine', '/ok/fine', "topics => '{load.*}'");
	$self->{producer} = start_producer($node, $self->{log}, rate => 20);
	$self->goes_on(20);
	$self->{worker} = worker_pid($node);
	return $self;
}

sub delivered
{
	my ($self) = @_;
	return scalar(() = $self->{receiver}->delivered(path => '/ok/fine'));
}

# Waits until so many events have arrived since then, or from now on.
sub goes_on
{
	my ($self, $n, $since) = @_;
	return $self->{receiver}->wait_delivered(($since // $self->delivered) + $n, path => '/ok/fine');
}

sub lives
{
	my ($self, $name) = @_;
	return is(worker_pid($self->{node}), $self->{worker}, $name // 'the worker lives');
}

# The end.  The other endpoints are gone.  Of options it has those of check_history().
sub judge
{
	my ($self, %option) = @_;
	my $node = $self->{node};

	stop_producer($self->{producer});
	is(stat_of($node, 'fine', 'failed_attempts'), '0', 'the other endpoint has not noticed anything');
	check_history($node, $self->{receiver}, $self->{log}, endpoints => ['/ok/fine'], name => 'nothing lost, all in order', %option);
	$node->stop;
	return unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
}

# Waits until all are fulfilled, and names those that are not.  After a failure there is
# little to wait for.
my $patience = max(120, $OutboxTest::timeout);

sub all_of
{
	my ($what, $is) = @_;
	my @left;

	wait_until { @left = $is->(); !@left } $what, $patience;
	$patience = 5 if @left;
	return ok(!@left, $what) || diag(join "\n", @left);
}

1;
