# "make install" puts just the extension below DESTDIR, and "make uninstall" leaves none of it.
# The versions that packages carry are those of the extension.
use strict;
use warnings;

use File::Find;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
my $dir = PostgreSQL::Test::Utils::tempdir('install');
my $root = "$dir/root";
my %place = map { $_ => qx{$pg_config --$_} =~ s/\n//r } qw(pkglibdir sharedir includedir-server);

# Compiling is not what is tested: "make -t" makes each file, empty.
system('cp', '-R', (map { "$top/$_" } qw(Makefile outbox.control META.json sql src inbox)), $dir) == 0 or die 'cp';
sub make
{
	my (@what) = @_;

	local $ENV{MAKEFLAGS} = '';
	return system("make -s -C '$dir' PG_CONFIG='$pg_config' with_llvm=no @what >'$dir/log' 2>&1") == 0;
}

sub files
{
	my @found;

	find({ no_chdir => 1, wanted => sub { push @found, substr($_, length $root) unless -d } }, $root) if -d $root;
	return [ sort @found ];
}

# "make -j install" of a clean tree: without an order, two processes make the same file at the same time.
my $rules = do { local $ENV{MAKEFLAGS} = ''; qx{make -C '$dir' -npq PG_CONFIG='$pg_config' with_llvm=no 2>/dev/null} };
ok($rules =~ /^$_-install: $_-all$/m, "$_ is made before it is installed") foreach qw(inbox sinks);
append_to_file("$dir/here", "#!/bin/sh\nexec $pg_config \"\$@\"\n");
chmod 0755, "$dir/here";
ok(make('inbox-all PG_CONFIG=./here'), 'PG_CONFIG may be a relative path') or diag(slurp_file("$dir/log"));

ok(make('-t all'), 'made');
ok(make("install DESTDIR='$root'"), 'installed') or diag(slurp_file("$dir/log"));
is_deeply(
	files(),
	[ sort "$place{pkglibdir}/outbox.so",
		"$place{'includedir-server'}/extension/outbox/transport.h",
		map { "$place{sharedir}/extension/$_" } qw(outbox.control outbox--1.0.sql inbox.control inbox--1.0.sql) ],
	'the library, its header, the control files and the scripts');
ok(make("uninstall DESTDIR='$root'"), 'uninstalled') or diag(slurp_file("$dir/log"));
is_deeply(files(), [], 'nothing is left');

# The extension inbox alone needs no compiler, and is its plain file.
ok(make("-C inbox install DESTDIR='$root'"), 'inbox installed') or diag(slurp_file("$dir/log"));
is_deeply(files(), [ map { "$place{sharedir}/extension/$_" } qw(inbox--1.0.sql inbox.control) ], 'its control file and its script');
cmp_ok(index(slurp_file("$root$place{sharedir}/extension/inbox--1.0.sql"), slurp_file("$top/inbox/inbox.sql")), '>', 0, 'which holds the plain file');

my ($version) = slurp_file("$top/META.json") =~ /^   "version": "([0-9.]+)"/m;
my ($control) = slurp_file("$top/outbox.control") =~ /^default_version = '([0-9.]+)'/m;
my ($debian) = slurp_file("$top/debian/changelog") =~ /^postgresql-outbox \(([0-9.]+)-\d+\)/;
like($version, qr/^\Q$control\E\.\d+$/, 'META.json has the version of outbox.control');
is($debian, $version, 'debian/changelog has that of META.json');
is(slurp_file("$top/debian/control"), slurp_file("$top/debian/control.in") =~ s/PGVERSION/15/gr,
	'debian/control is that of control.in, for Debian 12');
done_testing();
