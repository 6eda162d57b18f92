/*
 * loop.c
 *	  Owns what the steps of a worker's loop share.
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
