# Where the schema of outbox was renamed, emit says so, and its hint loses no event.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');

$node->safe_psql('postgres', "SELECT outbox.emit('a.b', '{}'); ALTER SCHEMA outbox RENAME TO other");
my ($rc, $out, $err) = $node->psql('postgres', "SELECT other.emit('a.b', '{}')");
like($err, qr/relation "outbox\.\w+" does not exist/, 'refused');
like($err, qr/HINT: .*Rename it back: ALTER SCHEMA name RENAME TO outbox\./, 'the hint says how to mend it');
unlike($err, qr/DROP EXTENSION/, 'and not how to lose the events');
$node->safe_psql('postgres', "ALTER SCHEMA other RENAME TO outbox; SELECT outbox.emit('a.b', '{}')");
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'), '2', 'both events are there');

done_testing();
