/*
 * loop.c
 *	  Owns the state that the steps of a worker's loop share.
 */
#include "base/outbox.h"

#include "base/settings.h"
#include "worker/loop.h"

/* Settling takes one µs of so many, where no outcome waits longer than LATEST (µs) for it. */
#define SETTLE_SHARE 20
#define SETTLE_LATEST (100 * 1000)

OutboxLoop outbox_loop = {
	.roster = {.busy = DLIST_STATIC_INIT(outbox_loop.roster.busy),
			   .open = DLIST_STATIC_INIT(outbox_loop.roster.open),
			   .reload_at = DT_NOEND},
	.to_settle = {.unsettled = DLIST_STATIC_INIT(outbox_loop.to_settle.unsettled),
				  .behind = DLIST_STATIC_INIT(outbox_loop.to_settle.behind),
				  .behind_at = DT_NOEND},
	.due = {.publish_at = DT_NOEND, .judge_at = DT_NOEND},
	.commands_pending = true,
	.replays_changed = true,
};

bool
outbox_loop_reload_is_due(void)
{
	return pg_atomic_read_u64(outbox_loop.changed) != outbox_loop.seen_changed;
}

void
outbox_loop_want_settle(TimestampTz now, bool has_rows)
{
	TimestampTz soon = now + outbox_settle_interval * INT64CONST(1000);

	if (outbox_loop.due.settle_at == 0)
	{
		outbox_loop.due.settle_at = Max(
			soon, now + Min(outbox_loop.due.settle_took * SETTLE_SHARE, SETTLE_LATEST));
		outbox_loop.due.settle_took = 0;
	}
	if (has_rows)
		outbox_loop.due.settle_at = Min(outbox_loop.due.settle_at, soon);
}

int
outbox_loop_place_of(int32 id)
{
	int low = 0;

	outbox_find_place(low, outbox_loop.roster.n, i,
					  outbox_loop.roster.endpoints[i]->id < id);
	return low;
}

OutboxEndpoint *
outbox_loop_find(int32 id)
{
	static int places[4096]; /* where they were found, by the end of the id */
	int		  *place = &places[(uint32) id % lengthof(places)];

	if (*place >= outbox_loop.roster.n || outbox_loop.roster.endpoints[*place]->id != id)
		*place = outbox_loop_place_of(id);
	if (*place == outbox_loop.roster.n || outbox_loop.roster.endpoints[*place]->id != id)
		return NULL;
	return outbox_loop.roster.endpoints[*place];
}
