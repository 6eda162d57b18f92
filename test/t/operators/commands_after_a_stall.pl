# A customer does not pay for a disk that stands still: commands go on soon after it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

watch_machine();
ask(<<'SQL');
CREATE TABLE public.stalls (s float);
CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN
    PERFORM pg_sleep(s) FROM public.stalls;
    RETURN NEW;
END $$;
CREATE TRIGGER stall BEFORE UPDATE ON outbox.parked FOR EACH ROW EXECUTE FUNCTION public.stall();
SQL
endpoint($node, $receiver, 'acme', '/status/500/acme', "tenant => 'acme', max_attempts => 1");
my @events = split /\n/, ask("SELECT outbox.emit('a.b', '{}', tenant => 'acme') FROM generate_series(1, 3)");
ok(wait_sql($node, "SELECT dead = 3 FROM outbox.stats WHERE endpoint = 'acme'"), 'there are dead letters');

# Discards the next one, and returns the seconds until that is done.
sub discard
{
	my ($name) = @_;
	my $event = shift @events;
	my $begun = time;

	ask("SELECT outbox.discard('acme', event => '$event')");
	wait_status($node, $event, 'cancelled', $name);
	return seconds_since($begun);
}

discard('a command');
ask('INSERT INTO public.stalls VALUES (6)');
cmp_ok(discard('a command that is held up'), '>', 5.5, 'it was');
ask('TRUNCATE public.stalls');
cmp_ok(discard('the next one'), '<', 5, 'is carried out soon');
$node->stop;
done_testing();
