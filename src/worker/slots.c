/*
 * slots.c
 *	  Owns how the requests that a worker may have in flight are shared by its endpoints.
 */
#include "base/outbox.h"

#include "base/settings.h"
#include "endpoint/window.h"
#include "worker/busy.h"
#include "worker/dispatch.h"
#include "worker/loop.h"
#include "worker/slots.h"

/*
 * The slots are shared by tenants first, then by the endpoints of each.  An endpoint
 * without a tenant counts as one.
 */
static int
fair_share(const OutboxEndpoint *ep)
{
	int share = outbox_worker_max_in_flight / Max(outbox_loop.traffic.nsending, 1);

	return Max(share / (ep->tenant ? Max(ep->tenant->nsending, 1) : 1), 1);
}

/*
 * Gives free slots to the endpoints that wait for them: to each as many as are its fair
 * share, or with 'all' as many as it can use.  It ends when OUTBOX_TURN_FRUITLESS of them in a row
 * could not send anything.
 */
static void
share_slots(TimestampTz now, bool all)
{
	int fruitless = 0;

	for (int n = outbox_loop.turns[OUTBOX_TURN_SEND];
		 n > 0 && fruitless < OUTBOX_TURN_FRUITLESS && !outbox_dispatch_round_is_over() &&
		 outbox_dispatch_may_fill() &&
		 outbox_loop.traffic.in_flight < outbox_worker_max_in_flight;
		 n--)
	{
		OutboxEndpoint *ep = outbox_turn_first(OUTBOX_TURN_SEND);
		int				before = outbox_loop.traffic.in_flight;

		outbox_turn_remove(OUTBOX_TURN_SEND, ep);
		outbox_dispatch_fill(ep, now, all ? outbox_worker_max_in_flight : fair_share(ep));
		fruitless = outbox_loop.traffic.in_flight > before ? 0 : fruitless + 1;
	}
}

/* Endpoints that have no request in flight get one, in the order in which they wait. */
static void
give_first(TimestampTz now)
{
	OutboxEndpoint *ep;

	while ((ep = outbox_turn_first(OUTBOX_TURN_FIRST)) != NULL &&
		   !outbox_dispatch_round_is_over() && outbox_dispatch_may_fill())
	{
		outbox_turn_remove(OUTBOX_TURN_FIRST, ep);
		outbox_dispatch_fill(ep, now, 1);
	}
	if (ep != NULL)
		outbox_loop.traffic.refill_all = true;
}

void
outbox_slots_fill(TimestampTz now)
{
	bool	   scarce = outbox_turns_of_sending() > 0;
	dlist_iter iter;

	outbox_loop.traffic.refill_all = false;
	dlist_foreach(iter, &outbox_loop.roster.busy)
	{
		OutboxEndpoint *ep = outbox_listed(busy_node, iter.cur);

		if (ep->feed->drop_window)
			outbox_window_drop(ep, &outbox_loop.head);
		outbox_dispatch_offer(ep, now, scarce ? 1 : outbox_worker_max_in_flight);
	}
	if (!outbox_dispatch_may_fill())
		return;
	give_first(now);
	share_slots(now, false);
	share_slots(now, true);
}
