/*
 * together.c
 *	  Owns pages of the log that are read for several endpoints that are behind.
 *
 * When many endpoints without a tenant were paused, or a receiver of all of them was gone,
 * they are to read the same rows.  So what is read is offered to all that wait for their
 * turn, each from its own place on (README.md, "Endpoints that are behind").  The endpoints
 * of one tenant read together in the same way.
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/loop.h"
#include "worker/together.h"

/* Pages begin once in so many times at the place of the one whose turn it is. */
#define FROM_FIRST 4

/* Who wants the current event, and what became of it in the filter. */
typedef struct Wanted
{
	OutboxEndpoint	  *ep;
	OutboxFilterResult filter;
	bool			   cancelled;
} Wanted;

typedef struct Pages
{
	const OutboxTogether *how;
	uint64				  number;
	OutboxEndpoint		 *leader;	/* from its place on they are read ... */
	OutboxTick			 *tick;		/* ... up to this tick */
	OutboxEndpoint		 *rearmost; /* of those that wait (NULL: there is one) */
	OutboxEndpoint		 *amid;		/* of those in a tick, the rearmost (NULL: none) */
	int					  n;
	OutboxEndpoint		**members; /* all that wait, then those that join */
	int					  nwanted;
	Wanted				 *wanted;
} Pages;

static OutboxCursor *
place_of(const OutboxTogether *how, OutboxEndpoint *ep)
{
	return how->turn == OUTBOX_TURN_COUNT ? &ep->feed->counter : &ep->feed->cursor;
}

/* ---------------------------------------------------------- who reads together */

static bool
same_tick(const OutboxTick *a, const OutboxTick *b)
{
	return a == b || (a->number != 0 && a->number == b->number);
}

/*
 * True if a reader at this cursor may read up to 'tick'.  One that is within another tick
 * may go over to a later one if the later one adds nothing before its place.  That would be
 * an event of a transaction that the other one knows as running.
 */
static bool
may_read_to(const OutboxCursor *c, const OutboxTick *tick)
{
	if (c->reading == NULL)
		return !same_tick(tick, c->read) && outbox_tick_reaches(tick, c->read);
	return same_tick(tick, c->reading) ||
		(outbox_tick_reaches(tick, c->reading) && c->last_seq <= c->reading->seq_low &&
		 !outbox_tick_has_late(tick, c->reading));
}

/* Behind which row the cursor is, if it reads up to this tick. */
static int64
last_seq_of(const OutboxCursor *c, const OutboxTick *tick)
{
	int64 last_seq = c->reading ? c->last_seq : 0;

	if (last_seq >= c->read->seq_low || outbox_tick_has_late(tick, c->read))
		return last_seq;
	return c->read->seq_low;
}

/*
 * True if pages that are read from 'leader' on have all the rows that a reader at 'c' lacks
 * up to where they end.  A later 'read' sees all that an earlier one sees, so the reader of
 * the later one lacks no row that the leader has read.
 */
static bool
has_place_in(const OutboxCursor *c, const OutboxCursor *leader, const OutboxTick *tick)
{
	return may_read_to(c, tick) &&
		(c->read == leader->read || outbox_tick_reaches(c->read, leader->read)) &&
		last_seq_of(c, tick) >= last_seq_of(leader, tick);
}

static bool
may_take_from(const Pages *pages, OutboxEndpoint *ep, const OutboxTick *read)
{
	return pages->how->turn == OUTBOX_TURN_COUNT ||
		outbox_window_takes_from(ep, read, pages->tick);
}

/* About where in the log it is. */
static int64
near_seq(const OutboxCursor *c)
{
	return Max(c->read->seq_low, c->reading ? c->last_seq : 0);
}

static bool
is_before(const OutboxTogether *how, OutboxEndpoint *ep, OutboxEndpoint *other)
{
	return other == NULL || near_seq(place_of(how, ep)) < near_seq(place_of(how, other));
}

static void
consider_waiting(void *arg, OutboxEndpoint *ep)
{
	Pages				 *pages = arg;
	const OutboxTogether *how = pages->how;

	if (!ep->lists->in_turn[how->turn] || ep->tenant != how->first->tenant ||
		(ep != how->first && !how->may_join(ep, how->now)))
		return;
	if (is_before(how, ep, pages->rearmost))
		pages->rearmost = ep;
	if (place_of(how, ep)->reading && is_before(how, ep, pages->amid))
		pages->amid = ep;
	pages->members[pages->n++] = ep;
}

/* Looks through those that wait or through the tenant's endpoints, whichever are fewer. */
static void
find_waiting(Pages *pages)
{
	OutboxTurn	  turn = pages->how->turn;
	OutboxTenant *tenant = pages->how->first->tenant;

	if (tenant && tenant->nendpoints < outbox_loop.turns[turn])
		outbox_subscribers_of_tenant(tenant, consider_waiting, pages);
	else
		for (OutboxEndpoint *ep = outbox_turn_first(turn); ep;
			 ep = outbox_turn_next(turn, ep))
			consider_waiting(pages, ep);
}

/*
 * Returns up to which tick the leader reads.  Those that begin one begin the same one, so
 * that they can join one another later.
 */
static OutboxTick *
choose_tick(const Pages *pages)
{
	const OutboxTogether *how = pages->how;
	bool				  ahead = how->turn == OUTBOX_TURN_READ && how->first->tenant;
	const OutboxCursor	 *c = place_of(how, pages->leader);
	OutboxTick			 *tick = NULL;

	if (c->reading == NULL && pages->amid)
		tick = outbox_head_target(place_of(how, pages->amid), ahead);
	if (tick == NULL || !may_read_to(c, tick))
		tick = outbox_head_target(c, ahead);
	return tick;
}

/*
 * Where the pages begin: at the leader's place, and with the earliest 'read' of those that
 * have the same place.
 */
static void
begin_at(Pages *pages, OutboxCursor *from)
{
	OutboxCursor *leader = place_of(pages->how, pages->leader);
	int64		  last_seq;

	outbox_cursor_copy(from, leader);
	if (pages->n == 1)
		return;
	last_seq = last_seq_of(leader, pages->tick);
	outbox_cursor_set(from, leader->read, pages->tick, last_seq);
	for (int i = 0; i < pages->n; i++)
	{
		const OutboxCursor *c = place_of(pages->how, pages->members[i]);

		if (c->read != from->read && may_read_to(c, pages->tick) &&
			last_seq_of(c, pages->tick) == last_seq &&
			outbox_tick_reaches(from->read, c->read) &&
			may_take_from(pages, pages->leader, c->read))
			outbox_cursor_set(from, c->read, pages->tick, last_seq);
	}
}

/* Leaves those of the members that can read with the leader, and the leader. */
static void
join(Pages *pages, const OutboxCursor *from)
{
	OutboxTick *tick = pages->tick;
	int			n = 0;

	for (int i = 0; i < pages->n; i++)
	{
		OutboxEndpoint *ep = pages->members[i];
		OutboxCursor   *c = place_of(pages->how, ep);

		if (ep != pages->leader &&
			(!has_place_in(c, from, tick) || !may_take_from(pages, ep, from->read)))
			continue;
		if (c->reading != tick)
			outbox_cursor_set(c, c->read, tick, last_seq_of(c, tick));
		ep->feed->page = pages->number;
		pages->members[n++] = ep;
	}
	pages->n = n;
}

/* ------------------------------------------------------------- the rows */

static void
consider(Pages *pages, OutboxEndpoint *ep, OutboxRow *row)
{
	OutboxFilterResult result = OUTBOX_FILTER_YES;

	if (ep->feed->page != pages->number ||
		outbox_row_is_covered(row, place_of(pages->how, ep)))
		return;
	outbox_step_blame(ep->id);
	if (!outbox_row_forgotten(row))
		result = outbox_passes(ep, row);
	if (result != OUTBOX_FILTER_NO)
		pages->wanted[pages->nwanted++] =
			(Wanted){ep, result, outbox_parked_is_cancelled(ep, outbox_row_seq(row))};
}

/* Nothing here can throw an error. */
static void
count(Pages *pages, OutboxRow *row)
{
	for (int i = 0; i < pages->nwanted; i++)
	{
		OutboxEndpoint *ep = pages->wanted[i].ep;

		if (!pages->wanted[i].cancelled && !outbox_row_forgotten(row))
			outbox_head_count(ep, row);
		ep->feed->counter.last_seq = outbox_row_seq(row);
	}
}

/* Looks through the members or through the topic's subscribers, whichever are fewer. */
static void *
wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	Pages			  *pages = arg;
	OutboxSubscribers *s = pages->n == 1 ? NULL : outbox_subscribers_of(topic, len, row);

	pages->nwanted = 0;
	if (s && s->n < pages->n)
	{
		for (int i = 0; i < s->n; i++)
			consider(pages, s->endpoints[i], row);
	}
	else
	{
		for (int i = 0; i < pages->n; i++)
			if (outbox_subscribes(pages->members[i], topic, len, row))
				consider(pages, pages->members[i], row);
	}
	outbox_step_blame(pages->leader->id);
	if (pages->how->turn == OUTBOX_TURN_COUNT)
	{
		count(pages, row);
		return NULL;
	}
	return pages->nwanted > 0 ? pages : NULL;
}

/* One that has no room leaves the pages before this event. */
static void
takes(void *arg, void *wanted, OutboxEvent *event)
{
	Pages *pages = arg;

	(void) wanted;
	for (int i = 0; i < pages->nwanted; i++)
	{
		const Wanted   *w = &pages->wanted[i];
		OutboxEndpoint *ep = w->ep;
		int64			last_seq = event->seq;

		if ((ep != pages->leader && !outbox_window_may_push(ep)) ||
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

/*
 * Begins at the place of the one whose turn it is, or mostly at the rearmost place.  So each
 * gets on, and those that are behind catch up with the others.  As many rows are read
 * as endpoints were asked, so that asking them costs no more than reading.
 */
int
outbox_together_read(const OutboxTogether *how, XLogRecPtr *lsn)
{
	static uint64		number;
	static uint32		turn[OUTBOX_TURNS];
	static OutboxCursor place;
	Pages				pages = {.how = how, .number = ++number};
	OutboxLogQuery		reader = {.want = wants,
								  .take = takes,
								  .arg = &pages,
								  .max_rows = how->max_rows,
								  .max_bytes = OUTBOX_PAGE_BYTES,
								  .tenant = outbox_tenant_name(how->first->tenant)};
	int					waiting;
	int					cost = 0;

	pages.members = palloc_extended(sizeof(OutboxEndpoint *) *
										outbox_loop.turns[how->turn],
									MCXT_ALLOC_HUGE);
	find_waiting(&pages);
	waiting = pages.n;
	pages.leader = turn[how->turn]++ % FROM_FIRST == 0 ? how->first : pages.rearmost;
	outbox_step_blame(pages.leader->id);
	pages.tick = choose_tick(&pages);
	if (pages.tick)
	{
		begin_at(&pages, &place);
		join(&pages, &place);
	}
	else
		pages.n = 0;
	pages.wanted = palloc_extended(sizeof(Wanted) * Max(pages.n, 1), MCXT_ALLOC_HUGE);
	while (pages.tick)
	{
		if (!outbox_memory_fits(0))
			reader.max_bytes = 1;
		cost += outbox_log_read(&place, pages.tick, &reader, lsn) + OUTBOX_PAGE_COST;
		if (place.reading == NULL || cost >= waiting ||
			pages.leader->feed->page != number ||
			!how->may_join(pages.leader, how->now) || outbox_head_step_is_over())
			break;
	}
	for (int i = 0; i < pages.n; i++)
	{
		OutboxEndpoint *ep = pages.members[i];
		OutboxCursor   *c = place_of(how, ep);

		if (ep->feed->page != number)
			continue;
		if (place.reading)
			c->last_seq = Max(c->last_seq, place.last_seq);
		else
		{
			outbox_cursor_set(c, place.read, NULL, 0);
			if (ep != pages.leader)
				how->ended(ep);
		}
	}
	how->ended(pages.leader);
	outbox_turn_last(how->turn, pages.leader); /* it is to be in the next page as well */
	pfree(pages.members);
	pfree(pages.wanted);
	return Max(cost, OUTBOX_PAGE_COST);
}
