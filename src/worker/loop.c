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
	.commands_pending = true,
	.replays_changed = true,
};
