# An emitter that takes the id of a scheduled event holds up that event, which is shown, and no other.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub as
{
	my ($role, $sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', $role ]);
	is($err, '', "$role: $sql");
	return $out;
}

$node->safe_psql('postgres', "CREATE ROLE $_ LOGIN; SELECT outbox.grant_emit('$_')") foreach qw(one other);
endpoint($node, $receiver, 'all', '/ok');
my $id = as('one', q{SELECT outbox.emit('order.due', '{"of": "one"}', deliver_at => now() + interval '1 h', dedup_key => 'k')});
my $beside = as('one', q{SELECT outbox.emit('order.due', '{}', deliver_at => now() + interval '1 h')});
is(as('other', q{SELECT outbox.emit('order.due', '{}', dedup_key => 'k')}), $id, 'the id is that of the dedup_key');

as('other', qq{INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('$id', 'order.taken', '{"of": "other"}')});
$node->safe_psql('postgres', 'UPDATE outbox.scheduled SET deliver_at = now()');
$receiver->wait_delivered(1, id => $beside);
pass('the next event is delivered');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.set_aside"), 'outbox.set_aside shows the one that is held up');
as('one', q{SELECT outbox.emit('order.due', '{}', deliver_at => now() + interval '1 day')});
is(ask('SELECT scheduled, next_due_at > now() FROM outbox.status'), '1|t', 'and it is not the next one that is due');

# Events go on, so the log goes on to its next third.  What failed is tried again after a
# minute, which another worker does not wait for.
$node->safe_psql('postgres', "SELECT outbox.set_retention('1 s')");
my $pieces = "SELECT piece FROM outbox.pieces WHERE log = 'events'";
my $piece = $node->safe_psql('postgres', $pieces);
wait_until
{
	emit($node, 'order.other', '{}');
	$node->safe_psql('postgres', $pieces) ne $piece
}
'another third of the log is in use', 180;
$node->safe_psql('postgres', 'UPDATE outbox.scheduled SET retry_at = now()');
replace_worker($node);
$receiver->wait_for(2, id => $id);
ok((grep { $_->{body} =~ /"one"/ } $receiver->requests(id => $id)), 'and the event is delivered');
$node->stop;
done_testing();
