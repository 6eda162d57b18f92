/*
 * busy.c
 *	  Owns which endpoints have something to do now, and when the others will.
 *
 * The steps of the loop examine the endpoints on one list, the busy ones.  All others
 * rest.  So an endpoint that has nothing to do costs nothing, whatever their number.
 * One that rests is added again by what gives it something to do, or when its time
 * comes.
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "worker/busy.h"
#include "worker/loop.h"

static int
compare_time(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const OutboxEndpoint *x = pairingheap_const_container(OutboxEndpoint,
														  member.resting_node, a);
	const OutboxEndpoint *y = pairingheap_const_container(OutboxEndpoint,
														  member.resting_node, b);

	(void) arg;
	return x->member.rests_until == y->member.rests_until ? 0 :
		x->member.rests_until < y->member.rests_until	  ? 1 :
															-1;
}

/* Endpoints that rest until a time. */
static pairingheap resting = {.ph_compare = compare_time};

static void
stop_resting(OutboxEndpoint *ep)
{
	if (ep->member.rests_until == 0)
		return;
	pairingheap_remove(&resting, &ep->member.resting_node);
	ep->member.rests_until = 0;
}

void
outbox_busy_add(OutboxEndpoint *ep)
{
	if (!ep->member.busy)
	{
		stop_resting(ep);
		ep->member.busy = true;
		dlist_push_tail(&outbox_loop.roster.busy, &ep->member.busy_node);
	}
	outbox_loop.traffic.refill_all = true;
}

void
outbox_busy_rest(OutboxEndpoint *ep, TimestampTz until)
{
	Assert(ep->member.busy);
	dlist_delete(&ep->member.busy_node);
	ep->member.busy = false;
	if (until == DT_NOEND)
		return;
	ep->member.rests_until = until;
	pairingheap_add(&resting, &ep->member.resting_node);
}

void
outbox_busy_forget(OutboxEndpoint *ep)
{
	if (ep->member.busy)
		dlist_delete(&ep->member.busy_node);
	ep->member.busy = false;
	stop_resting(ep);
}

TimestampTz
outbox_busy_next_time(void)
{
	return pairingheap_is_empty(&resting) ?
		DT_NOEND :
		pairingheap_container(OutboxEndpoint, member.resting_node,
							  pairingheap_first(&resting))
			->member.rests_until;
}

void
outbox_busy_wake(TimestampTz now)
{
	while (outbox_busy_next_time() <= now)
	{
		OutboxEndpoint *ep = pairingheap_container(OutboxEndpoint, member.resting_node,
												   pairingheap_first(&resting));

		ep->member.published_quiet = false; /* it is published at once */
		outbox_busy_add(ep);
	}
}
