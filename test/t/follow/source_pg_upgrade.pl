# A source that pg_upgrade brings to another version is followed on, and each event is taken once.
# From 17 on pg_upgrade keeps the slot.  Before, the slot is lost, and outbox.follow() is called again.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $own = $ENV{PG_CONFIG} || 'pg_config';
my $dir = PostgreSQL::Test::Utils::tempdir('upgrade');
chdir $dir or die "$dir: $!\n";

sub version_of { return qx{$_[0] --version} =~ /PostgreSQL (\d+)/ ? $1 : die $_[0] }

# A PostgreSQL of the cache, or that of this run.
sub postgresql
{
	my ($version) = @_;

	return $own if version_of($own) == $version;
	chomp(my $pg_config = qx{"$top/test/bin/postgresql" --cached $version 2>/dev/null} // '');
	return $? == 0 ? $pg_config : undef;
}

# pg_upgrade fails if the new version is of before a minor release of the old one (doc/copies.md).
sub is_new_enough
{
	my ($old, $new) = map {
		chomp(my $bindir = qx{$_ --bindir});
		system("grep -qs pg_attver $bindir/postgres $bindir/postgres.elf") == 0
	} @_;
	return $new || !$old;
}

sub wait_state
{
	my ($servers, $state, $name) = @_;
	return ok((wait_until { $servers->{follower}->psql('postgres', 'SELECT outbox.keep_sources(); SELECT outbox.follow_anew()'); $servers->ask('SELECT state FROM outbox.sources') eq $state } $name), $name);
}

# The new server has the address of the old one.
sub pg_upgrade
{
	my ($servers, $name, $from, $to) = @_;
	my $old = $servers->{source};
	my $new = $servers->make_source("upgraded_" . version_of($to), $to);
	chomp(my $bindir = qx{$to --bindir});
	chomp(my $old_bindir = qx{$from --bindir});

	$old->stop;
	command_ok([ "$bindir/pg_upgrade", '--no-sync', '-b', $old_bindir, '-B', $bindir, '-d', $old->data_dir, '-D', $new->data_dir,
			'-s', $new->host, '-p', $old->port, '-P', $new->port ], "$name: pg_upgrade");
	$new->append_conf('postgresql.conf', 'port = ' . $old->port . "\n");
	$new->{_port} = $old->port;
	$servers->{source} = $new;
	$new->start;
	return is($servers->provider('SHOW server_version_num') =~ s/....$//r, version_of($to), "$name: the new server");
}

sub upgrade
{
	my ($old, $new) = @_;
	my ($from, $to) = map { version_of($_) } $old, $new;
	my $name = "from $from to $to";
	my $servers = OutboxTest::Followed->new(name => "_${from}_$to", pg_config => $old);
	endpoint(@$servers{qw(follower receiver)}, 'all', '/ok/all');
	$servers->announce(5);
	$servers->follow;
	wait_state($servers, 'streaming', "$name: it is followed");
	$servers->ask('SELECT outbox.keep_sources()') foreach 1 .. 3;
	$servers->announce(5);
	my $keeps = $from >= 17;
	if ($keeps)
	{
		# It is refused while a slot has not sent all.
		my $lsn = $servers->provider('SELECT pg_current_wal_insert_lsn()');
		wait_until { $servers->provider("SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots") eq 't' } 'the source is told';
	}
	else
	{
		$servers->ask('ALTER SUBSCRIPTION outbox_shop DISABLE');
		$servers->announce(5);
	}
	pg_upgrade($servers, $name, $old, $new);
	is($servers->provider('SELECT count(*) FROM pg_replication_slots'), $keeps ? 1 : 0, "$name: slots that are there");
	$servers->announce(5);
	if (!$keeps)
	{
		wait_state($servers, 'slot_lost', "$name: the state");
		$servers->follow;
	}
	$servers->announce(5);
	wait_state($servers, 'streaming', "$name: it streams" . ($keeps ? ', by itself' : ''));
	$servers->all_are_taken($name);
	$servers->ask("UPDATE outbox.followed SET keep = '0'");
	ok((wait_until { $servers->ask('SELECT outbox.keep_sources()'); $servers->at_source('SELECT count(*) FROM outbox.events') == 0 } 'emptied'), "$name: what was taken leaves the source");
	$servers->announce(5);
	$servers->all_are_taken("$name, later");
	$_->stop foreach @$servers{qw(source follower)};
	return;
}
my @all = sort { version_of($a) <=> version_of($b) } grep { $_ } map { postgresql($_) } 15 .. 19;
foreach my $way ([ 15, 16, 'the slot is lost' ], [ 17, 18, 'the slot is kept' ])
{
	my ($first, $last, $what) = @$way;
	my @pairs = grep { my ($from) = map { version_of($_) } @$_; $from >= $first && $from <= $last && is_new_enough(@$_) } map { [ @all[ $_ - 1, $_ ] ] } 1 .. $#all;

	# One of them, if there are several
	if (@pairs) { upgrade(@{ $pairs[-1] }) }
	else { diag("NOT TESTED, $what: the cache has no two versions for it (test/bin/postgresql)") }
}
plan(skip_all => 'no two versions') unless Test::More->builder->current_test;
done_testing();
