# One statement writes, or deletes, the rows of many deliveries, of one endpoint and of many.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $events = 1000;
my $endpoints = 200;

# Statements are counted, whatever rows they have changed.
ask(<<'SQL');
CREATE TABLE public.statements (action text);
CREATE FUNCTION public.count_statement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN INSERT INTO public.statements VALUES (TG_OP); RETURN NULL; END $$;
CREATE TRIGGER count_statements AFTER INSERT OR DELETE ON outbox.parked FOR EACH STATEMENT EXECUTE FUNCTION public.count_statement();
SQL

sub few_statements
{
	my ($action, $rows, $what) = @_;
	my $n = ask("SELECT count(*) FROM public.statements WHERE action = '$action'");

	ask('TRUNCATE public.statements');
	cmp_ok($n, '>', 0, "$what: statements are counted");
	return cmp_ok($n, '<=', $rows / 20, "$what: $n statements for $rows rows");
}

# All events are sent in one request.
$receiver->control(path => '/ok/one', behave => '/status/500');
endpoint($node, $receiver, 'one', '/ok/one', "topics => '{one.*}', backoff_base => '2 s', backoff_max => '2 s', batch_size => $events, batch_wait => '10 s'");
ask("SELECT count(outbox.emit('one.n', '{}')) FROM generate_series(1, $events)");
ok(wait_sql($node, "SELECT count(*) = $events FROM outbox.parked"), 'one request has failed: each event has a row');
few_statements('INSERT', $events, 'failed');
$receiver->control(path => '/ok/one', behave => '/ok');
ok(wait_sql($node, "SELECT delivered = $events FROM outbox.stats WHERE endpoint = 'one'"), 'all are sent again');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.parked'), 'no row is left');
few_statements('DELETE', $events, 'delivered');

# All fail while nothing can be settled.
ask("SELECT count(outbox.create_endpoint('e' || n, '" . $receiver->url('/status/500') . "', topics => '{many.*}', backoff_base => '1 h')) FROM generate_series(1, $endpoints) n");
ok(wait_sql($node, "SELECT endpoints = 1 + $endpoints FROM outbox.workers"), "$endpoints endpoints");
ok(wait_settled($node), 'at rest');
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN');
$locker->query_safe('LOCK TABLE outbox.positions IN SHARE MODE');
emit($node, 'many.n', '{}');
wait_until { $endpoints <= scalar(() = $receiver->requests(path => '/status/500')) } 'each has sent the event';
wait_sql($node, 'SELECT in_flight = 0 FROM outbox.workers');
$locker->query_safe('COMMIT');
$locker->quit;
ok(wait_sql($node, "SELECT count(*) = $endpoints FROM outbox.parked"), 'each has a row');
few_statements('INSERT', $endpoints, 'many endpoints');
$node->stop;
done_testing();
