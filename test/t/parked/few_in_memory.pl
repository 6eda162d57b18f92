# No event is lost or out of order when memory holds almost nothing of outbox.parked.
# The library of this test has to look up all that it does not hold.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use OutboxTest::Storm;
use PostgreSQL::Test::Utils;
use Test::More;

my $build = OutboxTest::Build->new(PostgreSQL::Test::Utils::tempdir('little_room') . '/build');
$build->install_again('OUTBOX_PARKED_ROOM', '-DOUTBOX_PARKED_ROOM=2', '-DOUTBOX_PARKED_ROOM_LEAST=2', '-DUSE_ASSERT_CHECKING=1');

my $seconds = $ENV{MINUTES} ? $ENV{MINUTES} * 60 : 10;
alarm $seconds * 2 + 300;

my $storm = OutboxTest::Storm->new(build => $build, seed => $ENV{SEED} || int time);
$storm->rage($seconds, mixed => '', rate => 250, sessions => 4, keys => 40);
my $node = $storm->node;
is($node->safe_psql('postgres', 'SELECT string_agg(endpoint, \' \') FROM outbox.stats s WHERE pending_exact AND ('
		. " s.dead <> (SELECT count(*) FROM outbox.dead_letters d WHERE d.endpoint = s.endpoint))"), '',
	'dead letters are counted right');
$node->stop;
done_testing();
