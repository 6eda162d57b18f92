package OutboxTest::Console;

# The console as a process, and a real browser that uses it (test/console/browser.js).

use strict;
use warnings;

use Carp;
use HTTP::Tiny;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use OutboxTest::Receiver;

my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';

sub runs
{
	return system("$python -c 'import starlette, uvicorn, psycopg, jinja2' >/dev/null 2>&1") == 0;
}

# Ends the test, visibly, where the console cannot be run.
sub skip_without_python
{
	return if runs();
	diag('NOT TESTED: there is no starlette, uvicorn, psycopg 3 or jinja2 for python3');
	plan(skip_all => 'there is no starlette, uvicorn, psycopg 3 or jinja2 for python3');
	return;
}

# What is missing of the console and of a browser.
sub missing
{
	my $here = "$OutboxTest::top/test/console";
	my @missing;

	push @missing, 'starlette, uvicorn, psycopg 3 or jinja2 for python3' unless runs();
	push @missing, 'node' if qx{node --version 2>&1} !~ /^v(\d+)/ || $1 < 18;
	push @missing, 'playwright-core or axe-core (npm ci in test/console)'
	  if grep { !-d "$here/node_modules/$_" } qw(playwright-core axe-core);
	push @missing, 'chromium' unless browser();
	return @missing;
}

# Ends the test, visibly, where the console or a browser cannot be run.
sub skip_if_missing
{
	my @missing = missing() or return;

	diag('NOT TESTED in a browser: there is no ' . join(', no ', @missing));
	plan(skip_all => 'there is no ' . join(', no ', @missing));
	return;
}

sub browser
{
	my ($found) = grep { -x $_ } map { ("$_/chromium", "$_/chromium-browser", "$_/google-chrome") } split /:/, $ENV{PATH};
	return $found;
}

# The roles that a console connects with: one that operates, one that watches.
sub roles
{
	my ($node) = @_;

	$node->safe_psql('postgres', <<'SQL');
CREATE ROLE console LOGIN;
CREATE ROLE console_watch LOGIN;
SELECT outbox.grant_to('console', 'operate');
SELECT outbox.grant_to('console_watch', 'watch');
SQL
	return;
}

# The keys of a table of the console's modules, as its routes.
sub names
{
	my ($table, $module) = @_;
	my @names = split /\n/, qx{PYTHONPATH="$OutboxTest::top/console" $python -c 'from outbox_console import $module; print(*$module.$table, sep=chr(10))'};
	croak "no $table" unless @names;
	return @names;
}

# The version of the extension that the console is for.
sub version
{
	return scalar qx{PYTHONPATH="$OutboxTest::top/console" $python -c 'import outbox_console; print(outbox_console.VERSION, end="")'};
}

# Puts a user into a password file, as an administrator does.
sub add_user
{
	my ($file, $name, $may, $password) = @_;

	open(my $in, '|-', $python, "$OutboxTest::top/console/outbox-console", '--add-user', $file, $name, $may) or croak $!;
	print $in "$password\n";
	close $in or croak "the user $name was not added";
	return;
}

# What the console says instead of starting with these settings.
sub refusal
{
	my ($text) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('refusal');

	append_to_file("$dir/toml", "$text\n");
	return scalar qx{$python "$OutboxTest::top/console/outbox-console" "$dir/toml" 2>&1 </dev/null};
}

# A console for a server.  Options are settings, as text of TOML.
sub new
{
	my ($class, $node, %option) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('console');
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $database = sprintf 'host=%s port=%d dbname=postgres', $node->host, $node->port;
	my %setting = (
		database => qq("$database user=console"),
		read_only_database => qq("$database user=console_watch"),
		everyone => '"operate"',
		port => $port,
		%option);
	my $self = bless { dir => $dir, port => $port, node => $node }, $class;

	open(my $fh, '>', "$dir/console.toml") or croak $!;
	print $fh map { "$_ = $setting{$_}\n" } sort keys %setting;
	close $fh;
	$self->start;
	return $self;
}

sub start
{
	my ($self) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		open(STDERR, '>>', "$self->{dir}/log");
		exec $python, "$OutboxTest::top/console/outbox-console", "$self->{dir}/console.toml" or POSIX::_exit(127);
	}
	$self->{pid} = $pid;
	push @OutboxTest::Receiver::started, $pid;
	my $end = time + 60;
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}))
	{
		croak 'the console does not start: ' . $self->log if time > $end || waitpid($pid, POSIX::WNOHANG()) == $pid;
		usleep(20_000);
	}
	return;
}

sub stop
{
	my ($self) = @_;

	kill 'TERM', $self->{pid};
	waitpid($self->{pid}, 0);
	@OutboxTest::Receiver::started = grep { $_ != $self->{pid} } @OutboxTest::Receiver::started;
	return;
}

sub log
{
	my ($self) = @_;
	return -e "$self->{dir}/log" ? PostgreSQL::Test::Utils::slurp_file("$self->{dir}/log") : '';
}

sub url
{
	my ($self) = @_;
	return "http://127.0.0.1:$self->{port}";
}

sub page
{
	my ($self, $path) = @_;
	my $answer = HTTP::Tiny->new(max_redirect => 0, timeout => 60)->get($self->url . $path);

	fail("$path: $answer->{status} $answer->{content}") if $answer->{status} == 500;
	return $answer->{content};
}

# Waits until a page has the text.
sub says
{
	my ($self, $path, $pattern, $name) = @_;
	my $said;

	ok(scalar(OutboxTest::wait_until(sub { ($said = $self->page($path)) =~ $pattern }, $name)), $name)
	  or diag($said =~ s/<[^>]*>//gr =~ s/\n\s*/\n/gr);
	return;
}

# Asks for an action as a form of the console's own page does.
sub act
{
	my ($self, $action, %fields) = @_;
	my $http = HTTP::Tiny->new(max_redirect => 0, timeout => 60);
	my $asked = $http->get($self->url . "/do/$action?" . $http->www_form_urlencode(\%fields));
	my ($token) = $asked->{content} =~ /name="token" value="(\w+)"/;
	my ($cookie) = ($asked->{headers}{'set-cookie'} // '') =~ /\b(outbox_console=[^;]+)/;
	return $asked unless $token;
	return $http->post_form($self->url . "/do/$action", { %fields, token => $token, sure => 1 }, { headers => { cookie => $cookie } });
}

# Runs steps of test/console/browser.js, and counts each line "ok" or "not ok" that it prints as a test.
sub browse
{
	my ($self, $steps, %env) = @_;
	local %ENV = (
		$self->{node}->_get_env,
		BROWSER => browser(),
		CONSOLE => $self->url,
		PSQL => $self->{node}->installed_command('psql'),
		PG_CTL => $self->{node}->installed_command('pg_ctl'),
		PGDATABASE => 'postgres',
		DATA => $self->{node}->data_dir,
		%env);

	open(my $out, '-|', 'node', "$OutboxTest::top/test/console/browser.js", $steps) or croak "node: $!";
	my $n = 0;
	while (my $line = <$out>)
	{
		chomp $line;
		if ($line =~ /^(not )?ok (.*)/)
		{
			ok(!$1, "$steps: $2");
			$n++;
		}
		else
		{
			diag($line);
		}
	}
	ok(close($out) && $n, "$steps: the browser came to the end");
	return;
}

1;
