# A subscription FOR ALL TABLES does not touch the tables of outbox on the subscriber.
# The publication includes them.  The user's tables arrive, in the first copy and
# afterwards, whatever the publisher's workers do.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', streaming => 1,
	conf => "wal_level = logical\noutbox.attempts_retention = '2 s'\noutbox.retention = '2 s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $target = outbox_node('target', conf => "wal_level = logical\nwal_retrieve_retry_interval = '100 ms'\n");
my $connstr = $node->connstr('postgres') =~ s/'/''/gr;
my $orders = 0;

sub ask
{
	my ($server, $sql) = @_;
	return $server->safe_psql('postgres', $sql);
}

sub log_has
{
	my ($regexp) = @_;
	return scalar(() = PostgreSQL::Test::Utils::slurp_file($target->logfile) =~ /$regexp/g);
}

sub orders_arrive
{
	my ($name) = @_;

	$orders++;
	ask($node, "INSERT INTO orders VALUES ($orders)");
	ok(wait_sql($target, "SELECT count(*) = $orders FROM orders"), "$name: the user's rows arrive");
	return;
}

# The publisher's log and attempts have changed their tables n times.
sub rotations
{
	my ($n) = @_;

	foreach (1 .. $n)
	{
		foreach my $log (qw(events attempts))
		{
			my $since = ask($node, "SELECT since FROM outbox.pieces WHERE log = '$log'");
			emit($node, 'order.again', '{}');
			wait_sql($node, "SELECT since > '$since' FROM outbox.pieces WHERE log = '$log'");
		}
	}
	return;
}

# What the tables of outbox hold, but which piece is in use and what the script made
sub rows_of_outbox
{
	my @tables = split /\n/, ask($target, "SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"
		  . " AND relkind = 'r' AND relname <> 'pieces'");
	return join ' ', grep { ask($target, "SELECT count(*) FROM outbox.$_") > 0 } sort @tables;
}

sub listed
{
	return ask($target, "SELECT count(*) FROM pg_subscription_rel WHERE srrelid::regclass::text LIKE 'outbox.%'");
}

endpoint($node, $receiver, 'billing', '/ok/billing');
$receiver->wait_delivered(1, id => emit($node, 'order.one', '{}'));
ok(wait_sql($node, 'SELECT count(*) > 0 FROM outbox.attempts'), 'the publisher has rows in the tables of outbox');
ask($_, 'CREATE TABLE orders (n int PRIMARY KEY)') foreach $node, $target;
ask($node, 'INSERT INTO orders VALUES (0), (-1), (-2)');
$orders = 3;
ask($node, 'CREATE PUBLICATION everything FOR ALL TABLES');
ask($node, "SELECT pg_create_logical_replication_slot('watch', 'pgoutput')");

# ---- a server that has the extension, and no endpoint yet

my ($rc, $out, $err) = $target->psql('postgres', "CREATE SUBSCRIPTION everything CONNECTION '$connstr' PUBLICATION everything");
like($err, qr/NOTICE:  subscription "everything" leaves out the tables of outbox/, 'the command says so');
orders_arrive('first copy');
$target->wait_for_subscription_sync($node, 'everything');
rotations(3);
orders_arrive('after rotations');
is(rows_of_outbox(), '', 'nothing of the publisher is in the tables of outbox');
is(listed(), '0', 'nor are they listed');
is(log_has(qr/ERROR/), 0, 'no process of the subscription failed');
is( ask($node, "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('watch', NULL, NULL, 'proto_version', '1',"
		  . " 'publication_names', 'everything') WHERE get_byte(data, 0) = ascii('T')"),
	'0', 'that a table of outbox was emptied is not published');

# ---- listed anew, and left out again

ask($_, 'CREATE TABLE more (n int PRIMARY KEY)') foreach $node, $target;
ask($node, 'INSERT INTO more VALUES (1)');
ask($target, 'ALTER SUBSCRIPTION everything REFRESH PUBLICATION');
ok(wait_sql($target, 'SELECT count(*) = 1 FROM more'), 'refreshed: a new table arrives');
is(listed(), '0', 'refreshed: those of outbox are left out');
ask($node, 'CREATE PUBLICATION second FOR TABLE outbox.events_0, orders');

# A change that is decoded as of before the publication was made fails without end in
# PostgreSQL before 18.  A process that is started by the next command begins after it.
my $made = ask($node, 'SELECT pg_current_wal_lsn()');
ok(wait_sql($node, "SELECT confirmed_flush_lsn >= '$made' FROM pg_replication_slots WHERE slot_name = 'everything'"),
	'the subscription has what came before the second publication');
ask($target, 'ALTER SUBSCRIPTION everything ADD PUBLICATION second');
is(listed(), '0', 'another publication: they are left out');
orders_arrive('another publication');

# ---- the numbers of the publisher's events, where sequences are replicated

SKIP:
{
	skip 'PostgreSQL before 19 replicates no sequences', 4 if $node->pg_version < 19;
	ask($_, 'CREATE SEQUENCE invoices') foreach $node, $target;
	ask($node, "SELECT setval('invoices', 42)");
	ask($node, 'CREATE PUBLICATION numbers FOR ALL SEQUENCES');
	my $number = ask($target, 'SELECT last_value, is_called FROM outbox.events_seq');
	($rc, $out, $err) = $target->psql('postgres', "CREATE SUBSCRIPTION numbers CONNECTION '$connstr' PUBLICATION numbers");
	like($err, qr/NOTICE:  subscription "numbers" leaves out the tables of outbox/, 'sequences: the command says so');
	ok(wait_sql($target, 'SELECT last_value = 42 FROM invoices'), "sequences: the user's arrive");
	ask($target, 'ALTER SUBSCRIPTION numbers REFRESH SEQUENCES');
	is(listed(), '0', 'sequences: those of outbox are left out');
	is(ask($target, 'SELECT last_value, is_called FROM outbox.events_seq'), $number, 'sequences: the numbers of its own events stay');
	ask($target, 'DROP SUBSCRIPTION numbers');
}

# ---- all tables but one

SKIP:
{
	skip 'PostgreSQL before 19 has no publication of all tables but some', 4 if $node->pg_version < 19;
	ask($_, 'CREATE TABLE apart (n int PRIMARY KEY); CREATE TABLE taken (n int PRIMARY KEY)') foreach $node, $target;
	ask($node, 'INSERT INTO apart VALUES (1); INSERT INTO taken VALUES (1)');
	ask($node, 'CREATE PUBLICATION but_one FOR ALL TABLES EXCEPT (TABLE apart, orders, more)');
	($rc, $out, $err) = $target->psql('postgres', "CREATE SUBSCRIPTION but_one CONNECTION '$connstr' PUBLICATION but_one");
	like($err, qr/NOTICE:  subscription "but_one" leaves out the tables of outbox/, 'all but one: the command says so');
	ok(wait_sql($target, 'SELECT count(*) = 1 FROM taken'), 'all but one: another one arrives');
	is(ask($target, "SELECT string_agg(r.srrelid::regclass::text, ' ') FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid WHERE s.subname = 'but_one'"),
		'taken', 'all but one: it alone is listed');
	is(ask($target, 'SELECT count(*) FROM apart'), '0', 'all but one: the one does not');
	ask($target, 'DROP SUBSCRIPTION but_one');
}

# ---- with a log of its own

my $third = OutboxTest::Receiver->new('target');
endpoint($target, $third, 'own', '/ok/own');
my $own = emit($target, 'own.one', '{}');
$third->wait_delivered(1, path => '/ok/own', id => $own);
rotations(3);
orders_arrive('with a log of its own');
is(join(' ', map { $_->{id} } $third->requests), $own, 'its events are delivered, and no other');

# ---- listed while the library was not loaded: the triggers pass over rows

ask($target, 'SET allow_system_table_mods = on; INSERT INTO pg_subscription_rel'
	  . " SELECT s.oid, c.oid, 'i' FROM pg_subscription s, pg_class c"
	  . " WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'");
isnt(listed(), '0', 'listed');
ok(wait_sql($target, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"), 'listed: the first copy goes through');
my $id = emit($node, 'order.listed', '{}');
$receiver->wait_delivered(1, path => '/ok/billing', id => $id);
rotations(3);
orders_arrive('listed');
is(ask($target, "SELECT string_agg(topic, ' ') FROM outbox.events"), 'own.one', 'listed: the log holds what is our own');
is(ask($target, "SELECT count(*) FROM outbox.endpoint_settings"), '1', 'listed: and so do the other tables');
is(join("\n", grep { /ERROR/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($target->logfile)), '', 'listed: no process of the subscription failed');
my (undef, undef, $refused) = $target->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('no', 'http://127.0.0.1/')");
like($refused, qr/ERROR:  55000: a subscription writes to outbox\..*^HINT:  Run ALTER SUBSCRIPTION \.\.\. REFRESH PUBLICATION/ms,
	'listed: no endpoint is made meanwhile');

# ---- emptied by hand: the hint leads out

ask($node, 'TRUNCATE outbox.attempt_log_0');
$orders++;
ask($node, "INSERT INTO orders VALUES ($orders)");
ok(wait_until { log_has(qr/ERROR:  a subscription may not empty outbox\.attempt_log_0/) > 0 }, 'emptied by hand: refused');
like(PostgreSQL::Test::Utils::slurp_file($target->logfile),
	qr/HINT:  Add outbox to shared_preload_libraries, and run ALTER SUBSCRIPTION \.\.\. REFRESH PUBLICATION/, 'emptied by hand: the hint');
ask($target, 'ALTER SUBSCRIPTION everything REFRESH PUBLICATION');
ok(wait_sql($target, "SELECT count(*) = $orders FROM orders"), 'and the subscription goes on');
is(listed(), '0', 'without the tables of outbox');
endpoint($target, $third, 'late', '/ok/late');
$own = emit($target, 'own.two', '{}');
$third->wait_delivered(1, path => "/ok/$_", id => $own) foreach qw(own late);
pass('new events flow');

ask($target, 'DROP SUBSCRIPTION everything');
$_->stop foreach $target, $node;
done_testing();
