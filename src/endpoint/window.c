/*
 * window.c
 *	  Owns what was read for an endpoint and has not taken its place yet, and the
 *	  frontier: the place in the log up to which events have.
 *
 * Everything before the frontier is done, has a row in outbox.parked, or is in
 * memory on 'ready', 'in_flight' or 'waiting'.  Those few are stored with the
 * position.
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "base/memory.h"
#include "endpoint/lane.h"
#include "endpoint/outcome.h"
#include "endpoint/queue.h"

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

static OutboxWindowEntry
pop_window(OutboxEndpoint *ep)
{
	OutboxWindowEntry entry = *outbox_window_at(ep, 0);

	ep->window_start = (ep->window_start + 1) % ep->window_size;
	ep->window_count--;
	ep->window_bytes -= entry.bytes;
	return entry;
}

const OutboxCursor *
outbox_endpoint_frontier(OutboxEndpoint *ep, const OutboxCursor *head)
{
	if (ep->window_count == 0)
		outbox_cursor_copy(&ep->frontier, ep->attached ? head : &ep->cursor);
	return &ep->frontier;
}

void
outbox_window_clear(OutboxEndpoint *ep)
{
	while (ep->window_count > 0)
		outbox_page_unref(pop_window(ep).event->page);
	ep->window_known = 0;
	ep->ncancelled = 0;
}

void
outbox_endpoint_drop_window(OutboxEndpoint *ep, const OutboxCursor *head)
{
	outbox_endpoint_frontier(ep, head);
	if (ep->window_count > 0)
		ep->backlog_since = outbox_window_at(ep, 0)->event->created_at;
	outbox_window_clear(ep);
	ep->attached = false;
	outbox_cursor_copy(&ep->cursor, &ep->frontier);
	ep->drop_window = false;
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
		d = outbox_delivery_make(ep, event, false);
		if (entry.filter == OUTBOX_FILTER_YES)
			outbox_lane_place(ep, d, true);
		else
		{
			/* Now: in a row of its own nobody would know of it. */
			outbox_outcome_unsent(ep, d, "filter failed", entry.filter == OUTBOX_FILTER_TOO_LONG ?
						"the filter took too long with the payload" :
						"the filter is neither true nor false of the payload");
			d = NULL;
		}
	}
	outbox_page_unref(event->page);
	*result = d;
	return true;
}
