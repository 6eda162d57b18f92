# A worker has no more of the system's memory than doc/settings.md says, whatever receivers do.
# Meanwhile an endpoint whose receiver answers gets its events.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::MemoryBound;
use Test::More;

plan skip_all => 'a memory checker needs memory of its own' if $ENV{OUTBOX_MEMORY_CHECKER};

my $node = outbox_node('main', conf => "outbox.worker_memory = '16MB'\nsynchronous_commit = off\n");

use_bound($node);

# Endpoints, tenants, events, keys of each tenant.  Each event is for all endpoints of its
# tenant; without tenants for all.
shape('all down, each endpoint with a tenant', receivers => ['down'], endpoints => 1000, tenants => 1000, events => 100_000, keys => 3);
shape('all down, without tenants', receivers => ['down'], endpoints => 1000, events => 600, keys => 3);
# Their windows are full of events whose keys are blocked.
shape('all down, while nothing can be settled', receivers => ['down'], endpoints => 1000, events => 1000, keys => 3, unsettled => 1);
shape('all hang, without tenants', receivers => ['hangs'], endpoints => 1000, events => 600, keys => 1);
shape('all down, without keys', receivers => ['down'], endpoints => 300, tenants => 100, events => 30_000);
shape('one that hangs', receivers => ['hangs'], endpoints => 1, events => 60_000, keys => 5000);
shape('half hang, half are down', receivers => [ 'hangs', 'down' ], endpoints => 300, tenants => 30, events => 15_000, keys => 20);
tokens(receivers => ['hangs'], endpoints => 400, events => 1, token_path => '/stall-body?bytes=250000');
# 300 whose next request is large lack memory, and the other one comes between them.
shape('all hang, large payloads', receivers => ['hangs'], endpoints => 300, tenants => 300, events => 600, bytes => 100_000, payload => 1,
	until => sub { return ask("SELECT count(*) > 50 FROM outbox.stats WHERE reason ~ 'worker_memory is used up'") eq 't' });
# One request with what a template makes at a time, once there is no room: until many are under way, or wait for memory
shape('all hang, with templates', receivers => ['hangs'], endpoints => 300, tenants => 300, events => 300, bytes => 8000, payload => 2,
	config => '{"payload": {"all": "' . '{$}' x 240 . '"}}',
	until => sub {
		return ask("SELECT count(*) FILTER (WHERE processing > 0) > 100 OR count(*) FILTER (WHERE reason ~ 'worker_memory is used up') > 0"
			  . " FROM outbox.stats WHERE endpoint <> 'well'") eq 't';
	});
longer_texts(receivers => ['hangs'], endpoints => 600);
comes_back(endpoints => 60, tenants => 20, events => 2000, keys => 3);
is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');
$node->stop;
done_testing();
