/*
 * operator.c
 *	  Owns the effect of an operator's commands on deliveries in memory, once
 *	  the tables are changed.  It also knows whether memory has a delivery at
 *	  all.
 */
#include "base/outbox.h"

#include "endpoint/endpoint.h"
#include "endpoint/lane.h"
#include "endpoint/operator.h"
#include "endpoint/parking.h"
#include "endpoint/queue.h"
#include "endpoint/retries.h"
#include "endpoint/window.h"

static OutboxLane *
lane_of(OutboxEndpoint *ep, const char *key)
{
	return outbox_lane_find(ep, outbox_lane_key(ep, key));
}

/*
 * A row of this key has changed in outbox.parked: reads it again, and lets the lane
 * advance.
 */
static void
look_again(OutboxEndpoint *ep, const char *key)
{
	OutboxLane *lane = ep->queue->lanes_all ?
		lane_of(ep, key) :
		outbox_lane_get(ep, outbox_lane_key(ep, key), false);

	if (lane)
	{
		outbox_lane_forget_rows(lane);
		outbox_lane_advance(ep, lane);
	}
}

void
outbox_operator_retry_dead(OutboxEndpoint *ep, int64 seq, const char *key, bool blocked,
						   TimestampTz due)
{
	outbox_parking_count_row(ep, seq, OUTBOX_ROW_DEAD, -1);
	outbox_parking_count_row(ep, seq, OUTBOX_ROW_RETRYING, 1);
	outbox_retries_add_parked(ep, seq, due, key, 0);
	if (lane_of(ep, key))
		outbox_lane_park_later(ep, lane_of(ep, key));
	if (blocked && ep->config.block_on_dead)
		look_again(ep, key);
}

void
outbox_operator_retry_now(OutboxEndpoint *ep, int64 seq, const char *key, TimestampTz due)
{
	if (outbox_retries_contains(ep, seq))
		outbox_retries_make_due(ep, seq, due);
	else
		outbox_retries_add_parked(ep, seq, due, key, 0);
}

void
outbox_operator_probe(OutboxEndpoint *ep, TimestampTz now)
{
	bool waits = ep->pace.retry_at > now || outbox_pace_refused(&ep->pace, NULL) != NULL;

	outbox_pace_resume(&ep->pace);

	/*
	 * After a Retry-After each delivery waits, too, and so do deliveries of a topic that
	 * is held.
	 */
	if (waits && ep->pace.breaker == OUTBOX_BREAKER_CLOSED)
		outbox_retries_first_due(ep, now);
}

void
outbox_operator_discard_dead(OutboxEndpoint *ep, int64 seq, const char *key, bool blocked)
{
	outbox_parking_count_row(ep, seq, OUTBOX_ROW_DEAD, -1);
	if (blocked && ep->config.block_on_dead)
		look_again(ep, key);
}

static OutboxDelivery *
find(dlist_head *list, int64 seq)
{
	for (OutboxDelivery *d = NULL; (d = outbox_delivery_next(list, d)) != NULL;)
		if (d->seq == seq)
			return d;
	return NULL;
}

/* Its row was cancelled.  If memory has it, it waits there. */
static void
unload(OutboxEndpoint *ep, int64 seq, OutboxLane *lane)
{
	OutboxDelivery *d = find(&ep->queue->ready, seq);

	if (d)
	{
		outbox_delivery_leave_ready(ep, d);
		if (d->lane)
			d->lane->head = NULL;
	}
	else if (lane && (d = find(&lane->waiting, seq)) != NULL)
		outbox_lane_leave(ep, lane, d);
	if (d)
		outbox_delivery_free(d);
}

void
outbox_operator_cancel_parked(OutboxEndpoint *ep, int64 seq, const char *key,
							  bool retries)
{
	outbox_parking_count_row(ep, seq, retries ? OUTBOX_ROW_RETRYING : OUTBOX_ROW_BLOCKED,
							 -1);
	unload(ep, seq, lane_of(ep, key));
	if (retries && !outbox_retries_contains(ep, seq))
	{
		look_again(ep, key);
		return;
	}
	if (retries)
		outbox_retries_remove(ep, seq);
	if (lane_of(ep, key))
		outbox_lane_advance(ep, lane_of(ep, key));
}

void
outbox_operator_skip(OutboxEndpoint *ep, int64 seq, bool counted)
{
	ep->feed->cancelled_upto = Max(ep->feed->cancelled_upto, seq);
	ep->feed->backlog -= counted;
	for (int i = 0; i < ep->feed->window_count; i++)
	{
		OutboxWindowEntry *entry = outbox_window_at(ep, i);

		if (entry->event->seq == seq && !entry->cancelled)
		{
			entry->cancelled = true;
			ep->feed->ncancelled++;
		}
	}
}

bool
outbox_operator_has_sent(OutboxEndpoint *ep, int64 seq)
{
	return find(&ep->queue->in_flight, seq) || find(&ep->queue->settling, seq);
}

bool
outbox_operator_in_memory(OutboxEndpoint *ep, int64 seq, const char *key)
{
	OutboxLane *lane = lane_of(ep, key);

	return outbox_operator_has_sent(ep, seq) || find(&ep->queue->ready, seq) ||
		(lane && find(&lane->waiting, seq));
}

typedef struct Subject
{
	const char *tenant;
	const char *key;
} Subject;

/* Returns NULL if one of the list is an event of this subject, else the subject. */
static void *
unless_of(dlist_head *list, void *subject)
{
	const Subject *s = subject;

	if (s == NULL)
		return NULL;
	for (OutboxDelivery *d = NULL; (d = outbox_delivery_next(list, d)) != NULL;)
	{
		const OutboxEvent *event = d->event;

		if (event->tenant && strcmp(event->tenant, s->tenant) == 0 &&
			(s->key == NULL || (event->key && strcmp(event->key, s->key) == 0)))
			return NULL;
	}
	return subject;
}

bool
outbox_operator_has_tenant(OutboxEndpoint *ep, const char *tenant, const char *key)
{
	dlist_head *lists[] = {&ep->queue->ready, &ep->queue->in_flight,
						   &ep->queue->settling};
	Subject		subject = {tenant, key};
	void	   *none = &subject;

	for (size_t i = 0; i < lengthof(lists); i++)
		none = unless_of(lists[i], none);
	if (ep->queue->nwaiting > 0)
		none = outbox_lanes_visit_waiting(ep, unless_of, none);
	return none == NULL;
}

/*
 * The row of a follower says 'blocked' until it is settled, even while the follower
 * is in flight or back from a batch.
 */
bool
outbox_operator_skip_follower(OutboxEndpoint *ep, int64 seq, const char *key)
{
	OutboxLane *lane = lane_of(ep, key);

	if (!outbox_operator_in_memory(ep, seq, key))
		return false;
	if (lane)
		lane->first_parked = Max(lane->first_parked, seq + 1);
	return true;
}
