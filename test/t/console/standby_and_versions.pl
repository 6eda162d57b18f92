# The console says in words that it asks a standby, or an extension of another version.
use strict;
use warnings;

use HTTP::Tiny;
use OutboxTest;
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('primary', streaming => 1);
my $receiver = OutboxTest::Receiver->new('main');
my $http = HTTP::Tiny->new(max_redirect => 0, timeout => 60);
my @screens = grep { !/[{]/ } OutboxTest::Console::names('SCREENS', 'screens');

OutboxTest::Console::roles($node);
endpoint($node, $receiver, 'billing', '/ok/billing', "tenant => 'acme'");
endpoint($node, $receiver, 'crm', '/abort/crm', "topics => '{order.*}'");
my $event = emit($node, 'order.created', '{}', "key => 'k'");
endpoint_shows($node, 'crm', 'dead = 1', 'a delivery is dead');

# A standby
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT state, reason FROM outbox.status"), 'standby|its primary delivers', 'the state of a standby');
is($standby->safe_psql('postgres', "SELECT string_agg(labels ->> 'state', ' ') FROM outbox.metrics() WHERE name = 'outbox_state' AND value = 1"),
	'standby', 'and the figure, so that no alert looks for a worker');
is($standby->safe_psql('postgres', "SELECT count(*) FROM outbox.metrics() WHERE name = 'outbox_emitted_total'"), 0, 'what was emitted is counted once, at the primary');
my $console = OutboxTest::Console->new($standby);
$console->says('/', qr/standby/, 'the overview says that this is a standby');
like($console->page('/'), qr/data-live/, 'and is read again by itself');
unlike($console->page('/'), qr/All is well|read the server log/, 'it does not say that all is well, and sends nobody to look for a worker');
like($console->page('/system'), qr/standby/, 'and so does the page of the system');
like($console->page('/dead'), qr/order\.created/, 'what has been copied is shown');
my $refused = $console->act('pause', endpoint => 'billing');
is($refused->{status}, 409, 'an action is refused');
like($refused->{content}, qr/Nothing was changed.*standby/s, 'and the page says why');
OutboxTest::Console::missing() ? $standby->promote : $console->browse('standby');
$console->says('/', qr/Events are delivered|All is well|log is held/, 'once it is promoted, the page says how it is');
is($console->act('pause', endpoint => 'billing')->{status}, 303, 'and an action is carried out');
$console->stop;
$standby->stop;

# A database that takes no changes
$console = OutboxTest::Console->new($node);
$node->safe_psql('postgres', "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()");
$console->says('/', qr/dead letter waits/, 'a server whose transactions are read-only is shown as ever');
is($console->act('pause', endpoint => 'crm')->{status}, 303, 'and a command says that it writes');
$node->safe_psql('postgres', "SET default_transaction_read_only = off; ALTER ROLE console SET statement_timeout = '1ms'");
like($console->page('/'), qr/dead letter waits/, 'limits of the role do not end the questions of the console');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET default_transaction_read_only');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');

# Another version: objects that are not there, then a worker that will not run
$node->safe_psql('postgres', <<'SQL');
ALTER VIEW outbox.set_aside RENAME TO set_aside_once;
ALTER VIEW outbox.stats RENAME COLUMN dead TO dead_once;
ALTER FUNCTION outbox.metrics RENAME TO metrics_once;
UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'outbox';
SQL
like($console->page('/'), qr/It is not known whether events are delivered.*another version/s, 'of another version nothing is claimed');
like($console->page('/system'), qr/Not known.*no such view.*another version/s, 'a view that is not there is not an empty one');
$refused = $http->get($console->url . '/do/drop?endpoint=crm');
is($refused->{status}, 503, 'an action that cannot be counted is not offered');
like($refused->{content}, qr/another version/, 'and the page says why');
$console->says($_, qr/another version/, "and so does $_, which shows what is not there") foreach '/endpoints', '/endpoint/crm', '/search?q=crm', '/tenants', '/dead';
$node->safe_psql('postgres', <<'SQL');
ALTER VIEW outbox.set_aside_once RENAME TO set_aside;
ALTER VIEW outbox.stats RENAME COLUMN dead_once TO dead;
ALTER FUNCTION outbox.metrics_once RENAME TO metrics;
SQL
$node->restart;
$console->says('/', qr/Nothing is sent.*version 0\.9/s, 'a worker that does not run with these objects is said, with the versions');
$node->safe_psql('postgres', "UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'outbox'; SELECT outbox.endpoint_changed(0)");
$console->says('/', qr/dead letter waits/, 'and is over by itself');
unlike($console->log, qr/Traceback|fault/, 'no fault of the console is in its log');

# The console's own version, and a fault of it
like(slurp_file("$OutboxTest::top/outbox.control"), qr/^default_version = '\Q@{[OutboxTest::Console::version()]}\E'$/m, 'it is for this version');
$node->safe_psql('postgres', 'ALTER VIEW outbox.stats RENAME COLUMN dead TO dead_once; ALTER VIEW outbox.set_aside RENAME TO set_aside_once');
my $fault = $http->get($console->url . '/endpoints');
is($fault->{status}, 500, 'a page that is wrong is a fault');
like($fault->{content}, qr/console has a fault/, 'and is said to be one, not another version');
ok(wait_until(sub { $console->log =~ /Traceback.*no attribute 'dead'/s }, 'the log'), 'the log says which');
like($console->page('/system'), qr/console has a fault here: it asks for a view/, 'and so is a question that is wrong');
ok(wait_until(sub { $console->log =~ /fault of the console: relation "outbox.set_aside" does not exist/ }, 'the log'), 'which is in the log, too');
$console->stop;
done_testing();
