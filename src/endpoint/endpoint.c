/*
 * endpoint.c
 *	  One endpoint in the worker: its events on their way from the log to a slot,
 *	  and to the tables.
 *
 * Knows neither SQL nor HTTP.  Reading hands it events (push), sending takes
 * deliveries (next) and brings outcomes (done), settling persists what is on
 * 'settling' and reports back (settled).
 *
 * The frontier is the place in the log up to which events were looked at.
 * Everything before it is done, has a row in outbox.parked, or is in memory
 * on 'ready', 'in_flight' or 'waiting'; those few are stored with the position.
 */
#include "base/outbox.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/memory.h"
#include "endpoint/endpoint.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/retries.h"

OutboxEndpoint *
outbox_endpoint_create(MemoryContext parent, int32 id)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "outbox endpoint",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	OutboxEndpoint *ep = palloc0(sizeof(OutboxEndpoint));

	ep->id = id;
	ep->cxt = cxt;
	outbox_lanes_init(ep);
	outbox_retries_init(ep);
	dlist_init(&ep->ready);
	dlist_init(&ep->in_flight);
	dlist_init(&ep->settling);
	dlist_init(&ep->loading);
	dlist_init(&ep->parking);
	dlist_init(&ep->asking);
	dlist_init(&ep->held);
	MemoryContextSwitchTo(old);
	return ep;
}

static void
release(OutboxDelivery *d)
{
	if (!d->held)
		return;
	d->held = false;
	dlist_delete(&d->held_node);
	d->endpoint->nheld--;
}

void
outbox_delivery_free(OutboxDelivery *d)
{
	release(d);
	if (d->event)
		outbox_page_unref(d->event->page);
	if (d->error)
		pfree(d->error);
	pfree(d);
}

void
outbox_delivery_free_list(dlist_head *list)
{
	while (!dlist_is_empty(list))
		outbox_delivery_free(dlist_container(OutboxDelivery, node,
									  dlist_pop_head_node(list)));
}

static OutboxWindowEntry
pop_window(OutboxEndpoint *ep)
{
	OutboxWindowEntry entry = *outbox_window_at(ep, 0);

	ep->window_start = (ep->window_start + 1) % ep->window_size;
	ep->window_count--;
	ep->window_bytes -= entry.bytes;
	return entry;
}

/* Nothing may be in flight any more. */
void
outbox_endpoint_free(OutboxEndpoint *ep)
{
	Assert(ep->nin_flight == 0);
	outbox_delivery_free_list(&ep->ready);
	outbox_delivery_free_list(&ep->settling);
	outbox_lanes_free(ep);
	while (ep->window_count > 0)
		outbox_page_unref(pop_window(ep).event->page);
	outbox_cursor_clear(&ep->cursor);
	outbox_cursor_clear(&ep->frontier);
	outbox_cursor_clear(&ep->counter);
	if (ep->settings_cxt)
		MemoryContextDelete(ep->settings_cxt);
	if (ep->retired_cxt)
		MemoryContextDelete(ep->retired_cxt);
	MemoryContextDelete(ep->cxt);
}

/* One more or less that is ready or waiting: views show it as its row says. */
void
outbox_delivery_count(OutboxDelivery *d, int n)
{
	if (d->parked && d->was_retry)
		d->endpoint->nloaded_retries += n;
	else if (d->parked)
		d->endpoint->nloaded_blocked += n;
}

void
outbox_delivery_ready(OutboxEndpoint *ep, OutboxDelivery *d)
{
	d->state = OUTBOX_DELIVERY_READY;
	dlist_push_tail(&ep->ready, &d->node);
	ep->nready++;
	outbox_delivery_count(d, 1);
}

/* It was not sent after all: before the others. */
void
outbox_delivery_ready_again(OutboxEndpoint *ep, OutboxDelivery *d)
{
	d->state = OUTBOX_DELIVERY_READY;
	dlist_push_head(&ep->ready, &d->node);
	ep->nready++;
	outbox_delivery_count(d, 1);
}

void
outbox_delivery_leave_ready(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->nready--;
	outbox_delivery_count(d, -1);
}

static OutboxDelivery *
make_delivery(OutboxEndpoint *ep, OutboxEvent *event, bool parked)
{
	OutboxDelivery *d = MemoryContextAllocZero(ep->cxt, sizeof(OutboxDelivery));

	d->endpoint = ep;
	d->event = event;
	d->seq = event->seq;
	d->parked = parked;
	event->page->refs++;
	if (!parked)
	{
		d->held = true;
		dlist_push_tail(&ep->held, &d->held_node);
		ep->nheld++;
	}
	return d;
}

/*
 * Takes its place in its lane, or is ready at once.  'known': what outbox.parked
 * has of its key is in memory.
 */
static void
place(OutboxEndpoint *ep, OutboxDelivery *d, bool known)
{
	const char *key = outbox_lane_key(ep, d->event->key);
	OutboxLane *lane;

	if (key == NULL)
	{
		outbox_delivery_ready(ep, d);
		return;
	}
	lane = outbox_lane_get(ep, key, known);
	d->lane = lane;
	outbox_lane_wait(ep, lane, d);
	outbox_lane_advance(ep, lane);
}

void
outbox_endpoint_admit(OutboxEndpoint *ep, OutboxEvent *event)
{
	place(ep, make_delivery(ep, event, false), false);
}

/* One delivery less that waits in the table only. */
static OutboxLane *
leave_table(OutboxEndpoint *ep, int64 seq, const char *key, bool was_retry)
{
	const char *k = outbox_lane_key(ep, key);
	OutboxLane *lane;

	if (was_retry)
		return outbox_retries_loaded(ep, seq);
	lane = k ? outbox_lane_find(ep, k) : NULL;
	if (lane && lane->parked)
		lane->first_parked = Max(lane->first_parked, seq + 1);
	return lane;
}

void
outbox_endpoint_load(OutboxEndpoint *ep, OutboxEvent *event, int attempts,
					 TimestampTz first_attempt_at, OutboxRedelivery redelivery,
					 bool was_retry, int64 group)
{
	OutboxDelivery *d = make_delivery(ep, event, true);

	d->attempts = attempts;
	d->first_attempt_at = first_attempt_at;
	d->redelivery = redelivery;
	d->was_retry = d->row_retries = was_retry;
	d->group = group;
	leave_table(ep, event->seq, event->key, was_retry);
	place(ep, d, false);
}

/* As above, when the row or its event turned out to be gone. */
void
outbox_endpoint_load_failed(OutboxEndpoint *ep, int64 seq, const char *key,
							bool was_retry)
{
	OutboxLane *lane = leave_table(ep, seq, key, was_retry);

	if (lane)
		outbox_lane_advance(ep, lane);
}

/* --------------------------------------------------------------- window */

/*
 * Reading stops while an endpoint could not send what it has.  With an open
 * breaker all it needs is a probe, when its time has come.
 */
bool
outbox_endpoint_wants_events(const OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->paused || ep->disabled || ep->dropped || ep->held_for)
		return false;
	if (ep->breaker == OUTBOX_BREAKER_OPEN)
		return now >= ep->retry_at && ep->window_count == 0 && ep->nready == 0 &&
			ep->nin_flight == 0 && ep->retries_all &&
			ep->nretries + ep->nretries_loading == 0;

	/* An endpoint that has nothing at all may always read something. */
	if (ep->window_count == 0)
		return (ep->nready == 0 && ep->nin_flight == 0) || outbox_memory_fits(0);

	/* Read ahead while memory lasts. */
	return ep->window_count <= OUTBOX_WINDOW / 2 &&
		ep->window_bytes <= OUTBOX_WINDOW_BYTES / 2 &&
		outbox_memory_fits_ahead(0);
}

/* Without memory for more, one event at a time is brought to the head. */
bool
outbox_endpoint_may_push(const OutboxEndpoint *ep)
{
	return outbox_memory_fits(0) ||
		ep->window_count + ep->nready + ep->nin_flight == 0;
}

/* Most endpoints never have more than a few events before them. */
static void
grow_window(OutboxEndpoint *ep)
{
	int			size = Min(Max(2 * ep->window_size, 16), OUTBOX_WINDOW);
	OutboxWindowEntry *larger = MemoryContextAlloc(ep->cxt, sizeof(OutboxWindowEntry) * size);

	for (int i = 0; i < ep->window_count; i++)
		larger[i] = *outbox_window_at(ep, i);
	if (ep->window)
		pfree(ep->window);
	ep->window = larger;
	ep->window_size = size;
	ep->window_start = 0;
}

void
outbox_endpoint_free_window(OutboxEndpoint *ep)
{
	Assert(ep->window_count == 0);
	if (ep->window)
		pfree(ep->window);
	ep->window = NULL;
	ep->window_size = ep->window_start = 0;
}

bool
outbox_endpoint_push(OutboxEndpoint *ep, OutboxEvent *event,
					 OutboxFilterResult filter, bool cancelled)
{
	OutboxWindowEntry *entry;

	if (ep->window_count == OUTBOX_WINDOW ||
		(ep->window_count > 0 && ep->window_bytes > OUTBOX_WINDOW_BYTES))
		return false;
	if (ep->window_count == 0)
		outbox_cursor_set(&ep->frontier, event->page->done, event->page->under,
						  event->seq - 1);
	if (ep->window_count == ep->window_size)
		grow_window(ep);
	entry = outbox_window_at(ep, ep->window_count++);
	entry->event = event;
	entry->bytes = outbox_event_bytes(event);
	entry->filter = filter;
	entry->cancelled = cancelled;
	ep->ncancelled += cancelled;
	ep->window_bytes += entry->bytes;
	event->page->refs++;
	return true;
}

const OutboxCursor *
outbox_endpoint_frontier(OutboxEndpoint *ep, const OutboxCursor *head)
{
	if (ep->window_count == 0)
		outbox_cursor_copy(&ep->frontier, ep->attached ? head : &ep->cursor);
	return &ep->frontier;
}

void
outbox_endpoint_drop_window(OutboxEndpoint *ep, const OutboxCursor *head)
{
	outbox_endpoint_frontier(ep, head);
	if (ep->window_count > 0)
		ep->backlog_since = outbox_window_at(ep, 0)->event->created_at;
	while (ep->window_count > 0)
		outbox_page_unref(pop_window(ep).event->page);
	ep->window_known = 0;
	ep->ncancelled = 0;
	ep->attached = false;
	outbox_cursor_copy(&ep->cursor, &ep->frontier);
	ep->drop_window = false;
}

/* It takes no place in its lane, and blocks nobody. */
static void
dead_unsent(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason, const char *error)
{
	d->state = OUTBOX_DELIVERY_IN_FLIGHT;
	dlist_push_tail(&ep->in_flight, &d->node);
	ep->nin_flight++;
	ep->nheads++;
	outbox_endpoint_dead(ep, d, reason, error);
}

bool
outbox_endpoint_examine(OutboxEndpoint *ep, OutboxDelivery **result)
{
	OutboxWindowEntry entry;
	OutboxEvent *event;
	OutboxDelivery *d = NULL;

	*result = NULL;
	if (ep->window_count == 0 || ep->nwaiting >= OUTBOX_MAX_WAITING)
		return false;

	/* Something of its key may be parked that memory does not know of. */
	if (!ep->lanes_all && ep->window_known == 0)
		return false;
	if (ep->ordering == OUTBOX_ORDER_STRICT)
	{
		OutboxLane *lane = outbox_lane_find(ep, "");

		/* One request at a time: the position waits, too. */
		if (lane != NULL && (ep->batch_size == 1 || !outbox_lane_is_free(lane) ||
							 lane->parked || lane->nwaiting >= ep->batch_size))
			return false;
	}

	entry = pop_window(ep);
	event = entry.event;
	ep->window_known = Max(ep->window_known - 1, 0);
	if (entry.cancelled)
		ep->ncancelled--;
	else
		ep->backlog--;
	ep->backlog_since = Max(ep->backlog_since, event->created_at);
	ep->dirty = true;
	if (ep->frontier.under != event->page->under ||
		ep->frontier.done != event->page->done)
		outbox_cursor_set(&ep->frontier, event->page->done, event->page->under,
						  event->seq);
	ep->frontier.last_seq = event->seq;
	if (!entry.cancelled)
	{
		d = make_delivery(ep, event, false);
		if (entry.filter == OUTBOX_FILTER_YES)
			place(ep, d, true);
		else
		{
			/* Now: in a row of its own nobody would know of it. */
			dead_unsent(ep, d, "filter failed", entry.filter == OUTBOX_FILTER_TOO_LONG ?
						"the filter took too long with the payload" :
						"the filter is neither true nor false of the payload");
			d = NULL;
		}
	}
	outbox_page_unref(event->page);
	*result = d;
	return true;
}

static void
overflow(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dead_unsent(ep, d, "backlog",
				"the backlog was larger than outbox.max_backlog_size");
}

/* With each that goes the next one of its lane may become ready. */
int
outbox_endpoint_overflow_ready(OutboxEndpoint *ep, int64 cut)
{
	dlist_mutable_iter iter;
	int			n = 0;
	int			before;

	do
	{
		before = n;
		dlist_foreach_modify(iter, &ep->ready)
		{
			OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

			if (d->parked || d->seq > cut)
				continue;
			outbox_delivery_leave_ready(ep, d);
			overflow(ep, d);
			n++;
			break;
		}
	} while (n > before);
	return n;
}

void
outbox_endpoint_overflow(OutboxEndpoint *ep, OutboxEvent *event)
{
	ep->backlog--;
	ep->dirty = true;
	overflow(ep, make_delivery(ep, event, false));
}

/* -------------------------------------------------------------- sending */

bool
outbox_endpoint_has_memory(OutboxEndpoint *ep, int nothers, size_t bytes, TimestampTz now)
{
	if ((nothers == 0 && ep->nsettling == 0) || outbox_memory_fits(bytes))
		return true;
	ep->memory_short_at = now;
	return false;
}

/*
 * True if memory held a request back in the last second, or holds back the reading
 * of what waits: others may have taken more than the bound with one request each.
 */
bool
outbox_endpoint_lacks_memory(OutboxEndpoint *ep, TimestampTz now)
{
	return now - ep->memory_short_at < USECS_PER_SEC ||
		(ep->backlog > 0 && ep->window_count == 0 && ep->nready == 0 && ep->nin_flight > 0 &&
		 !outbox_memory_fits(0) && outbox_endpoint_may_send(ep, now));
}

OutboxDelivery *
outbox_endpoint_next(OutboxEndpoint *ep, TimestampTz now)
{
	if (!outbox_endpoint_may_send(ep, now))
		return NULL;

	for (;;)
	{
		OutboxDelivery *d;
		const char *reason;
		const char *error;

		while (ep->nready == 0)
			if (!outbox_endpoint_examine(ep, &d))
				return NULL;

		/* Its commit is not yet where a crash could not take it back. */
		d = dlist_head_element(OutboxDelivery, node, &ep->ready);
		if (d->event->page->lsn > outbox_durable_lsn)
			return NULL;
		outbox_delivery_leave_ready(ep, d);
		d->state = OUTBOX_DELIVERY_IN_FLIGHT;
		dlist_push_tail(&ep->in_flight, &d->node);
		ep->nin_flight++;
		ep->nheads++;
		d->started_at = now;
		d->probe = (ep->breaker == OUTBOX_BREAKER_OPEN);

		reason = outbox_outcome_unfit(d, now, &error);
		if (reason)
		{
			outbox_endpoint_dead(ep, d, reason, error);
			continue;
		}
		if (ep->rate_limit > 0)
			ep->tokens -= 1;
		return d;
	}
}

/* ------------------------------------------------------------- outcomes */

void
outbox_endpoint_put_back(OutboxEndpoint *ep, OutboxDelivery *d)
{
	dlist_delete(&d->node);
	ep->nin_flight--;
	ep->nheads--;
	ep->dirty = true;
	d->transfer = NULL;
	outbox_delivery_ready_again(ep, d);
}

void
outbox_delivery_settle(OutboxEndpoint *ep, OutboxDelivery *d, OutboxVerdict verdict)
{
	release(d);
	d->verdict = verdict;
	d->state = OUTBOX_DELIVERY_SETTLING;
	dlist_push_tail(&ep->settling, &d->node);
	ep->nsettling++;
	ep->dirty = true;
}

/* ------------------------------------------------------------- parking */

void
outbox_endpoint_count_row(OutboxEndpoint *ep, int64 seq, OutboxRowStatus status, int n)
{
	if (ep->rows_counted || seq <= ep->rows_upto)
		ep->rows[status] += n;
}

/* Its row says something else than it did, or is gone. */
static void
count_settled(OutboxEndpoint *ep, const OutboxDelivery *d)
{
	static const OutboxRowStatus status[] = {
		[OUTBOX_VERDICT_RETRY] = OUTBOX_ROW_RETRYING,
		[OUTBOX_VERDICT_BLOCKED] = OUTBOX_ROW_BLOCKED,
		[OUTBOX_VERDICT_DEAD] = OUTBOX_ROW_DEAD,
	};

	if (d->parked)
		outbox_endpoint_count_row(ep, d->seq, d->row_retries ? OUTBOX_ROW_RETRYING :
								  OUTBOX_ROW_BLOCKED, -1);
	if (d->verdict != OUTBOX_VERDICT_DELIVERED)
		outbox_endpoint_count_row(ep, d->seq, status[d->verdict], 1);
}

static int64 *
add_retry_numbers(dlist_head *list, int64 *to)
{
	dlist_iter	iter;

	dlist_foreach(iter, list)
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node, iter.cur);

		if (d->parked && d->row_retries)
			*to++ = d->seq;
	}
	return to;
}

int64 *
outbox_endpoint_loaded_retries(OutboxEndpoint *ep, int *n)
{
	dlist_head *lists[] = {&ep->ready, &ep->in_flight, &ep->settling};
	size_t		most = ep->nwaiting;
	int64	   *seqs;
	int64	   *end;
	dlist_iter	iter;

	for (size_t i = 0; i < lengthof(lists); i++)
		dlist_foreach(iter, lists[i])
			most++;
	seqs = end = palloc(sizeof(int64) * Max(most, 1));
	for (size_t i = 0; i < lengthof(lists); i++)
		end = add_retry_numbers(lists[i], end);
	if (ep->nwaiting > 0)
		end = outbox_lanes_visit_waiting(ep, add_retry_numbers, end);
	*n = (int) (end - seqs);
	return seqs;
}

void
outbox_endpoint_settled(OutboxEndpoint *ep)
{
	while (!dlist_is_empty(&ep->settling))
	{
		OutboxDelivery *d = dlist_container(OutboxDelivery, node,
											dlist_pop_head_node(&ep->settling));

		ep->nsettling--;
		count_settled(ep, d);
		if (d->verdict == OUTBOX_VERDICT_RETRY)
		{
			outbox_retries_add(ep, d->seq, d->next_attempt_at, d->group, d->lane);
			if (d->lane)
			{
				/* It was blocked since the answer; now the retry blocks it. */
				d->lane->blockers--;
				outbox_lane_advance(ep, d->lane);
			}
		}
		else if (d->verdict == OUTBOX_VERDICT_BLOCKED)
		{
			/* Its turn may have come before its row could be read. */
			const char *key = outbox_lane_key(ep, d->event->key);
			OutboxLane *lane = key ? outbox_lane_find(ep, key) : NULL;

			if (lane)
				outbox_lane_advance(ep, lane);
		}
		else if (d->verdict == OUTBOX_VERDICT_DEAD && d->lane &&
				 outbox_outcome_blocks(ep, d->reason))
		{
			/* From now on its row blocks the lane. */
			d->lane->blockers--;
			d->lane->dead = true;
		}
		outbox_delivery_free(d);
	}
	ep->dirty = false;
}
