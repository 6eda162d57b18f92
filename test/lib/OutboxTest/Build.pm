package OutboxTest::Build;

# A PostgreSQL of a test's own, for a library that no user may ever get: with
# crash points, or of a version to come.  PostgreSQL finds its files relative to
# its own binary, so a copy of the installation is enough.  The one of PG_CONFIG
# is only read.

use strict;
use warnings;

use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Path qw(make_path);
use PostgreSQL::Test::Utils;

our $top = $ENV{OUTBOX_TOP} || '.';

sub run
{
	my (@command) = @_;
	my $output = qx{@{[join ' ', map { "'$_'" } @command]} 2>&1};
	die "@command:\n$output" if $? != 0;
	return $output;
}

sub pg_config
{
	my ($pg_config, $option) = @_;
	my ($value) = run($pg_config, $option) =~ /^(.*)$/m;
	return $value;
}

# The longest path that all of them are below.
sub common
{
	my (@paths) = @_;
	my $prefix = dirname(shift @paths);

	foreach my $path (@paths)
	{
		$prefix = dirname($prefix) until index("$path/", "$prefix/") == 0;
	}
	return $prefix;
}

# Copies PostgreSQL, the one of PG_CONFIG unless another is given, into a directory.
sub copied
{
	my ($class, $directory, $original) = @_;
	my $flags = $original ? undef : $ENV{OUTBOX_CHECKER_CFLAGS};
	$original ||= $ENV{PG_CONFIG} || 'pg_config';
	my @copied = map { pg_config($original, $_) } qw(--bindir --sharedir --pkglibdir --includedir-server);
	my @linked = map { pg_config($original, $_) } qw(--includedir);
	my $prefix = common(@copied, @linked);
	my $self = bless { directory => $directory, tree => "$directory/tree", flags => $flags // '' }, $class;
	my $there = sub { "$directory/pg" . substr($_[0], length $prefix) };

	foreach my $source (@copied)
	{
		my $copy = $there->($source);
		next if -e $copy;
		make_path(dirname($copy));
		run('cp', '-R', $source, $copy);
	}
	foreach my $source (@linked)
	{
		my $copy = $there->($source);
		next if -e $copy;
		make_path(dirname($copy));
		symlink($source, $copy) or die "$copy: $!\n";
	}
	my $bindir = $there->($copied[0]);

	# PostgreSQL of a Python wheel looks for libpq beside the wheel.
	my ($beside) = qx{ldd '$copied[0]/initdb' 2>/dev/null} =~ m{=> (/\S+)/libpq[^/\s]+ };
	$ENV{LD_LIBRARY_PATH} = join(':', $beside, $ENV{LD_LIBRARY_PATH} // ())
	  if $beside && qx{ldd '$bindir/initdb' 2>/dev/null} =~ /not found/;
	$self->{pg_config} = "$bindir/pg_config";
	$self->{install_path} = dirname($bindir);
	$self->{extensions} = $there->($copied[1]) . '/extension';
	$self->{library} = $there->($copied[2]) . '/outbox.so';
	die "this PostgreSQL cannot be moved\n"
	  if pg_config($self->{pg_config}, '--sharedir') ne $there->($copied[1]);
	return $self;
}

# A copy without any file of outbox
sub bare
{
	my ($class, $directory, @original) = @_;
	my $self = $class->copied($directory, @original);

	run('find', "$directory/pg", qw(-depth -name), $_, qw(-exec rm -r {} +)) foreach 'outbox*', 'inbox*';
	return $self;
}

# A copy with the sources of outbox beside it, which install() builds
sub new
{
	my ($class, @where) = @_;
	my $self = $class->copied(@where);

	make_path($self->{tree});
	run('cp', '-R', "$top/$_", "$self->{tree}/")
	  foreach qw(src sql inbox Makefile outbox.control);
	$self->without_objects;
	return $self;
}

sub without_objects
{
	my ($self) = @_;
	return run('find', $self->{tree}, '(', '-name', '*.o', '-o', '-name', '*.bc', '-o', '-name', '*.so', ')', '-delete');
}

# A sink that is built and installed with it.
sub add_sink
{
	my ($self, $name) = @_;

	make_path("$self->{tree}/sinks");
	run('cp', '-R', "$top/sinks/$name", "$self->{tree}/sinks/");
	$self->without_objects;
	return;
}

# A file that only this library has.
sub add
{
	my ($self, $file, $where) = @_;
	run('cp', "$top/$file", "$self->{tree}/$where/");
	return;
}

# Changes a file of the copy.
sub change
{
	my ($self, $file, $from, $to) = @_;
	my $path = "$self->{tree}/$file";
	my $text = PostgreSQL::Test::Utils::slurp_file($path);

	$text =~ s/\Q$from\E/$to/ or die "$file has no $from\n";
	open(my $fh, '>', $path) or die "$path: $!\n";
	print $fh $text;
	close $fh;
	return;
}

# Another library in the place of the one that is installed.  A server that has
# loaded that one keeps it.
sub use_library
{
	my ($self, $file) = @_;
	run('cp', $file, "$self->{library}.new");
	rename "$self->{library}.new", $self->{library} or die "$self->{library}: $!\n";
	return;
}

# As install(), but only sources that have the word are compiled, and what was added.  The
# other objects are those of this run.
sub install_again
{
	my ($self, $word, @flags) = @_;

	foreach my $object (glob "$top/src/{,*/,*/*/}*.o")
	{
		my $copy = $self->{tree} . substr($object, length $top);
		my $source = $copy =~ s/o$/c/r;
		next if !-e $source || PostgreSQL::Test::Utils::slurp_file($source) =~ /\b$word\b/;
		copy($object, $copy) or die "$copy: $!\n";
	}
	return $self->install(@flags);
}

# Builds with further flags and installs.  Where the PostgreSQL that was copied runs
# under a memory checker, with its flags.
sub install
{
	my ($self, @flags) = @_;
	my @make = (
		'make', '-s', '-C', $self->{tree}, "PG_CONFIG=$self->{pg_config}",
		'with_llvm=no', "COPT=-O1 $self->{flags} @flags");

	run(@make, '-j2', 'all');
	run(@make, 'install');
	return;
}

# A PostgreSQL with the sink null and its variants (test/sinks), below this directory.  Returns
# it and the file that the sink writes, which a server that is started later finds.
sub with_null_sink
{
	my ($class, $dir) = @_;
	my $self = $class->new("$dir/build");

	run('cp', '-R', "$top/test/sinks", "$dir/");
	run('make', '-s', '-C', "$dir/sinks", "PG_CONFIG=$self->{pg_config}", 'with_llvm=no', 'install');
	$ENV{OUTBOX_NULL_JOURNAL} = "$dir/journal";
	return ($self, $ENV{OUTBOX_NULL_JOURNAL});
}

1;
