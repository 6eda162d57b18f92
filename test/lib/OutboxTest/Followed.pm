package OutboxTest::Followed;

# A server without the library, as a provider has it, a follower that delivers its events, and
# a receiver.  At the source role provided owns database shop, outbox_follower follows, and
# shop_app emits.

use strict;
use warnings;

use List::Util qw(max);
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# PostgreSQL's own launcher may miss the end of a process, and sleep for three minutes.
$_ = max($_, 240) foreach $OutboxTest::timeout, $PostgreSQL::Test::Utils::timeout_default;

# keep_sources() leaves a source to another process that asks it.  This waits for that one, and asks then.
our $round = 'SELECT outbox.keep_sources() FROM (SELECT count(*) FROM (SELECT FROM outbox.followed FOR UPDATE) f) c';

# Options: source and follower: lines for postgresql.conf; ready => 0: sql/source.sql is not
# installed and no right is granted; streaming => 1: the follower may have a standby;
# name: is in the names of both; pg_config: another PostgreSQL for the source, which
# OUTBOX_SOURCE_PG_CONFIG names otherwise.
sub new
{
	my ($class, %arg) = @_;
	my $name = $arg{name} // '';
	my $self = bless { conf => $arg{source} // '' }, $class;
	my $source = $self->{source} = $self->make_source("source$name", $arg{pg_config} // $ENV{OUTBOX_SOURCE_PG_CONFIG});

	$source->start;
	$source->safe_psql('postgres', 'CREATE ROLE provided LOGIN; CREATE ROLE outbox_follower LOGIN; CREATE ROLE shop_app LOGIN');
	$source->safe_psql('postgres', 'CREATE DATABASE shop OWNER provided');
	$self->{conninfo} = $source->connstr('shop') . ' user=outbox_follower';
	$self->{follower} = outbox_node("follower$name", streaming => $arg{streaming} // 0,
		conf => "wal_retrieve_retry_interval = '100 ms'\n" . ($arg{follower} // ''));
	$self->{receiver} = OutboxTest::Receiver->new('main');
	if ($arg{ready} // 1)
	{
		$source->safe_psql('postgres', 'ALTER ROLE outbox_follower REPLICATION');
		$self->install == 0 or die "sql/source.sql failed\n";
		$self->at_source("SELECT outbox.grant_emit('shop_app'); SELECT outbox.grant_follow('outbox_follower')");
	}
	return $self;
}

# A cluster that is not started yet.  pg_upgrade wants both with checksums or both without.
sub make_source
{
	my ($self, $name, $pg_config) = @_;
	my ($path) = ($pg_config // '') =~ m{^(.*)/bin/pg_config$};
	my $node = PostgreSQL::Test::Cluster->new($name, $path ? (install_path => $path) : ());

	$node->init(allows_streaming => 'logical', extra => [ '--locale=C', '--encoding=UTF8', '-k' ]);
	# The test modules of a newer PostgreSQL have written this.
	$node->adjust_conf('postgresql.conf', 'autovacuum_worker_slots', undef) if $path;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\nmax_connections = 50\n$self->{conf}");
	return $node;
}

# As the owner of the database, who is no superuser.  Returns 0 if all went well.
sub install
{
	my ($self) = @_;
	return scalar $self->{source}->psql('shop', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ], on_error_stop => 1);
}

sub at_source
{
	my ($self, $sql, $role) = @_;
	return $self->{source}->safe_psql('shop', $sql, extra_params => [ '-U', $role // 'provided' ]);
}

# As a superuser of the source
sub provider
{
	my ($self, $sql) = @_;
	return $self->{source}->safe_psql('shop', $sql);
}

sub ask
{
	my ($self, $sql) = @_;
	return $self->{follower}->safe_psql('postgres', $sql);
}

sub quoted { return "'" . $_[0] =~ s/'/''/gr . "'" }

# The statement that follows the source.  More is SQL: "keep => '0'".
sub follow_sql
{
	my ($self, $more) = @_;
	return "SELECT outbox.follow('shop', " . quoted($self->{conninfo}) . ($more ? ", $more)" : ')');
}

sub follow
{
	my ($self, $more) = @_;
	return $self->ask($self->follow_sql($more));
}

# So many events of one key, each in a transaction of its own
sub announce
{
	my ($self, $count) = @_;
	my $told = $self->{told} //= [];
	my $n = @$told;

	push @$told, split /\n/, $self->at_source(join(";\n", map { "SELECT outbox.emit('order.n', '{\"n\": " . ($n + $_) . "}', key => 'k')" } 1 .. $count), 'shop_app');
	return;
}

sub all_are_taken
{
	my ($self, $name) = @_;
	my $told = $self->{told};

	$self->{receiver}->wait_delivered(1, path => '/ok/all', id => $_) foreach @$told;
	is($self->ask("SELECT string_agg(id::text, ' ' ORDER BY seq) FROM outbox.all_events"), join(' ', @$told), "$name: each is once in the log, in order");
	my %seen;
	return is(join(' ', grep { !$seen{$_}++ } map { $_->{id} } $self->{receiver}->delivered(path => '/ok/all')), join(' ', @$told), "$name: and is delivered in order");
}

# The script of pgbench that emits the next number of some key, and rolls some of them back.  Each
# transaction that commits has a row in the table ledger (k, n, id).
sub emits_in_order
{
	my $script = "$PostgreSQL::Test::Utils::tmp_check/emits_in_order.sql";

	append_to_file($script, <<'SQL') unless -e $script;
\set k random(1, 20)
\set undone random(1, 10)
BEGIN;
SELECT pg_advisory_xact_lock(:k);
INSERT INTO ledger SELECT :k, l.n, outbox.emit('order.n', jsonb_build_object('k', :k, 'n', l.n), key => :k)
FROM (SELECT COALESCE(max(n), 0) + 1 AS n FROM ledger WHERE k = :k) l;
\if :undone = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL
	return $script;
}

1;
