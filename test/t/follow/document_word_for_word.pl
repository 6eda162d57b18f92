# A newcomer's run of doc/follow.md, word for word, ends with events that are delivered.
# The source has no file of outbox, and roles with passwords; they connect by TLS.  All blocks are run,
# in their order, but the image and its manifest.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $page = slurp_file("$top/doc/follow.md");
my $dir = PostgreSQL::Test::Utils::tempdir('follow');
my $bare = OutboxTest::Build->bare("$dir/bare");
is(qx(find '$dir/bare' -name '*outbox*'), '', 'a PostgreSQL without a file of outbox');
my %password = (admin => 'secret', $page =~ /^CREATE ROLE (\w+) LOGIN PASSWORD '([^']*)'/mg);
my $tls = OutboxTest::Build::pg_config($bare->{pg_config}, '--configure') =~ /openssl/;
mkdir $_ or die "$_: $!\n" foreach "$dir/etc", "$dir/home";
if ($tls)
{
	system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
		  . " -keyout $dir/key -out $dir/etc/managed.pem 2>$dir/openssl && chmod 600 $dir/key") == 0 or die slurp_file("$dir/openssl");
}

# As a service hands it out: an administrator, and passwords
my $source = PostgreSQL::Test::Cluster->new('source', install_path => $bare->{install_path});
$source->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$source->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\nmax_wal_senders = 10\nmax_replication_slots = 10\nwal_level = replica\n");
$source->append_conf('postgresql.conf', "ssl = on\nssl_key_file = '$dir/key'\nssl_cert_file = '$dir/etc/managed.pem'\n") if $tls;
$source->start;
$source->safe_psql('postgres', "CREATE ROLE admin SUPERUSER LOGIN PASSWORD 'secret'");

# With these lines it asks for passwords.
sub lets_in
{
	my ($node, @lines) = @_;
	my $file = $node->data_dir . '/pg_hba.conf';

	unlink $file;
	append_to_file($file, join "\n", 'local all ' . getpwuid($<) . ' trust', @lines, '');
	return $node->reload;
}
lets_in($source, ($tls ? 'hostssl' : 'host') . ' postgres,shop all 127.0.0.1/32 scram-sha-256');

# The entry of pg_service.conf is read by a server that was started with this.
$ENV{PGSERVICEFILE} = "$dir/home/services";
my $follower = outbox_node('follower', extension => 0, conf => "listen_addresses = '127.0.0.1'\nwal_retrieve_retry_interval = '100 ms'\n");
lets_in($follower, 'host postgres watcher 127.0.0.1/32 scram-sha-256', 'local postgres oncall trust');
my $receiver = OutboxTest::Receiver->new('main');
my $event = '';

# Addresses and files of the document, as they are here
sub here
{
	my ($code) = @_;
	my ($at, $delivers) = map { $_->port } $source, $follower;

	$code =~ s{sslmode=verify-full|sslrootcert=\S*?(?=['\s])}{}g unless $tls;
	$code =~ s{managed\.example:5432}{localhost:$at}g;
	$code =~ s{^host=managed\.example$}{host=localhost\nport=$at}mg;
	$code =~ s{host=managed\.example}{host=localhost port=$at}g;
	$code =~ s{managed\.example}{localhost}g;
	$code =~ s{host 'follower\.example'}{host 'localhost', port '$delivers'};
	$code =~ s{https://billing\.example/webhooks}{http://127.0.0.1:$receiver->{port}/ok/billing};
	$code =~ s{/etc/outbox/}{$dir/etc/}g;
	$code =~ s{(?<=CREATE EXTENSION outbox;\n)}{worker_grants()}e if $ENV{OUTBOX_TEST_WORKER_ROLE};
	$code =~ s{01a1f78c-[0-9a-f-]{27}}{$event};
	return $code;
}

# By password and TLS, or the superuser of the follower: the return code, and what was printed
sub says
{
	my ($role, $database, $code) = @_;
	my $output = '';
	my $address =
	  $role eq 'superuser'
	  ? $follower->connstr($database)
	  : here("host=managed.example dbname=$database user=$role sslmode=verify-full sslrootcert=/etc/outbox/managed.pem");
	local $ENV{PGPASSWORD} = $password{$role};
	my $ok = IPC::Run::run([ 'psql', '-wXqP', 'pager=off', '-v', 'ON_ERROR_STOP=1', '-d', $address, '-f', '-' ], '<', \here($code), '>', \$output, '2>&1');
	return ($ok, $output);
}

# Without what is a matter of layout
sub plain { return join "\n", map { s/^\s+|\s+$//gr =~ s/\s+/ /gr } grep { !/^[-+]*$/ } split /\n/, $_[0] }

sub run_console
{
	my ($code) = @_;
	my $output = '';

	local @ENV{qw(PGPASSWORD PGPORT)} = ($password{shop_owner}, $source->port);
	chdir $top or die "$top: $!\n";
	return (IPC::Run::run([ 'bash', '-e' ], '<', \(here($code) =~ s/^\$ //gmr), '>', \$output, '2>&1'), $output);
}

# What this server needs is in the last line of the table of services.
sub like_a_service
{
	my ($conf, $statement) = $page =~ /^\| PostgreSQL of your own \| `(.*?)`, restart \| `(.*?)` \|$/m or die 'the table of services';

	$source->append_conf('postgresql.conf', $conf);
	$source->restart;
	return says('admin', 'postgres', $statement);
}

my %by = (administrator => [ 'admin', 'postgres' ], publisher => [ 'shop_owner', 'shop' ], application => [ 'shop_app', 'shop' ], subscriber => [ 'superuser', 'postgres' ]);
my ($heading, $line, $asked, %ran) = ('', 1);
my $fdw = $source->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'});
diag('NOT TESTED with postgres_fdw: this PostgreSQL was built without it') unless $fdw;
foreach my $part (split /^(```.*?^```\n)/ms, $page)
{
	my $name = "doc/follow.md:$line";
	$line += ($part =~ tr/\n//);
	my ($language, $code) = $part =~ /^```([^\n]*)\n(.*)^```\n\z/ms;
	if (!defined $language)
	{
		$heading = $1 while $part =~ /^## (.*)$/mg;
		next unless $part =~ /^\| service \|/m;
		my ($ok, $said) = like_a_service();
		ok($ok, "$name: the right to replicate") or diag($said);
		next;
	}
	$ran{$language}++;
	if (!$fdw && $code =~ /postgres_fdw|FROM follower\./)
	{
		$asked = undef;
		next;
	}
	if ($language eq 'console')
	{
		my ($ok, $said) = run_console($code);
		ok($ok, "$name: the command");
		is($said, '', "$name: without a word");
	}
	elsif ($language =~ /^sql (\w+)$/ && $by{$1})
	{
		my ($role, $database) = @{ $by{$1} };
		if ($heading eq 'More than one' && $role eq 'superuser')
		{
			$database = 'half';
			$follower->safe_psql('postgres', 'CREATE DATABASE half');
			$follower->safe_psql('half', 'CREATE EXTENSION outbox');
		}
		my ($ok, $said) = says($role, $database, $code);
		ok($ok, "$name: $role") or diag($said);
		if ($role eq 'shop_app')
		{
			($event) = $said =~ /([0-9a-f]{8}-[0-9a-f-]{27})/ or die $said;
			my ($request) = $receiver->wait_delivered(1, path => '/ok/billing', id => $event);
			is($request->{headers}{'outbox-key'}, 'customer-7', "$name: it arrives");
		}
		$asked = [ $role, $database, $code ];
	}
	elsif ($language eq 'text' && $asked && $code =~ /^-+\+/m)
	{
		my $said;
		ok((wait_until { (undef, $said) = says(@$asked); plain($said) eq plain($code) } $name), "$name: the output") or diag($said);
	}
	elsif ($language eq 'text' && $code =~ /^\[(\w+)\]\n/) { append_to_file($ENV{PGSERVICEFILE}, here($code)) }
	elsif ($language ne 'text') { fail("$name: it is not known how to run \"$language\"") }
}
is_deeply([ sort keys %ran ], [ 'console', (map { "sql $_" } sort keys %by), 'text' ], 'there were blocks of each kind');
like((says('shop_owner', 'shop', "EXPLAIN VERBOSE SELECT status FROM follower.deliveries WHERE event_id = '$event'"))[1],
	qr/Remote SQL: .*event_id = /, 'the condition is sent to the follower') if $fdw;
is($follower->safe_psql('half', 'SELECT name || state FROM outbox.sources'), 'shopstreaming', 'a share is followed');

# An operator, with the entry that was made
$follower->safe_psql('postgres', "CREATE ROLE oncall LOGIN; SELECT outbox.grant_to('oncall', 'operate')");
is($follower->safe_psql('postgres', "SELECT outbox.unfollow('shop')", extra_params => [ '-U', 'oncall' ]), '', 'an operator ends it');
is($follower->safe_psql('postgres', "SELECT outbox.follow('shop', 'service=shop')", extra_params => [ '-U', 'oncall' ]), 1, 'and follows a service');

# A wrong mode of the file, and no certificate, are in the words of the hint.
chmod 0644, "$dir/etc/pgpass";
my (undef, undef, $said) = $follower->psql('postgres', here("SELECT outbox.follow('other', 'host=managed.example dbname=shop user=outbox_follower passfile=/etc/outbox/pgpass')"));
like($said, qr/no password supplied.*^HINT: .*mode 0600/ms, 'a passfile that others may read');
done_testing();
