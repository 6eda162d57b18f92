# A batch waits for events that have yet to be read, also behind an answer that took long.
# While all slots of an endpoint are taken for a second, nothing is read for it.  The clock is
# set forth, so that this second is over while most events have yet to be read.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $clock = PostgreSQL::Test::Utils::tempdir('clock') . '/offset';
write_clock($clock, 0);
$ENV{OUTBOX_CLOCK} = $clock;
$ENV{LD_PRELOAD} = shim('clock');
my $node = outbox_node('main');
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'rare', '/slow/rare?ms=1500', q{topics => '{rare}', batch_size => 5, max_in_flight => 1, timeout => '1 min'});
pause($node, 'rare');
ask("INSERT INTO outbox.events (topic, payload)"
	  . " SELECT CASE WHEN n % 40000 = 0 THEN 'rare' ELSE 'common' END, '{}' FROM generate_series(1, 400000) n");
ok(wait_sql($node, "SELECT pending = 10 FROM outbox.stats WHERE endpoint = 'rare'"), 'the head has come to its end');
ask("SELECT outbox.resume_endpoint('rare')");
ok(wait_sql($node, "SELECT in_flight > 0 FROM outbox.worker_slots() WHERE pid IS NOT NULL"), 'a request is under way');
write_clock($clock, 2);
$receiver->wait_events(10, path => '/slow/rare', delivered => 1);
is(join(' ', map { scalar @{ $_->{batch} } } $receiver->requests(path => '/slow/rare')), '5 5', 'two full batches');

$node->stop;
done_testing();
