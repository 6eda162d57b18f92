/*
 * lane.c
 *	  Owns the lanes of an endpoint.  A lane is the deliveries of one key, sent one
 *	  at a time in the order of the log.
 *
 * A lane has at most one live head, which is ready or in flight.  While its head is
 * parked the lane is blocked, and its followers are parked behind it.
 *
 * outbox.parked may have more than memory holds.  Then a lane that only rows block
 * is freed.  When it is made again, outbox.parked is read for it before it
 * advances.
 */
#include "base/outbox.h"

#include "common/hashfn.h"

#include "base/memory.h"
#include "endpoint/lane.h"
#include "endpoint/queue.h"
#include "endpoint/status.h"

typedef struct LaneEntry
{
	const char *key;
	uint32		hash;
	char		status;
	OutboxLane *lane;
} LaneEntry;

#define SH_PREFIX lanes
#define SH_ELEMENT_TYPE LaneEntry
#define SH_KEY key
#include "base/string_hash.h"

/*
 * When an endpoint has too many followers in memory, lanes with more than this
 * number are parked.
 */
#define LONG_LANE 16

void
outbox_lanes_init(OutboxEndpoint *ep)
{
	ep->queue->lanes = lanes_create(ep->cxt, 2, NULL); /* most endpoints are idle */
}

/*
 * Frees the deliveries that wait in lanes.  The lanes are freed with the endpoint's
 * memory context.
 */
void
outbox_lanes_free(OutboxEndpoint *ep)
{
	lanes_iterator it;
	LaneEntry	  *entry;

	lanes_start_iterate(ep->queue->lanes, &it);
	while ((entry = lanes_iterate(ep->queue->lanes, &it)) != NULL)
		outbox_delivery_free_list(&entry->lane->waiting);
}

OutboxLane *
outbox_lane_find(OutboxEndpoint *ep, const char *key)
{
	LaneEntry *entry = key ? lanes_lookup(ep->queue->lanes, key) : NULL;

	return entry ? entry->lane : NULL;
}

/* True if something that memory knows of blocks the lane. */
static bool
is_blocked(const OutboxLane *lane)
{
	return lane->blockers > 0 || lane->retrying || lane->dead;
}

bool
outbox_lane_is_free(const OutboxLane *lane)
{
	return lane->asked && !is_blocked(lane);
}

void
outbox_lane_forget_rows(OutboxLane *lane)
{
	lane->asked = lane->retrying = lane->dead = false;
}

int
outbox_lanes_count(const OutboxEndpoint *ep)
{
	return (int) ep->queue->lanes->members;
}

void *
outbox_lanes_visit_waiting(OutboxEndpoint *ep,
						   void *(*visit)(dlist_head *waiting, void *arg), void *arg)
{
	lanes_iterator it;
	LaneEntry	  *entry;

	lanes_start_iterate(ep->queue->lanes, &it);
	while ((entry = lanes_iterate(ep->queue->lanes, &it)) != NULL)
		if (entry->lane->nwaiting > 0)
			arg = visit(&entry->lane->waiting, arg);
	return arg;
}

/* True if outbox.parked is to be read for it. */
static bool
is_awaited(const OutboxLane *lane)
{
	return outbox_is_listed(&lane->loading_node) || outbox_is_listed(&lane->asking_node);
}

static void
remove_lane(OutboxEndpoint *ep, OutboxLane *lane)
{
	(void) outbox_list_remove(&lane->parking_node);
	lanes_delete(ep->queue->lanes, lane->key);
	pfree(lane);
}

/*
 * When a row that blocks such a lane ends, the lane is made again and outbox.parked
 * is read for it.
 */
void
outbox_lanes_evict(OutboxEndpoint *ep)
{
	lanes_iterator it;
	LaneEntry	  *entry;

	ep->queue->lanes_all = false;
	ep->feed->window_known = 0;
	lanes_start_iterate(ep->queue->lanes, &it);
	while ((entry = lanes_iterate(ep->queue->lanes, &it)) != NULL)
	{
		OutboxLane *lane = entry->lane;

		if ((lane->retrying || lane->dead) && lane->blockers == 0 && lane->head == NULL &&
			lane->nwaiting == 0 && !is_awaited(lane))
			remove_lane(ep, lane);
	}
}

/*
 * Not all rows could be read at once, so outbox.parked is to be read for each lane.
 */
void
outbox_lanes_forget_rows(OutboxEndpoint *ep)
{
	lanes_iterator it;
	LaneEntry	  *entry;

	ep->queue->lanes_all = false;
	lanes_start_iterate(ep->queue->lanes, &it);
	while ((entry = lanes_iterate(ep->queue->lanes, &it)) != NULL)
		outbox_lane_forget_rows(entry->lane);
}

static OutboxLane *
make_lane(OutboxEndpoint *ep, const char *key)
{
	size_t		size = strlen(key) + 1;
	OutboxLane *lane = MemoryContextAllocZero(ep->cxt, sizeof(OutboxLane) + size);
	LaneEntry  *entry;
	bool		found;

	lane->key = memcpy(lane + 1, key, size);
	dlist_init(&lane->waiting);
	lane->asked = ep->queue->lanes_all;
	entry = lanes_insert(ep->queue->lanes, lane->key, &found);
	Assert(!found);
	entry->lane = lane;
	return lane;
}

OutboxLane *
outbox_lane_get(OutboxEndpoint *ep, const char *key, bool known)
{
	OutboxLane *lane = outbox_lane_find(ep, key);

	if (lane == NULL && key)
	{
		lane = make_lane(ep, key);
		lane->asked = lane->asked || known;
	}
	return lane;
}

const char *
outbox_lane_key(const OutboxEndpoint *ep, const char *key)
{
	switch (ep->config.ordering)
	{
		case OUTBOX_ORDER_KEY:
			return key;
		case OUTBOX_ORDER_STRICT:
			return ""; /* no event has an empty key */
		case OUTBOX_ORDER_NONE:
			break;
	}
	return NULL;
}

void
outbox_lane_park_later(OutboxEndpoint *ep, OutboxLane *lane)
{
	(void) outbox_list_add(&ep->queue->parking, &lane->parking_node);
}

void
outbox_lane_leave(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	lane->nwaiting--;
	ep->queue->nwaiting--;
	outbox_delivery_count(d, -1);
}

static void
begin_waiting(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d)
{
	d->state = OUTBOX_DELIVERY_WAITING;
	lane->nwaiting++;
	ep->queue->nwaiting++;
	outbox_delivery_count(d, 1);
}

/*
 * As a rule, followers with a row in outbox.parked are older than those in memory.  But
 * after a restart, followers that were in flight have no row, and are older than all with
 * a row.
 */
OutboxDelivery *
outbox_lane_peek(const OutboxLane *lane)
{
	OutboxDelivery *d;

	if (lane->nwaiting == 0 || !outbox_lane_is_free(lane))
		return NULL;
	d = dlist_head_element(OutboxDelivery, node,
						   unconstify(dlist_head *, &lane->waiting));
	return !lane->parked || d->seq < lane->first_parked ? d : NULL;
}

/*
 * As a rule all that waits in the lane came after it, because it was in flight.  So
 * its place is searched from the front.
 */
void
outbox_lane_return(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d)
{
	dlist_iter iter;

	begin_waiting(ep, lane, d);
	dlist_foreach(iter,
				  &lane->waiting) if (dlist_container(OutboxDelivery, node, iter.cur)
										  ->seq > d->seq) break;
	dlist_insert_before(iter.cur, &d->node);
	if (is_blocked(lane))
		outbox_lane_park_later(ep, lane);
}

void
outbox_lane_advance(OutboxEndpoint *ep, OutboxLane *lane)
{
	OutboxDelivery *d;

	if (lane->head != NULL || is_blocked(lane))
		return;
	if (!lane->asked)
	{
		(void) outbox_list_add(&ep->queue->asking, &lane->asking_node);
		return;
	}

	d = outbox_lane_peek(lane);
	if (d != NULL)
	{
		outbox_lane_leave(ep, lane, d);
		lane->head = d;
		outbox_delivery_ready(ep, d);
		return;
	}
	if (lane->parked)
		(void) outbox_list_add(&ep->queue->loading, &lane->loading_node);
	else if (!is_awaited(lane))
		remove_lane(ep, lane);
}

void
outbox_lane_answer(OutboxEndpoint *ep, OutboxLane *lane, bool retrying, bool dead,
				   int64 first)
{
	(void) outbox_list_remove(&lane->asking_node);

	/*
	 * The answer includes these blockers.  The table is read again when they have
	 * ended.
	 */
	if (lane->blockers > 0)
		return;
	lane->asked = true;
	lane->retrying = retrying;
	lane->dead = dead;
	if (first >= 0)
		outbox_lane_parked(lane, first);
	if (!is_blocked(lane))
		outbox_lane_advance(ep, lane);
	else if (lane->nwaiting > 0)
		outbox_lane_park_later(ep, lane);
}

/*
 * The list is in the order of seq.  A delivery from the log belongs to its end.  A
 * delivery that comes back from tables is put in its place.
 */
static void
wait_in(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d)
{
	dlist_node *before = dlist_is_empty(&lane->waiting) ? NULL :
														  dlist_tail_node(&lane->waiting);

	begin_waiting(ep, lane, d);
	while (before && dlist_container(OutboxDelivery, node, before)->seq > d->seq)
		before = dlist_has_prev(&lane->waiting, before) ?
			dlist_prev_node(&lane->waiting, before) :
			NULL;
	if (before)
		dlist_insert_after(before, &d->node);
	else
		dlist_push_head(&lane->waiting, &d->node);
	if (is_blocked(lane) && !d->parked)
		outbox_lane_park_later(ep, lane);
}

void
outbox_lane_place(OutboxEndpoint *ep, OutboxDelivery *d, bool known)
{
	OutboxLane *lane = outbox_lane_get(ep, outbox_lane_key(ep, d->event->order_key),
									   known);

	if (lane == NULL)
	{
		outbox_delivery_ready(ep, d);
		return;
	}
	d->lane = lane;
	wait_in(ep, lane, d);
	outbox_lane_advance(ep, lane);
}

void
outbox_lane_parked(OutboxLane *lane, int64 first)
{
	lane->first_parked = lane->parked ? Min(lane->first_parked, first) : first;
	lane->parked = true;
}

void
outbox_lane_no_followers(OutboxEndpoint *ep, OutboxLane *lane)
{
	lane->parked = false;
	outbox_lane_advance(ep, lane);
}

static void
park_lane(OutboxEndpoint *ep, OutboxLane *lane)
{
	while (lane->nwaiting > 0)
	{
		OutboxDelivery *d = dlist_head_element(OutboxDelivery, node, &lane->waiting);

		outbox_lane_leave(ep, lane, d);
		outbox_lane_parked(lane, d->seq);
		d->lane = NULL;

		/* Without 'was_retry' its row says 'blocked' already. */
		if (d->parked && !d->was_retry)
			outbox_delivery_free(d);
		else
			outbox_delivery_settle(ep, d, OUTBOX_VERDICT_BLOCKED);
	}
}

/* Parks the lanes that have more than so many followers in memory. */
static void
park_lanes(OutboxEndpoint *ep, int above)
{
	lanes_iterator it;
	LaneEntry	  *entry;

	lanes_start_iterate(ep->queue->lanes, &it);
	while ((entry = lanes_iterate(ep->queue->lanes, &it)) != NULL)
		if (entry->lane->nwaiting > above)
			park_lane(ep, entry->lane);
}

/*
 * Followers that would wait long are parked, so that memory and the position do not have
 * to hold them.  These are the followers of a blocked lane.  When an endpoint has too
 * many followers in memory, the followers of its longest lanes are parked too, so that
 * one busy key does not stop the others.
 */
void
outbox_lanes_park_followers(OutboxEndpoint *ep, TimestampTz now)
{
	bool crowded = ep->queue->nwaiting > 1 && outbox_memory_is_short();
	bool keeps = ep->place.keeps;

	/*
	 * For an endpoint that seems to be down no rows are written, because it could
	 * not get these events anyway.  The position names the few that wait.  Where memory
	 * is short, it holds one of them.  Where it retains the log, it holds none.
	 */
	if (!crowded && !keeps &&
		(ep->pace.breaker == OUTBOX_BREAKER_OPEN ||
		 (ep->pace.failures.n >= OUTBOX_BREAKER_FAILURES / 2 &&
		  ep->pace.failures.events >= OUTBOX_BREAKER_EVENTS)))
		return;

	while (!dlist_is_empty(&ep->queue->parking))
	{
		OutboxLane *lane = dlist_head_element(OutboxLane, parking_node,
											  &ep->queue->parking);

		(void) outbox_list_remove(&lane->parking_node);
		if (is_blocked(lane))
			park_lane(ep, lane);
	}

	/*
	 * While most slots are busy no key holds up the others, so followers may stay
	 * in memory.
	 */
	if ((crowded || keeps) && outbox_status_is_shut(ep, now))
		park_lanes(ep, 0);
	else if (outbox_endpoint_waits_full(ep) &&
			 ep->queue->nheads < Min(ep->pace.slots, ep->pace.limits.max_in_flight) / 2)
		park_lanes(ep, LONG_LANE);
}
