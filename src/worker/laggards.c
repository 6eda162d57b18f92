/*
 * laggards.c
 *	  Owns how the log is read for endpoints that are behind its head, and for backlogs
 *	  that are not counted.
 *
 * An endpoint that is catching up reads from its place on, until it can be attached to the
 * head.  Pages are read in turn, each for all that have their place in it (together.c).
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/status.h"
#include "endpoint/subscribers.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/laggards.h"
#include "worker/loop.h"
#include "worker/together.h"

/*
 * Rows per step that are read for all catching-up endpoints together, and that are read
 * only to be counted.
 */
#define LAGGARD_ROWS (2 * OUTBOX_PAGE_ROWS)
#define COUNT_ROWS 2000

/* Endpoints of which one round asks whether they can give up memory. */
#define GIVE_UP_AT_ONCE 256

static int noverflowed;

static void *
laggard_wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	static OutboxFilterResult result;

	if (!outbox_subscribes(arg, topic, len, row))
		return NULL;
	result = outbox_row_forgotten(row) ? OUTBOX_FILTER_YES : outbox_passes(arg, row);
	return result == OUTBOX_FILTER_NO ? NULL : &result;
}

/* Returns up to which tick the endpoint may read.  NULL: there is nothing to read. */
static OutboxTick *
target_of(const OutboxEndpoint *ep)
{
	return outbox_head_target(&ep->feed->cursor, ep->tenant != NULL);
}

static void
attach_if_caught_up(OutboxEndpoint *ep)
{
	if (ep->feed->attached || !outbox_head_reached(&ep->feed->cursor))
		return;
	ep->feed->attached = true;
	ep->feed->counted = true;
	ep->feed->backlog = ep->feed->window_count - ep->feed->ncancelled;
	outbox_cursor_clear(&ep->feed->cursor);
	outbox_cursor_clear(&ep->feed->counter);
}

/* True if the endpoint has read all that may be read, and is not where the head is. */
static bool
is_ahead(const OutboxEndpoint *ep)
{
	return !outbox_head_reached(&ep->feed->cursor) && target_of(ep) == NULL;
}

static bool
can_read_more(OutboxEndpoint *ep, TimestampTz now)
{
	return !ep->member.recreate && !ep->member.put_off &&
		outbox_window_wants_events(ep, now) &&
		!outbox_step_held(OUTBOX_STEP_READ, ep->id);
}

/* True if the endpoint gives up its turn.  The round lets it wait again when that ends. */
static bool
needs_no_page(const OutboxEndpoint *ep, TimestampTz now)
{
	return ep->feed->attached || outbox_status_is_shut(ep, now) ||
		outbox_window_has_enough(ep);
}

static bool
may_read_with(OutboxEndpoint *ep, TimestampTz now)
{
	return !needs_no_page(ep, now) && can_read_more(ep, now);
}

/* Newer ticks come all the time, so it is noted at once that all of this one was read. */
static void
has_read(OutboxEndpoint *ep)
{
	attach_if_caught_up(ep);
	if (!ep->feed->attached && is_ahead(ep))
		outbox_turn_add(OUTBOX_TURN_AHEAD, ep);
	else
		outbox_turn_remove(OUTBOX_TURN_AHEAD, ep);
	ep->place.dirty = true;
	outbox_busy_add(ep);
}

/*
 * Returns the next endpoint that can read, and has waited longest.  Those before it that
 * need no page leave the list.  Others wait again: they lack memory, or reading for them
 * has failed.  NULL: there is none, or it is behind OUTBOX_TURN_FRUITLESS of these.
 */
static OutboxEndpoint *
next_laggard(TimestampTz now)
{
	int fruitless = 0;

	while (fruitless < OUTBOX_TURN_FRUITLESS)
	{
		OutboxEndpoint *ep = outbox_turn_first(OUTBOX_TURN_READ);

		if (ep == NULL)
			return NULL;
		if (needs_no_page(ep, now))
			outbox_turn_remove(OUTBOX_TURN_READ, ep);
		else if (is_ahead(ep))
		{
			outbox_turn_remove(OUTBOX_TURN_READ, ep);
			if (!ep->lists->in_turn[OUTBOX_TURN_AHEAD])
				outbox_busy_add(ep); /* a batch waits no longer for what is read */
			outbox_turn_add(OUTBOX_TURN_AHEAD, ep);
		}
		else if (can_read_more(ep, now))
			return ep;
		else
		{
			outbox_turn_last(OUTBOX_TURN_READ, ep);
			fruitless++;
		}
	}
	return NULL;
}

bool
outbox_laggards_read(TimestampTz now, XLogRecPtr *lsn)
{
	OutboxEndpoint *ep;
	int				cost = 0;

	while ((ep = next_laggard(now)) != NULL)
	{
		OutboxTogether how = {.turn = OUTBOX_TURN_READ,
							  .first = ep,
							  .now = now,
							  .max_rows = OUTBOX_PAGE_ROWS,
							  .may_join = may_read_with,
							  .ended = has_read};

		if (cost >= LAGGARD_ROWS || (cost > 0 && outbox_head_step_is_over()))
			return true;
		cost += outbox_together_read(&how, lsn);
	}
	return false;
}

/*
 * The endpoints are examined in turn, so that all of them give up something before one does
 * twice.  Nothing is read for them before they may send again.
 */
void
outbox_laggards_give_up(TimestampTz now)
{
	static int hand;

	for (int n = Min(outbox_loop.roster.n, GIVE_UP_AT_ONCE);
		 n > 0 && outbox_memory_is_short(); n--)
	{
		OutboxEndpoint *ep;

		if (hand >= outbox_loop.roster.n)
			hand = 0;
		ep = outbox_loop.roster.endpoints[hand++];
		if (outbox_endpoint_rests(ep) || ep->member.recreate ||
			!outbox_status_is_shut(ep, now) ||
			(ep->feed->window_count == 0 &&
			 (ep->queue->nwaiting <= 1 || ep->status.unstorable)))
			continue;
		if (ep->feed->window_count > 0)
			outbox_window_drop(ep, &outbox_loop.head);
		ep->place.dirty = true; /* the settle parks what waits */
		outbox_busy_settle(ep);
	}
}

static void
overflow_takes(void *arg, void *wanted, OutboxEvent *event)
{
	if (outbox_parked_is_cancelled(arg, event->seq))
		return;
	if (event->forgotten)
	{
		outbox_tally_count(arg, OUTBOX_COUNT_CANCELLED);
		return;
	}
	outbox_endpoint_overflow(arg, event, *(OutboxFilterResult *) wanted);
	noverflowed++;
}

int
outbox_laggards_overflow(OutboxEndpoint *ep)
{
	OutboxLogQuery reader = {.want = laggard_wants,
							 .take = overflow_takes,
							 .arg = ep,
							 .max_rows = OUTBOX_PAGE_ROWS,
							 .max_bytes = OUTBOX_PAGE_BYTES,
							 .tenant = outbox_tenant_name(ep->tenant)};
	OutboxTick	  *target = target_of(ep);
	XLogRecPtr	   unused = 0;

	noverflowed = 0;
	if (target)
		outbox_log_read(&ep->feed->cursor, target, &reader, &unused);
	ep->place.dirty = true;
	outbox_busy_add(ep);
	return noverflowed;
}

/* ------------------------------------------------------------- counting */

/* True if a page of the log may be counted for the endpoint now. */
static bool
can_count(OutboxEndpoint *ep)
{
	return !outbox_step_held(OUTBOX_STEP_READ, ep->id) &&
		(outbox_head_reached(&ep->feed->counter) ||
		 outbox_head_target(&ep->feed->counter, false));
}

static bool
wants_count(const OutboxEndpoint *ep)
{
	return !ep->feed->counted && !ep->member.dropped && !ep->member.recreate;
}

static bool
may_count_with(OutboxEndpoint *ep, TimestampTz now)
{
	(void) now;
	return wants_count(ep) && !outbox_step_held(OUTBOX_STEP_READ, ep->id);
}

static void
has_counted(OutboxEndpoint *ep)
{
	if (outbox_head_reached(&ep->feed->counter))
	{
		ep->feed->counted = true;
		outbox_cursor_clear(&ep->feed->counter);
	}
	outbox_busy_add(ep); /* to publish it */
}

/* As next_laggard(). */
static OutboxEndpoint *
next_to_count(void)
{
	int fruitless = 0;

	while (fruitless < OUTBOX_TURN_FRUITLESS)
	{
		OutboxEndpoint *ep = outbox_turn_first(OUTBOX_TURN_COUNT);

		if (ep == NULL)
			return NULL;
		if (!wants_count(ep))
			outbox_turn_remove(OUTBOX_TURN_COUNT, ep);
		else if (can_count(ep))
			return ep;
		else
		{
			outbox_turn_last(OUTBOX_TURN_COUNT, ep);
			fruitless++;
		}
	}
	return NULL;
}

bool
outbox_laggards_count(TimestampTz now)
{
	OutboxEndpoint *ep;
	int				cost = 0;

	while ((ep = next_to_count()) != NULL)
	{
		OutboxTogether how = {.turn = OUTBOX_TURN_COUNT,
							  .first = ep,
							  .now = now,
							  .max_rows = COUNT_ROWS,
							  .may_join = may_count_with,
							  .ended = has_counted};
		XLogRecPtr	   unused = 0;

		if (cost >= COUNT_ROWS || (cost > 0 && outbox_head_step_is_over()))
			return true;
		if (outbox_head_reached(&ep->feed->counter))
		{
			has_counted(ep);
			cost += OUTBOX_PAGE_COST;
			outbox_turn_last(OUTBOX_TURN_COUNT, ep);
		}
		else
			cost += outbox_together_read(&how, &unused);
	}
	return false;
}

bool
outbox_laggards_have_work(TimestampTz now)
{
	return next_laggard(now) != NULL || next_to_count() != NULL;
}
