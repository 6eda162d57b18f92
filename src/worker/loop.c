/*
 * loop.c
 *	  Owns the state that the steps of a worker's loop share.
 */
#include "base/outbox.h"

#include "worker/loop.h"

OutboxLoop outbox_loop = {
	.roster = {.busy = DLIST_STATIC_INIT(outbox_loop.roster.busy),
			   .open = DLIST_STATIC_INIT(outbox_loop.roster.open),
			   .reload_at = DT_NOEND},
	.to_settle = {.unsettled = DLIST_STATIC_INIT(outbox_loop.to_settle.unsettled),
				  .behind = DLIST_STATIC_INIT(outbox_loop.to_settle.behind),
				  .behind_at = DT_NOEND},
	.commands_pending = true,
	.replays_changed = true,
};

bool
outbox_loop_reload_is_due(void)
{
	return pg_atomic_read_u64(outbox_loop.changed) != outbox_loop.seen_changed;
}

int
outbox_loop_place_of(int32 id)
{
	int low = 0;
	int high = outbox_loop.roster.n;

	while (low < high)
	{
		int middle = low + (high - low) / 2;

		if (outbox_loop.roster.endpoints[middle]->id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

OutboxEndpoint *
outbox_loop_find(int32 id)
{
	static int last; /* where one was found: most are asked for several times in a row */

	if (last >= outbox_loop.roster.n || outbox_loop.roster.endpoints[last]->id != id)
		last = outbox_loop_place_of(id);
	if (last == outbox_loop.roster.n || outbox_loop.roster.endpoints[last]->id != id)
		return NULL;
	return outbox_loop.roster.endpoints[last];
}
