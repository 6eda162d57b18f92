# In the console, a browser sees dead letters sent, and failures in words that end by themselves.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_if_missing();

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

OutboxTest::Console::roles($node);
endpoint($node, $receiver, 'billing', '/ok/billing', "topics => '{order.*}'");
my $console = OutboxTest::Console->new($node);
$console->browse($_, JOURNAL => $receiver->{journal}, RECEIVER => $receiver->url('')) foreach qw(dead plain failures);
unlike($console->log, qr/Traceback/, 'no fault of the console is in its log');
done_testing();
