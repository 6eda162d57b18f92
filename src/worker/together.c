/*
 * together.c
 *	  Owns pages of the log that are read for several endpoints that are behind.
 *
 * When many endpoints without a tenant were paused, or a receiver of all of them was gone,
 * they are to read the same rows.  So what is read for one is offered to those that wait
 * for their turn, each from its own place on.  That is possible if the page leaves out no
 * row that they lack: they read to the same tick, and begin no earlier than the page.
 * The endpoints of one tenant read together in the same way.
 */
#include "base/outbox.h"

#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/loop.h"
#include "worker/together.h"

/* So many of those that wait are asked whether they can join. */
#define MEMBERS_MAX 4096

/* Who wants the current event, and what became of it in the filter. */
typedef struct Wanted
{
	OutboxEndpoint	  *ep;
	OutboxFilterResult filter;
	bool			   cancelled;
} Wanted;

typedef struct Page
{
	const OutboxTogether *how;
	uint64				  number;
	int					  n;
	OutboxEndpoint		**members; /* the first is the one whose turn it is */
	int					  nwanted;
	Wanted				 *wanted;
} Page;

static OutboxCursor *
place_of(const Page *page, OutboxEndpoint *ep)
{
	return page->how->turn == OUTBOX_TURN_COUNT ? &ep->feed->counter : &ep->feed->cursor;
}

/* Behind which row the cursor is, if it reads to this tick. */
static int64
last_seq_of(const OutboxCursor *c, const OutboxTick *tick)
{
	int64 last_seq = c->reading ? c->last_seq : 0;

	return outbox_tick_has_late(tick, c->read) ? last_seq :
												 Max(last_seq, c->read->seq_low);
}

/*
 * True if a page that is read from 'leader' on has all the rows that a reader at 'c'
 * lacks up to the page's end.  A later 'read' sees all that an earlier one sees, so the
 * reader of the later one lacks no row that the other one has read.
 *
 * What is read together gets its place by the leader's 'read' (window.c).  With an earlier
 * one, that place must be behind all that the reader has had, or it would get it again.
 */
static bool
has_place_in(const OutboxCursor *c, const OutboxCursor *leader, const OutboxTick *tick)
{
	int64 last_seq = last_seq_of(c, tick);

	if (leader->read->number == 0 || c->read->number < leader->read->number)
		return false;
	if (c->read->number > leader->read->number && last_seq < c->read->seq_high)
		return false;
	if (c->reading ? c->reading->number != tick->number : c->read->number >= tick->number)
		return false;
	return last_seq >= last_seq_of(leader, tick);
}

static void
offer(Page *page, OutboxEndpoint *ep)
{
	const OutboxTogether *how = page->how;
	OutboxEndpoint		 *leader = page->members[0];
	OutboxCursor		 *place;

	if (ep == leader || ep->tenant != leader->tenant || !how->may_join(ep, how->now))
		return;
	place = place_of(page, ep);
	if (!has_place_in(place, place_of(page, leader), how->tick))
		return;
	outbox_cursor_set(place, place->read, how->tick, last_seq_of(place, how->tick));
	page->members[page->n++] = ep;
}

static void
offer_to_fellow(void *arg, OutboxEndpoint *ep)
{
	Page *page = arg;

	if (ep->lists->in_turn[page->how->turn] && page->n < MEMBERS_MAX)
		offer(page, ep);
}

/* Looks through those that wait or through the tenant's endpoints, whichever are fewer. */
static void
gather(Page *page, OutboxEndpoint *leader)
{
	OutboxTurn turn = page->how->turn;

	page->members[page->n++] = leader;
	if (leader->tenant && leader->tenant->nendpoints < outbox_loop.turns[turn])
		outbox_subscribers_of_tenant(leader->tenant, offer_to_fellow, page);
	else
	{
		OutboxEndpoint *ep = outbox_turn_first(turn);

		for (int asked = 0; ep && asked < MEMBERS_MAX; asked++)
		{
			offer(page, ep);
			ep = outbox_turn_next(turn, ep);
		}
	}
	for (int i = 0; i < page->n; i++)
		page->members[i]->feed->page = page->number;
}

/* ------------------------------------------------------------- the rows */

static void
consider(Page *page, OutboxEndpoint *ep, OutboxRow *row)
{
	OutboxFilterResult result = OUTBOX_FILTER_YES;

	if (ep->feed->page != page->number || outbox_row_is_covered(row, place_of(page, ep)))
		return;
	outbox_step_blame(ep->id);
	if (!outbox_row_forgotten(row))
		result = outbox_passes(ep, row);
	if (result != OUTBOX_FILTER_NO)
		page->wanted[page->nwanted++] =
			(Wanted){ep, result, outbox_parked_is_cancelled(ep, outbox_row_seq(row))};
}

/* Nothing here can throw an error. */
static void
count(Page *page, OutboxRow *row)
{
	for (int i = 0; i < page->nwanted; i++)
	{
		OutboxEndpoint *ep = page->wanted[i].ep;

		if (!page->wanted[i].cancelled && !outbox_row_forgotten(row))
			outbox_head_count(ep, row);
		ep->feed->counter.last_seq = outbox_row_seq(row);
	}
}

/* Looks through the members or through the topic's subscribers, whichever are fewer. */
static void *
wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	Page			  *page = arg;
	OutboxSubscribers *s = page->n == 1 ? NULL : outbox_subscribers_of(topic, len, row);

	page->nwanted = 0;
	if (s && s->n < page->n)
	{
		for (int i = 0; i < s->n; i++)
			consider(page, s->endpoints[i], row);
	}
	else
	{
		for (int i = 0; i < page->n; i++)
			if (outbox_subscribes(page->members[i], topic, len, row))
				consider(page, page->members[i], row);
	}
	outbox_step_blame(page->members[0]->id);
	if (page->how->turn == OUTBOX_TURN_COUNT)
	{
		count(page, row);
		return NULL;
	}
	return page->nwanted > 0 ? page : NULL;
}

/*
 * The leader always has room, because the page has no more rows than its window.  Another
 * one that has none leaves the page before this event.
 */
static void
takes(void *arg, void *wanted, OutboxEvent *event)
{
	Page *page = arg;

	(void) wanted;
	for (int i = 0; i < page->nwanted; i++)
	{
		const Wanted   *w = &page->wanted[i];
		OutboxEndpoint *ep = w->ep;
		int64			last_seq = event->seq;

		if ((ep != page->members[0] && !outbox_window_may_push(ep)) ||
			!outbox_window_push(ep, event, w->filter, w->cancelled))
		{
			ep->feed->page = 0;
			last_seq--;
		}
		ep->feed->cursor.last_seq = Max(ep->feed->cursor.last_seq, last_seq);
		ep->place.dirty = true;
		outbox_busy_add(ep);
	}
}

int
outbox_together_read(OutboxEndpoint *leader, const OutboxTogether *how, XLogRecPtr *lsn)
{
	static uint64  number;
	Page		   page = {.how = how, .number = ++number};
	OutboxLogQuery reader = {.want = wants,
							 .take = takes,
							 .arg = &page,
							 .max_rows = how->max_rows,
							 .max_bytes = how->max_bytes,
							 .tenant = outbox_tenant_name(leader->tenant)};
	OutboxCursor  *place = place_of(&page, leader);
	int			   rows;

	page.members = palloc(sizeof(OutboxEndpoint *) *
						  (Min(MEMBERS_MAX, outbox_loop.turns[how->turn]) + 1));
	gather(&page, leader);
	page.wanted = palloc(sizeof(Wanted) * page.n);
	rows = outbox_log_read(place, how->tick, &reader, lsn);
	for (int i = 1; i < page.n; i++)
	{
		OutboxEndpoint *ep = page.members[i];
		OutboxCursor   *c = place_of(&page, ep);

		if (ep->feed->page != page.number)
			continue;
		if (place->reading)
			c->last_seq = Max(c->last_seq, place->last_seq);
		else
		{
			outbox_cursor_set(c, place->read, NULL, 0);
			how->ended(ep);
		}
	}
	pfree(page.members);
	pfree(page.wanted);
	return rows;
}
