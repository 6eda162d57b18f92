/*
 * window.c
 *	  Owns the window of an endpoint and its frontier.  The window has the events
 *	  that were read and have not taken their place.  The frontier is the place in
 *	  the log up to which events have.
 *
 * Everything before the frontier is done, has a row in outbox.parked, or is ready, in
 * flight or waiting in memory.  An event without a row is stored with the position.
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/queue.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"

/* An endpoint is disabled when its filter is too long for so many events in a row. */
#define OUTBOX_UNFIT_MAX 20

bool
outbox_window_has_enough(const OutboxEndpoint *ep)
{
	return ep->feed->window_count >
		Max(OUTBOX_WINDOW / 8, Min(ep->config.batch_size, OUTBOX_WINDOW / 2)) ||
		ep->feed->window_bytes > OUTBOX_WINDOW_BYTES / 2;
}

static bool
is_full(const OutboxEndpoint *ep)
{
	return ep->feed->window_count == OUTBOX_WINDOW ||
		(ep->feed->window_count > 0 && ep->feed->window_bytes > OUTBOX_WINDOW_BYTES);
}

bool
outbox_window_has_something(const OutboxEndpoint *ep)
{
	return ep->queue->nready > 0 || ep->feed->window_count > 0;
}

/*
 * True if the endpoint holds so little that it may read one event, whatever memory there
 * is.  An event that waits behind its key does not keep it from the next event.  With
 * another one both are parked by the next settle (outbox_lanes_park_followers()).
 */
static bool
holds_little(const OutboxEndpoint *ep)
{
	const OutboxQueue *q = ep->queue;

	return ep->feed->window_count + q->nready + q->nin_flight + q->nsettling == 0 &&
		q->nwaiting <= 1;
}

/*
 * Reading stops while the endpoint could not send the events that it has, and until a
 * changed subscription is stored with the place from which it holds.  While its
 * breaker is open, it reads only the event that the due probe needs.  The probe needs one
 * if it is to send a new event, or if there is no event to retry: none is stored, and
 * none soon will be.
 */
bool
outbox_window_wants_events(OutboxEndpoint *ep, TimestampTz now)
{
	if (outbox_is_attached(ep) || is_full(ep) || outbox_status_is_shut(ep, now) ||
		ep->member.recreate || ep->member.put_off ||
		ep->place.stored_version != ep->config.version ||
		outbox_step_held(OUTBOX_STEP_READ, ep->id))
		return false;
	return ep->pace.breaker != OUTBOX_BREAKER_OPEN ||
		(ep->feed->window_count + ep->queue->nready + ep->queue->nin_flight == 0 &&
		 (outbox_status_probes_new(ep) ||
		  (outbox_has_all_retries(ep) &&
		   ep->queue->nretries + ep->queue->nretries_loading + ep->queue->nsettling ==
			   0)));
}

/* Reads ahead while half of the memory is free. */
bool
outbox_window_leads(const OutboxEndpoint *ep)
{
	return ep->feed->window_count == 0 ?
		outbox_window_may_push(ep) :
		!outbox_window_has_enough(ep) && outbox_memory_fits_ahead(0);
}

bool
outbox_window_may_push(const OutboxEndpoint *ep)
{
	return outbox_memory_fits(0) || holds_little(ep);
}

static void
resize(OutboxEndpoint *ep, OutboxWindowEntry *window, int size)
{
	static size_t account; /* of the windows of all endpoints */

	outbox_memory_account(&account,
						  account +
							  sizeof(OutboxWindowEntry) * (size - ep->feed->window_size));
	if (ep->feed->window)
		pfree(ep->feed->window);
	ep->feed->window = window;
	ep->feed->window_size = size;
	ep->feed->window_start = 0;
}

/*
 * The ring starts with 16 entries and doubles, because most endpoints never have
 * more than a few events in it.
 */
static void
grow_window(OutboxEndpoint *ep)
{
	int				   size = Min(Max(2 * ep->feed->window_size, 16), OUTBOX_WINDOW);
	OutboxWindowEntry *larger = MemoryContextAlloc(ep->cxt,
												   sizeof(OutboxWindowEntry) * size);

	for (int i = 0; i < ep->feed->window_count; i++)
		larger[i] = *outbox_window_at(ep, i);
	resize(ep, larger, size);
}

void
outbox_window_free(OutboxEndpoint *ep)
{
	Assert(ep->feed->window_count == 0);
	if (ep->feed->window)
		resize(ep, NULL, 0);
}

bool
outbox_window_push(OutboxEndpoint *ep, OutboxEvent *event, OutboxFilterResult filter,
				   bool cancelled)
{
	OutboxWindowEntry *entry;
	OutboxTick		  *reading = event->page->reading;
	OutboxTick *read = outbox_is_attached(ep) ? event->page->read : ep->feed->cursor.read;

	if (is_full(ep))
		return false;
	if (ep->feed->window_count == 0)
		outbox_cursor_set(&ep->feed->frontier, read, reading, event->seq - 1);
	else if (read != event->page->read && reading != ep->feed->frontier.reading)
		outbox_cursor_set(&ep->feed->own, read, reading, 0);
	if (ep->feed->window_count == ep->feed->window_size)
		grow_window(ep);
	entry = outbox_window_at(ep, ep->feed->window_count++);
	entry->event = event;
	entry->bytes = outbox_event_bytes(event);
	entry->filter = filter;
	entry->cancelled = cancelled || event->forgotten;
	entry->forgotten = event->forgotten && !cancelled;
	ep->feed->ncancelled += entry->cancelled;
	ep->feed->window_bytes += entry->bytes;
	event->page->refs++;
	return true;
}

bool
outbox_window_takes_from(const OutboxEndpoint *ep, const OutboxTick *read,
						 const OutboxTick *reading)
{
	return read == ep->feed->cursor.read || ep->feed->own.reading == NULL ||
		ep->feed->own.reading == reading;
}

/*
 * The frontier moves to an event.  An event that was read for several endpoints has the
 * tick from which one of them has read.  The others may have had more, and their own tick
 * says so.
 */
static void
move_frontier(OutboxFeed *feed, const OutboxEvent *event)
{
	OutboxTick *reading = event->page->reading;
	bool		own = feed->own.reading == reading;

	if (feed->frontier.reading != reading)
		outbox_cursor_set(&feed->frontier, own ? feed->own.read : event->page->read,
						  reading, event->seq);
	feed->frontier.last_seq = event->seq;
	if (own)
		outbox_cursor_clear(&feed->own);
}

static OutboxWindowEntry
pop_window(OutboxEndpoint *ep)
{
	OutboxWindowEntry entry = *outbox_window_at(ep, 0);

	ep->feed->window_start = (ep->feed->window_start + 1) % ep->feed->window_size;
	ep->feed->window_count--;
	ep->feed->window_bytes -= entry.bytes;
	return entry;
}

const OutboxCursor *
outbox_window_frontier(OutboxEndpoint *ep, const OutboxCursor *head)
{
	if (ep->feed->window_count == 0)
		outbox_cursor_copy(&ep->feed->frontier,
						   outbox_is_attached(ep) ? head : &ep->feed->cursor);
	return &ep->feed->frontier;
}

void
outbox_window_clear(OutboxEndpoint *ep)
{
	while (ep->feed->window_count > 0)
		outbox_page_unref(pop_window(ep).event->page);
	outbox_cursor_clear(&ep->feed->own);
	ep->feed->window_known = 0;
	ep->feed->ncancelled = 0;
}

void
outbox_window_drop(OutboxEndpoint *ep, const OutboxCursor *head)
{
	outbox_window_frontier(ep, head);
	if (ep->feed->window_count > 0)
		ep->feed->backlog_since = outbox_window_at(ep, 0)->event->created_at;
	outbox_window_clear(ep);
	outbox_window_free(ep);
	outbox_cursor_copy(&ep->feed->cursor, &ep->feed->frontier);
	ep->feed->drop_window = false;
}

void
outbox_window_count_again(OutboxEndpoint *ep, const OutboxCursor *head)
{
	ep->feed->backlog = 0;
	outbox_cursor_copy(&ep->feed->counter, outbox_window_frontier(ep, head));
}

/*
 * It becomes dead at once if its filter failed.  A row that waits behind its key would not
 * say so.
 */
bool
outbox_window_place(OutboxEndpoint *ep, OutboxDelivery *d, OutboxFilterResult filter,
					bool known)
{
	if (filter == OUTBOX_FILTER_YES)
	{
		ep->member.unfit = 0;
		outbox_lane_place(ep, d, known);
		return true;
	}
	outbox_outcome_unsent(ep, d, "filter failed",
						  filter == OUTBOX_FILTER_TOO_LONG ?
							  "the filter is too long for a payload of this size" :
							  "the filter is neither true nor false of the payload");
	if (filter == OUTBOX_FILTER_TOO_LONG && ++ep->member.unfit == OUTBOX_UNFIT_MAX)
	{
		ep->member.unfit = 0;
		outbox_status_disable(ep, OUTBOX_FILTER_UNFIT, GetCurrentTimestamp());
	}
	return false;
}

/*
 * With strict ordering there is one request at a time.  Events that cannot join it stay in
 * the window, and the position stays before them.
 */
static bool
is_behind_lane(OutboxEndpoint *ep)
{
	OutboxLane *lane = ep->config.ordering == OUTBOX_ORDER_STRICT ?
		outbox_lane_find(ep, "") :
		NULL;

	return lane != NULL &&
		(ep->config.batch_size == 1 || !outbox_lane_is_free(lane) || lane->parked ||
		 lane->nwaiting >= ep->config.batch_size);
}

bool
outbox_window_is_blocked(OutboxEndpoint *ep)
{
	return ep->queue->nready == 0 && is_behind_lane(ep);
}

bool
outbox_window_take_next(OutboxEndpoint *ep, OutboxDelivery **result)
{
	OutboxWindowEntry entry;
	OutboxEvent		 *event;
	OutboxDelivery	 *d = NULL;

	*result = NULL;
	if (ep->feed->window_count == 0 || outbox_endpoint_waits_full(ep) ||
		ep->status.disabled)
		return false;
	if (ep->queue->nwaiting > 1 && !outbox_memory_fits(0))
	{
		/* The next settle parks the blocked ones (outbox_lanes_park_followers()). */
		ep->place.moved = ep->place.moved || !dlist_is_empty(&ep->queue->parking);
		return false;
	}

	/* Memory may lack something that outbox.parked has of its key. */
	if (!ep->queue->lanes_all && ep->feed->window_known == 0)
		return false;
	if (is_behind_lane(ep))
		return false;

	entry = pop_window(ep);
	event = entry.event;
	ep->feed->window_known = Max(ep->feed->window_known - 1, 0);
	if (entry.cancelled)
		ep->feed->ncancelled--;
	else
		ep->feed->backlog--;
	if (entry.forgotten)
		outbox_tally_count(ep, OUTBOX_COUNT_CANCELLED);
	ep->feed->backlog_since = Max(ep->feed->backlog_since, event->created_at);

	/* An event that is sent has an outcome later.  A cancelled event has none. */
	ep->place.moved = true;
	ep->place.dirty = ep->place.dirty || entry.cancelled;
	move_frontier(ep->feed, event);
	if (!entry.cancelled)
	{
		d = outbox_delivery_make(ep, event, false);
		if (!outbox_window_place(ep, d, entry.filter, true))
			d = NULL;
	}
	outbox_page_unref(event->page);
	*result = d;
	return true;
}
