# outbox.follow() holds with odd names and settings, and refuses what it could not follow.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Followed;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $servers = OutboxTest::Followed->new(follower => "max_logical_replication_workers = 10\nmax_worker_processes = 20\n");
my ($source, $follower, $receiver) = @$servers{qw(source follower receiver)};
my $as_follower = "user='Follow \"er\\''";

sub ask { return $servers->ask(@_) }

# In a database of its own: who owns it, emits and follows, and the statements of each
sub at { my ($db, $sql, $role) = @_; return $source->safe_psql($db, $sql, extra_params => [ '-U', $role // 'My "Owner' ]) }
sub conninfo { my ($db) = @_; return $source->connstr('postgres') =~ s/dbname='?postgres'?//r . " dbname='" . $db =~ s/'/\\'/gr . "' $as_follower" }

sub follow_sql
{
	my ($name, $db, $more) = @_;
	my $conninfo = conninfo($db);

	return "SELECT outbox.follow('$name', \$c\$$conninfo\$c\$" . ($more ? ", $more)" : ')');
}

sub refused
{
	my ($sql, $said, $name) = @_;
	my (undef, undef, $err) = $follower->psql('postgres', "\\set VERBOSITY verbose\n$sql");

	like($err, qr/ERROR:\s+\w+: .*$said/s, $name);
	like($err, qr/^HINT: /m, "$name: a hint");
	return;
}

# Makes a source; returns what its installation said.
sub make
{
	my ($db, $options) = @_;
	my $ident = $db =~ s/"/""/gr;

	$source->safe_psql('postgres', qq{CREATE DATABASE "$ident" OWNER "My ""Owner" } . ($options // ''));
	my ($rc, $out, $err) = $source->psql($db, "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'My "Owner' ], on_error_stop => 1);
	is("$rc$out$err", '0', "$db: installed");
	at($db, q{SELECT outbox.grant_emit('app; user'); SELECT outbox.grant_follow('Follow "er''')});
	return;
}

sub arrives
{
	my ($db, $name) = @_;
	my @ids = map { at($db, $_, 'app; user') } "SELECT outbox.emit('order.n', '{\"s\": \"\\\\ \\u00e9\"}', key => 'a\\b', tenant => 't''')",
	  "INSERT INTO outbox.outgoing (topic, body, content_type, headers) VALUES ('order.n', '\\x00ff', 'text/plain', '{\"X-A\": \"b\"}') RETURNING id";

	$receiver->wait_delivered(1, id => $_) foreach @ids;
	is(ask("SELECT string_agg(concat_ws(' ', key, tenant, payload, body, headers), ';' ORDER BY seq) FROM outbox.all_events WHERE id IN ('" . join("','", @ids) . "')"),
		"a\\b t' {\"s\": \"\\\\ \x{c3}\x{a9}\"};\\x00ff {\"X-A\": \"b\"}", $name);
	return;
}

$source->safe_psql('postgres', q{CREATE ROLE "My ""Owner" LOGIN; CREATE ROLE "Follow ""er'" LOGIN REPLICATION; CREATE ROLE "app; user" LOGIN});
endpoint($follower, $receiver, 'all', '/ok/all');

# --- Names, and settings of the source's roles and databases

make('My "shop\'s');
at('My "shop\'s', "SELECT outbox.emit('order.earlier', '{}', key => 'a\\b')", 'app; user');
is(ask(follow_sql('odd', 'My "shop\'s')), 1, 'odd names: followed');
arrives('My "shop\'s', 'odd names: an event is the same');

$source->safe_psql('postgres', q{CREATE DATABASE settings OWNER "My ""Owner"});
$source->safe_psql('postgres', "ALTER DATABASE settings SET $_")
  foreach ($source->psql('postgres', 'SET standard_conforming_strings = off') == 0 ? 'standard_conforming_strings = off' : ()), "DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Kolkata'", "bytea_output = 'escape'", "IntervalStyle = 'iso_8601'",
  "search_path = public", "default_transaction_isolation = 'serializable'", "row_security = off", "quote_all_identifiers = on";
my ($rc, $out, $err) = $source->psql('settings', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'My "Owner' ], on_error_stop => 1);
is("$rc$out$err", '0', 'settings: installed');
at('settings', q{SELECT outbox.grant_emit('app; user'); SELECT outbox.grant_follow('Follow "er''')});
my $earlier = at('settings', "SELECT outbox.emit('order.earlier', '{}')", 'app; user');
is(ask(follow_sql('settings', 'settings')), 1, 'settings: followed');
is(ask("SELECT abs(extract(epoch FROM created_at - now())) < 300 FROM outbox.all_events WHERE id = '$earlier'"), 't', 'settings: the time of a copied event');
my $escaped = at('settings', "SET standard_conforming_strings = on; INSERT INTO outbox.outgoing (topic, body, content_type) VALUES ('order.n', '\\x00ff5c', 'text/plain') RETURNING id", 'app; user');
$receiver->wait_delivered(1, id => $escaped);
is(ask("SELECT body::text || ' ' || (abs(extract(epoch FROM created_at - now())) < 300)::text FROM outbox.all_events WHERE id = '$escaped'"), '\\x00ff5c true', 'settings: bytes and time');

# --- Encodings

make('latin', "ENCODING 'LATIN1' TEMPLATE template0");
like(($follower->psql('postgres', "SET default_transaction_isolation = '$_'; " . follow_sql('latin', 'latin')))[2], qr/cannot be called at isolation level \U$_\E.*^HINT: /ms, "not at $_")
  foreach 'repeatable read', 'serializable';
is(ask(follow_sql('latin', 'latin')), 0, 'LATIN1: followed');
{
	my $id = at('latin', "SET client_encoding = 'UTF8'; SELECT outbox.emit('order.n', '{\"s\": \"\x{c3}\x{a9}\"}', key => '\x{c3}\x{a9}')", 'app; user');
	$receiver->wait_delivered(1, id => $id);
	is(ask("SELECT key || payload::text FROM outbox.all_events WHERE id = '$id'"), "\x{c3}\x{a9}{\"s\": \"\x{c3}\x{a9}\"}", 'LATIN1: an event is the same');
}
make('ascii', "ENCODING 'SQL_ASCII' TEMPLATE template0");
ask(follow_sql('ascii', 'ascii'));
foreach my $sql ("SELECT outbox.emit('order.n', '{}', key => E'\\xff')", "INSERT INTO outbox.outgoing (topic, payload, tenant) VALUES ('order.n', '{}', E'\\xff')",
	"SELECT outbox.emit('order.n', to_jsonb(E'\\xff'::text), deliver_at => now() + '1 s')")
{
	like(($source->psql('ascii', $sql, extra_params => [ '-U', 'app; user' ]))[2], qr/invalid byte sequence for encoding "UTF8"/, "SQL_ASCII: refused there: $sql");
}
my $ascii = at('ascii', "SELECT outbox.emit('order.n', '{}', key => E'\\xc3\\xa9')", 'app; user');
$receiver->wait_delivered(1, id => $ascii);
$follower->safe_psql('postgres', "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0");
$follower->safe_psql('latin', 'CREATE EXTENSION outbox');
like(($follower->psql('latin', follow_sql('settings', 'settings')))[2], qr/its encoding is UTF8, and that of this database LATIN1.*^HINT: /ms, 'a follower that cannot hold each character');
is($follower->safe_psql('latin', follow_sql('latin', 'latin')), 1, 'it follows a source of its own encoding');
$follower->safe_psql('latin', "SELECT outbox.unfollow('latin')");

# --- A publication of another hand

at('settings', "CREATE PUBLICATION leaves FOR TABLE outbox.emitted, outbox.deferred");
at('settings', "CREATE PUBLICATION columns FOR TABLE outbox.emitted, outbox.deferred WITH (publish = 'insert', publish_via_partition_root = true)");
at('settings', "CREATE PUBLICATION few FOR TABLE outbox.emitted (id, topic, payload) WITH (publish = 'insert', publish_via_partition_root = true)");
at('settings', "CREATE PUBLICATION every FOR TABLE outbox.emitted (id, xid, created_at, topic, type, key, tenant, expires_at, headers, payload, body, content_type), outbox.deferred (id, xid, created_at, deliver_at, topic, type, key, tenant, expires_at, headers, payload, body, content_type) WITH (publish_via_partition_root = true)");
foreach my $publication (qw(leaves columns few every))
{
	refused(follow_sql('hand', 'settings', "publication => '$publication'"), 'divide', "publication $publication");
}
is(at('settings', "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ 'hand'"), 0, 'no slot is left');

# --- Two calls at once, and one that is undone

make('twice');
my @calls = map { $follower->background_psql('postgres', on_error_stop => 0) } 1, 2;
$_->query_until(qr/^begun$/m, "\\echo begun\n" . follow_sql('twice', 'twice') . ";\n") foreach @calls;
$_->quit foreach @calls;
ask('SELECT outbox.keep_sources()');
is(ask("SELECT state FROM outbox.sources WHERE name = 'twice'"), 'streaming', 'two calls at once');
arrives('twice', 'two calls at once: events come');
refused("BEGIN;\n" . follow_sql('undone', 'twice') . ";\nROLLBACK", 'transaction block', 'follow() in a transaction');
is(at('twice', "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ 'undone'"), 0, 'no slot is left');
refused("BEGIN;\nSELECT outbox.unfollow('twice');\nROLLBACK", 'transaction block', 'unfollow() in a transaction');
arrives('twice', 'and events still come');

# --- The longest name

my $longest = 'a' . 'b' x 30;
is(ask(follow_sql($longest, 'twice')), at('twice', 'SELECT count(*) FROM outbox.events'), 'the longest name');
ask("SELECT outbox.unfollow('$longest')");
is(at('twice', "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '$longest'"), 0, 'and its slot is gone');

# --- The follower ends while the source is away

$source->stop;
(undef, undef, $err) = $follower->psql('postgres', "SELECT outbox.unfollow('odd')");
like($err, qr/WARNING: .*replication slot "outbox_odd_\w+" may still retain WAL.*HINT: .*pg_drop_replication_slot/s, 'unfollow() names the slot that it could not drop');
is(ask("SELECT count(*) FROM outbox.sources WHERE name = 'odd'"), 0, 'and ends');
$source->start;
done_testing();
