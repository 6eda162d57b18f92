# test/bin/setup asks apt for each package that is missing, and for no other.
# It looks for what the build opens.  apt, sudo and what is on the machine are scripts here.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

my $top = $ENV{OUTBOX_TOP} || '.';
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
my $dir = PostgreSQL::Test::Utils::tempdir('setup');
my ($version) = qx{$pg_config --version} =~ /PostgreSQL (\d+)/;
chomp(my $server_headers = qx{$pg_config --includedir-server});
chomp(my $gcc = qx{command -v gcc 2>qx{command -v gcc}1});
chomp(my $real = qx{sh -c 'command -v $pg_config'});

sub script
{
	my ($name, $text) = @_;
	open(my $fh, '>', "$dir/bin/$name") or die "$dir/bin/$name: $!\n";
	print $fh "#!/bin/sh\n$text";
	close $fh;
	chmod 0755, "$dir/bin/$name";
	return;
}

mkdir "$dir/bin" or die "$dir/bin: $!\n";
script('sudo', <<"SH");
case \$1 in
	apt-get) exec "\$@" ;;
	env) shift 3; exec "\$@" ;;
	tee) cat >/dev/null ;;
esac
SH
# What apt installs appears: the headers are what a link points to.
script('apt-get', <<"SH");
echo "\$*" >>"$dir/asked"
case " \$* " in
*" install "*" postgresql-server-dev-"*)
	[ -e "$dir/never" ] || ln -sfn "$server_headers" "$dir/headers" ;;
*" install "*" libcurl4-openssl-dev "*|*" install "*" libssl-dev "*) rm -f "$dir/hidden" ;;
esac
SH
script('apt-cache', "echo 'Depends: postgresql-$version'\n");
script('dpkg-query', "echo installed\n");
script('pg_config', <<"SH");
case \$1 in
	--includedir-server) echo "$dir/headers" ;;
	*) exec "$real" "\$@" ;;
esac
SH
# A compiler that does not find what "hidden" names.
script('gcc', <<"SH");
cat >"$dir/source.c"
if [ -e "$dir/hidden" ] && grep -qFf "$dir/hidden" "$dir/source.c"; then
	echo "fatal error: no such header" >&2
	exit 1
fi
PATH="$ENV{PATH}" exec "$gcc" "\$@" <"$dir/source.c"
SH

# Runs it.  Returns the exit status, what apt was asked to install, and stderr.
sub setup
{
	my ($headers, $hidden) = @_;
	my ($out, $err);

	unlink "$dir/asked", "$dir/headers", "$dir/hidden";
	symlink $headers, "$dir/headers" or die "$dir/headers: $!\n";
	PostgreSQL::Test::Utils::append_to_file("$dir/hidden", "$hidden\n") if $hidden;
	local $ENV{PATH} = "$dir/bin:$ENV{PATH}";
	local $ENV{PG_CONFIG} = 'pg_config';
	my $result = IPC::Run::run([ 'sh', "$top/test/bin/setup" ], '>', \$out, '2>', \$err);
	my $asked = -e "$dir/asked" ? PostgreSQL::Test::Utils::slurp_file("$dir/asked") : '';
	my ($installs) = $asked =~ /^install .*?((?: [a-z][\w.-]+)+)$/m;
	return ($result ? 0 : 1, $installs // '', $err);
}

my ($status, $asked, $said) = setup($server_headers);
is($status, 0, 'all is there');
is($asked, '', 'apt is asked for nothing');

# A server that came without its headers, which Debian's postgresql-NN does
mkdir "$dir/none" or die $!;
($status, $asked, $said) = setup("$dir/none");
is($status, 0, 'a server without headers: set up');
like($asked, qr/ postgresql-server-dev-\d+/, 'apt is asked for the headers');
like($asked, qr/ postgresql-(\d+) postgresql-server-dev-\1$/,
	'and for the server in the same breath: their minor releases match');

# Headers that have most of it
system('cp', '-Rs', $server_headers, "$dir/most") == 0 or die "cp failed\n";
unlink "$dir/most/access/tableam.h" or die "access/tableam.h: $!\n";
($status, $asked, $said) = setup("$dir/most");
is($status, 0, 'one header is missing: set up');
like($asked, qr/ postgresql-server-dev-\d+/, 'apt is asked for the headers, too');

# Libraries whose headers are not there, whatever dpkg says
($status, $asked, $said) = setup($server_headers, 'curl/curl.h');
is($status, 0, 'no header of libcurl: set up');
is($asked, ' libcurl4-openssl-dev', 'apt is asked for it and nothing else');
($status, $asked, $said) = setup($server_headers, 'openssl/evp.h');
is($status, 0, 'no header of OpenSSL: set up');
is($asked, ' libssl-dev', 'apt is asked for it and nothing else');

# A package that does not bring them
PostgreSQL::Test::Utils::append_to_file("$dir/never", '');
($status, $asked, $said) = setup("$dir/none");
is($status, 1, 'the headers do not come: an error');
like($said, qr/postgres\.h/, 'which names what is missing');

done_testing();
