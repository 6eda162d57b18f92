/*
 * unsettled.c
 *	  Owns how many deliveries may have ended that are not settled, of all endpoints and
 *	  of each.
 */
#include "base/outbox.h"

#include "store/unsettled.h"

/* So many may be of any endpoints.  As many again are divided among the endpoints. */
#define UNSETTLED_MAX (2 * OUTBOX_SETTLE_AFTER)

int			  outbox_unsettled_n;
static int	  nendpoints; /* that have some of them */
static uint64 settles;	  /* that have left nothing */

static int
count_of(const OutboxEndpoint *ep)
{
	return ep->lists->unsettled_in == settles ? ep->lists->nunsettled : 0;
}

void
outbox_unsettled_add(OutboxEndpoint *ep, int n)
{
	int before = count_of(ep);

	ep->lists->unsettled_in = settles;
	ep->lists->nunsettled = before + n;
	outbox_unsettled_n += n;
	nendpoints += (before + n > 0) - (before > 0);
}

void
outbox_unsettled_end(OutboxEndpoint *ep)
{
	outbox_unsettled_add(ep, -count_of(ep));
}

void
outbox_unsettled_end_all(void)
{
	settles++;
	outbox_unsettled_n = nendpoints = 0;
}

int
outbox_unsettled_room(void)
{
	return UNSETTLED_MAX - outbox_unsettled_n;
}

bool
outbox_unsettled_may_send(const OutboxEndpoint *ep)
{
	int64 own = count_of(ep) + ep->queue->nin_flight;

	return outbox_unsettled_room() > 0 || own * nendpoints < UNSETTLED_MAX;
}
