# The console says in words what is odd about its database, and is right about it again by itself.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $database = sprintf 'host=%s port=%d dbname', $node->host, $node->port;

OutboxTest::Console::roles($node);
endpoint($node, $receiver, 'billing', '/ok/billing', "topics => '{order.*}'");

# What refuses connections
my $console = OutboxTest::Console->new($node, database => qq("$database=nowhere user=console"));
$console->says('/', qr/cannot be asked.*Database &#34;nowhere&#34; does not exist/s, 'a database that is not there');
$console->stop;
$console = OutboxTest::Console->new($node, database => qq("$database=postgres user=nobody"));
$console->says('/', qr/cannot be asked.*Role &#34;nobody&#34; does not exist/s, 'a role that is not there');
$console->stop;

$console = OutboxTest::Console->new($node);
$console->says('/', qr/All is well/, 'all is well');
my $ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'console'";
foreach my $case (
	[ 'ALTER ROLE console CONNECTION LIMIT 0', 'ALTER ROLE console CONNECTION LIMIT -1', qr/Too many connections for role/, 'a limit of connections' ],
	[ 'ALTER ROLE console NOLOGIN', 'ALTER ROLE console LOGIN', qr/not permitted to log in/, 'a role that may not log in' ],
	[ 'REVOKE CONNECT ON DATABASE postgres FROM PUBLIC', 'GRANT CONNECT ON DATABASE postgres TO PUBLIC',
		qr/Permission denied for database/, 'a database that it may not connect to' ])
{
	my ($do, $undo, $says, $what) = @$case;
	$node->safe_psql('postgres', "$do; $ended");
	$console->says('/dead', qr/cannot be asked.*$says/s, $what);
	$node->safe_psql('postgres', $undo);
	$console->says('/dead', qr/There are none/, 'and it is back by itself');
}

# A password that was changed
my $hba = $node->data_dir . '/pg_hba.conf';
my $trust = slurp_file($hba);
open(my $fh, '>', $hba) or die $!;
print $fh "local all console scram-sha-256\n$trust";
close $fh;
$node->safe_psql('postgres', "ALTER ROLE console PASSWORD 'changed'; SELECT pg_reload_conf()");
$node->safe_psql('postgres', $ended);
$console->says('/', qr/cannot be asked.*(?:no password supplied|[Pp]assword authentication failed)/s, 'a password that was changed');
open($fh, '>', $hba) or die $!;
print $fh $trust;
close $fh;
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$console->says('/', qr/All is well/, 'and it is back by itself');

# All connections of the console are busy
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK outbox.endpoint_settings IN ACCESS EXCLUSIVE MODE');
$console->stop;
$console = OutboxTest::Console->new($node, connections => 1);
$console->says('/endpoints', qr/Not known.*locked at present/s, 'a table is locked');
$locker->query_safe('COMMIT');
$locker->quit;
$console->says('/endpoints', qr/billing/, 'and is read again');
$console->stop;

# A role without rights, and an extension that is dropped while the console looks
$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');
$console = OutboxTest::Console->new($node, database => qq("$database=postgres user=stranger"));
foreach my $path (qw(/ /endpoints /endpoint/billing /search?q=a /dead /tenants /system /catalogue))
{
	$console->says($path, qr/ot known.*may not see/s, "a role without rights is told so: $path");
	unlike($console->page($path), qr/All is well|There are none|There is no endpoint|None has|No endpoint belongs/, 'and not that there is nothing');
}
$console->stop;
$node->safe_psql('postgres', 'CREATE DATABASE second');
$node->safe_psql('second', "CREATE EXTENSION outbox; SELECT outbox.grant_to('console', 'operate')");
$console = OutboxTest::Console->new($node, database => qq("$database=second user=console"));
$console->says('/', qr/There is no endpoint yet/, 'a database without endpoints says what to do');
$node->safe_psql('second', 'DROP EXTENSION outbox CASCADE');
$console->says($_, qr/no extension outbox/, "an extension that was dropped is said: $_") foreach qw(/ /endpoints /dead /system);
$node->safe_psql('second', "CREATE EXTENSION outbox; SELECT outbox.grant_to('console', 'operate')");
$console->says('/', qr/There is no endpoint yet/, 'and it is back by itself');
$console->stop;

# Databases in another encoding
foreach my $encoding (qw(LATIN1 SQL_ASCII))
{
	my $name = lc $encoding;
	$node->safe_psql('postgres', "CREATE DATABASE $name ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	$node->safe_psql($name, "CREATE EXTENSION outbox; SELECT outbox.grant_to('console', 'operate')");
	$node->safe_psql($name, "SET client_encoding = 'UTF8'; SELECT outbox.create_endpoint('lager', '" . $receiver->url('/ok/lager') . "', label => 'B\xc3\xbccher')");
	$console = OutboxTest::Console->new($node, database => qq("$database=$name user=console"));
	$console->says('/endpoint/lager', qr/B\xc3\xbccher/, "a database in $encoding is read");
	unlike($console->page($_), qr/fault/, "$encoding: $_") foreach '/search?q=%E2%82%AC', '/tenant?name=%E6%97%A5', '/endpoints?q=%C3%BC';
	unlike($console->log, qr/Traceback/, 'without a fault');
	$console->stop;
}

# Names as long as they may be, in any script, and a thousand that begin alike
my $long = 'e' x 63;
my $rtl = "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d" x 20;
endpoint($node, $receiver, $long, '/ok/long', "topics => '{long.*}', tenant => '$rtl', label => '$rtl'");
$node->safe_psql('postgres', "SELECT count(outbox.create_endpoint('alike-' || lpad(n::text, 4, '0'), '" . $receiver->url('/ok/alike') . "', topics => '{alike.*}', tenant => 'customer-' || n))"
	  . ' FROM generate_series(1, 1000) n');
my $died = emit($node, 'long.one', '{}', "tenant => '$rtl', key => repeat('k', 1024)");
$console = OutboxTest::Console->new($node);
$console->says("/endpoint/$long", qr/\Q$rtl\E/, 'a long name is shown');
$console->says("/event/$died", qr/k{1024}/, 'and a long key');
$console->says('/search?q=customer-1', qr{<h2>Tenants</h2><p><a href="/tenant\?name=customer-1">customer-1</a>.*There are more}s, 'of many tenants that are alike, the one that is asked for comes first');
$console->says('/search?q=customer-999', qr{<h2>Tenants</h2><p><a href="/tenant\?name=customer-999">}, 'also the last one');
$console->says('/search?q=alike-0500', qr{<h2>Endpoints</h2>\s*<table>.*?<tbody>\s*<tr>\s*<td><a href="/endpoint/alike-0500">}s, 'and so does an endpoint');
$console->says('/search?q=alike', qr/There are more.*all of them/s, 'and it is said that there are more');
unlike($console->log, qr/Traceback|fault/, 'no fault of the console is in its log');
$console->stop;

# The clock of the database is not that of the console
my $clock = <<'PYTHON';
import asyncio, datetime
from outbox_console import database, screens
class Session:
    async def read(self, *_):
        now = datetime.datetime(2020, 1, 1, 12, 3, tzinfo=datetime.timezone.utc)
        return database.Answer([{"now": now, "f": {"at": "2020-01-01T11:55:00+00:00", "delivered": 3000}}])
print(asyncio.run(screens.figures(Session())).rows[0])
PYTHON
append_to_file("$node->{_basedir}/clock.py", $clock);
my $chart = qx{PYTHONPATH="$OutboxTest::top/console" /usr/bin/python3 "$node->{_basedir}/clock.py"};
like($chart, qr{now 10/s.*06:00 UTC.*11:55 UTC}s, 'charts end at the time of the database');
done_testing();
