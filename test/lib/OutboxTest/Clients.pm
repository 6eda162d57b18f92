package OutboxTest::Clients;

# The programs of test/clients.  Each is a shop that does the same with its library, as
# doc/orm.md shows it, and prints what it has seen.

use strict;
use warnings;

use File::Copy ();
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use OutboxTest;

my $cache = $ENV{OUTBOX_TEST_CACHE} || '/var/cache/outbox-test';

# What each language's folder has in the cache when test/bin/setup could fetch it
my %made = map { $_ => "$cache/$_/complete" } qw(python node go rust java);

# By the name that doc/orm.md has: language, source, whether it uses COPY, and needs prepared statements,
# and what else it prints.
our %programs = (
	'Django' => {
		language => 'python', source => 'with_django.py', copy => 1, also => 'shop/models.py',
		prints => { inspectdb => 'True False' }
	},
	'SQLAlchemy' => {
		language => 'python', source => 'with_psycopg.py', copy => 1,
		prints => { autogenerate => '', schemas => '', unfiltered => 'add_table:outgoing', afterwards => 'gone' }
	},
	'SQLAlchemy with asyncpg' => { language => 'python', source => 'with_asyncpg.py', copy => 1 },
	'psycopg' => { language => 'python', source => 'plain_psycopg.py', copy => 1 },
	'asyncpg' => { language => 'python', source => 'plain_asyncpg.py', copy => 1 },
	'Sequelize' => { language => 'node', source => 'with_sequelize.js', prints => { sync => 'true false' } },
	'TypeORM' => { language => 'node', source => 'with_typeorm.js', prints => { log => '' } },
	'Drizzle' => { language => 'node', source => 'with_drizzle.js', prints => { pull => 'true false' } },
	'Prisma' => { language => 'node', source => 'with_prisma.js', also => 'schema.prisma' },
	'Active Record' => {
		language => 'ruby', source => 'with_activerecord.rb', copy => 1,
		prints => { schema => 'true false', structure => 'true false' }
	 },
	'Hibernate' => { language => 'java', source => 'WithHibernate.java', copy => 1 },
	'pgx' => { language => 'go', source => 'pgx/main.go', copy => 1 },
	'GORM' => { language => 'go', source => 'gorm/main.go' },
	'tokio-postgres' => { language => 'rust', source => 'src/bin/with_tokio_postgres.rs', copy => 1, prepares => 1 },
	'sqlx' => { language => 'rust', source => 'src/bin/with_sqlx.rs', copy => 1, prepares => 1 });

# Why a language's programs cannot be run here.  Nothing if they can.
sub missing
{
	my ($language) = @_;

	if ($made{$language})
	{
		return "$made{$language} is not there" unless -e $made{$language};
		return 'java is not installed' if $language eq 'java' && system('java -version > /dev/null 2>&1') != 0;
	}
	elsif (system("ruby -e 'require %q(active_record); require %q(pg)' > /dev/null 2>&1") != 0)
	{
		return 'ruby-activerecord or ruby-pg is not installed';
	}
	return '';
}

# A server that they connect to by TCP, with the role "app", which may emit.
sub server
{
	my $node = outbox_node('main', conf => "listen_addresses = '127.0.0.1'\n");

	$node->safe_psql('postgres', <<'SQL');
CREATE ROLE app LOGIN;
SELECT outbox.grant_emit('app');
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL);
ALTER TABLE orders OWNER TO app;
GRANT CREATE ON SCHEMA public TO app;
SQL
	return $node;
}

# The folder and the command.
sub command
{
	my ($program) = @_;
	my ($language, $source) = @$program{qw(language source)};
	my $dir = "$top/test/clients/$language";

	return ($dir, '/usr/bin/python3', $source) if $language eq 'python';
	return ($dir, 'ruby', $source) if $language eq 'ruby';
	return ($dir, "$cache/go/bin/" . ($source =~ s{/.*}{}r)) if $language eq 'go';
	return ($dir, "$cache/rust/bin/" . ($source =~ s{.*/(.*)\.rs}{$1}r)) if $language eq 'rust';
	if ($language eq 'node')
	{
		# Where it finds its packages
		symlink "$cache/node/node_modules", "$dir/node_modules" unless -e "$dir/node_modules";
		return ($dir, 'node', $source);
	}

	my $classes = PostgreSQL::Test::Utils::tempdir('classes');
	system('javac', '-cp', "$cache/java/*", '-d', $classes, "$dir/$source") == 0 or die "javac\n";
	return ($dir, 'java', '-cp', "$classes:$cache/java/*", $source =~ s/\.java$//r);
}

# What it printed on both outputs, behind whether it ended well.
sub execute
{
	my ($dir, $command, $port, %more) = @_;
	my ($out, $err) = ('', '');
	local %ENV = (
		%ENV,
		%more,
		PGHOST => '127.0.0.1',
		PGPORT => $port,
		PGUSER => 'app',
		PGDATABASE => 'postgres',
		DATABASE_URL => "postgresql://app\@127.0.0.1:$port/postgres",
		JDBC_URL => "postgresql://127.0.0.1:$port/postgres?user=app",
		PYTHONPATH => "$cache/python",
		PYTHONDONTWRITEBYTECODE => 1);
	my $good = IPC::Run::run($command, '>', \$out, '2>', \$err, init => sub { chdir $dir or die "$dir: $!" });

	return ($good, $out, $err);
}

# Runs a program against a port, and looks at what it has emitted.
sub run_shop
{
	my ($node, $name, $port, %more) = @_;
	my $program = $programs{$name};
	my ($dir, @command) = command($program);
	my $last = $node->safe_psql('postgres', <<'SQL');
TRUNCATE orders RESTART IDENTITY;
SELECT coalesce(max(seq), 0) FROM outbox.events;
SQL
	my ($good, $out, $err) = execute($dir, \@command, $port, %more);
	ok($good, "$name: the program ends well") or diag($out, $err);
	my %said = map { /^(\S+) ?(.*)$/ ? ($1 => $2) : () } split /\n/, $out;

	my @rows = map { [ split /\t/, $_, -1 ] } split /\n/, $node->safe_psql('postgres', <<"SQL");
COPY (SELECT id, topic, coalesce(key, ''), coalesce(payload::text, ''), coalesce(headers::text, ''),
	coalesce(content_type, ''), coalesce(convert_from(body, 'UTF8'), '')
	FROM outbox.events WHERE seq > $last ORDER BY seq) TO STDOUT
SQL
	my @ids = map { shift @$_ } @rows;
	my @expected = (
		'order.created|1|{"order": 1}|||', 'order.paid|1|{"order": 1}|{"x-tenant": "acme"}||',
		'label.printed||||application/pdf|%PDF-', map({ qq(order.packed|k|{"order": $_}|||) } 1 .. 3),
		($program->{copy} ? map({ qq(order.counted|k|{"order": $_}|||) } 1 .. 3) : ()),
		'order.shipped||{"order": 1}|||');
	is(join("\n", map { join '|', @$_ } @rows), join("\n", @expected), "$name: what it emitted, and nothing else")
	  or diag($err);
	is($node->safe_psql('postgres', "SELECT string_agg(id || customer, ' ') FROM orders"), '1ada', "$name: its table");
	is($said{created}, $ids[0], "$name: the function returns the id");
	is($said{paid}, "$ids[1] order.paid acme 1", "$name: what was inserted has its id, and can be read again");
	is($said{label}, $ids[2], "$name: bytes");
	is($said{packed}, join(' ', @ids[ 3 .. 5 ]), "$name: the ids of many at once");
	return \%said;
}

# A program of test/clients/vendors where its libraries are.  Nothing: they could not be fetched.
sub vendors_program
{
	my ($program) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('vendors');

	return unless -e "$cache/vendors/complete" && qx{node --version 2>&1} =~ /^v(?:1[89]|[2-9]\d)/;
	symlink("$cache/vendors/node_modules", "$dir/node_modules") or die "$dir: $!";
	File::Copy::copy("$OutboxTest::top/test/clients/vendors/$program", $dir) or die "$program: $!";
	return "$dir/$program";
}

1;
