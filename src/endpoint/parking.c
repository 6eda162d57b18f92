/*
 * parking.c
 *	  Owns the way of deliveries between memory and outbox.parked, on the side of
 *	  memory.
 */
#include "base/outbox.h"

#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/parking.h"
#include "endpoint/queue.h"
#include "endpoint/retries.h"

/*
 * A delivery that only the table had is in memory now, or gone.  Returns its lane.
 * NULL: none.
 */
static OutboxLane *
leave_table(OutboxEndpoint *ep, int64 seq, const char *key, bool was_retry)
{
	OutboxLane *lane;

	if (was_retry)
		return outbox_retries_take_loaded(ep, seq);
	lane = outbox_lane_find(ep, outbox_lane_key(ep, key));
	if (lane && lane->parked)
		lane->first_parked = Max(lane->first_parked, seq + 1);
	return lane;
}

void
outbox_parking_load(OutboxEndpoint *ep, OutboxEvent *event, int attempts,
					TimestampTz first_attempt_at, bool unsent,
					OutboxRedelivery redelivery, bool was_retry, int64 group)
{
	OutboxDelivery *d = outbox_delivery_make(ep, event, true);

	d->attempts = attempts;
	d->first_attempt_at = first_attempt_at;
	d->unsent = unsent;
	d->redelivery = redelivery;
	d->was_retry = d->row_retries = was_retry;
	d->group = group;
	leave_table(ep, event->seq, event->order_key, was_retry);
	outbox_lane_place(ep, d, false);
}

void
outbox_parking_load_failed(OutboxEndpoint *ep, int64 seq, const char *key, bool was_retry)
{
	OutboxLane *lane = leave_table(ep, seq, key, was_retry);

	if (lane)
		outbox_lane_advance(ep, lane);
}

void
outbox_parking_count_row(OutboxEndpoint *ep, int64 seq, OutboxRowStatus status, int n)
{
	if (seq <= ep->table->rows_upto)
		ep->table->rows[status] += n;
	if (n > 0)
		ep->table->given_up = Min(ep->table->given_up, seq - 1);
}

/* The settle has changed or deleted the delivery's row. */
static void
count_settled(OutboxEndpoint *ep, const OutboxDelivery *d)
{
	static const OutboxRowStatus status[] = {
		[OUTBOX_VERDICT_RETRY] = OUTBOX_ROW_RETRYING,
		[OUTBOX_VERDICT_BLOCKED] = OUTBOX_ROW_BLOCKED,
		[OUTBOX_VERDICT_DEAD] = OUTBOX_ROW_DEAD,
	};

	if (d->parked)
		outbox_parking_count_row(ep, d->seq,
								 d->row_retries ? OUTBOX_ROW_RETRYING :
												  OUTBOX_ROW_BLOCKED,
								 -1);
	if (d->verdict != OUTBOX_VERDICT_DELIVERED)
		outbox_parking_count_row(ep, d->seq, status[d->verdict], 1);
}

static void *
add_retry_numbers(dlist_head *list, void *end)
{
	int64 *to = end;

	for (OutboxDelivery *d = NULL; (d = outbox_delivery_next(list, d)) != NULL;)
		if (d->parked && d->row_retries)
			*to++ = d->seq;
	return to;
}

int64 *
outbox_parking_loaded_retries(OutboxEndpoint *ep, int *n)
{
	dlist_head *lists[] = {&ep->queue->ready, &ep->queue->in_flight,
						   &ep->queue->settling};
	size_t		most = ep->queue->nwaiting;
	int64	   *seqs;
	int64	   *end;
	dlist_iter	iter;

	for (size_t i = 0; i < lengthof(lists); i++)
		dlist_foreach(iter, lists[i]) most++;
	seqs = end = palloc(sizeof(int64) * Max(most, 1));
	for (size_t i = 0; i < lengthof(lists); i++)
		end = add_retry_numbers(lists[i], end);
	if (ep->queue->nwaiting > 0)
		end = outbox_lanes_visit_waiting(ep, add_retry_numbers, end);
	*n = (int) (end - seqs);
	return seqs;
}

bool
outbox_parking_split(OutboxEndpoint *ep, int n, dlist_head *rest)
{
	int64			   group = 0; /* of the delivery before */
	dlist_mutable_iter iter;

	dlist_init(rest);
	dlist_foreach_modify(iter, &ep->queue->settling)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		if (n > 0 || (d->group != 0 && d->group == group))
		{
			n--;
			group = d->group;
			continue;
		}
		group = 0;
		dlist_delete(&d->node);
		dlist_push_tail(rest, &d->node);
		ep->queue->nsettling--;
		outbox_delivery_hold(d);
	}
	return !dlist_is_empty(rest);
}

void
outbox_parking_rejoin(OutboxEndpoint *ep, dlist_head *rest)
{
	while (!dlist_is_empty(rest))
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node,
											dlist_pop_head_node(rest));

		outbox_delivery_settle(ep, d, d->verdict);
	}
}

void
outbox_parking_settled(OutboxEndpoint *ep)
{
	while (!dlist_is_empty(&ep->queue->settling))
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node,
											dlist_pop_head_node(&ep->queue->settling));

		ep->queue->nsettling--;
		count_settled(ep, d);
		if (d->verdict == OUTBOX_VERDICT_RETRY)
		{
			outbox_retries_add(ep, d->seq, d->next_attempt_at, d->group, d->attempts > 0,
							   d->lane);
			if (d->lane)
			{
				/*
				 * The lane was blocked since the answer.  Now the retry blocks it.
				 */
				d->lane->blockers--;
				outbox_lane_advance(ep, d->lane);
			}
		}
		else if (d->verdict == OUTBOX_VERDICT_BLOCKED)
		{
			/* Its turn may have come while its row could not be read yet. */
			OutboxLane *lane = outbox_lane_find(ep,
												outbox_lane_key(ep, d->event->order_key));

			if (lane)
				outbox_lane_advance(ep, lane);
		}
		else if (d->verdict == OUTBOX_VERDICT_DEAD && d->lane &&
				 outbox_outcome_blocks(ep, d->reason))
		{
			/* From now on the row blocks the lane. */
			d->lane->blockers--;
			d->lane->dead = true;
		}
		outbox_delivery_free(d);
	}

	/* Events that the endpoint has read are stored by a position only. */
	if (ep->place.dirty)
		ep->place.dirty = ep->place.moved = false;
}
