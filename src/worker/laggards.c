/*
 * laggards.c
 *	  Owns how the log is read for endpoints that are behind its head, and for backlogs
 *	  that are not counted.
 *
 * An endpoint that is catching up reads from its place on, until it can be attached to
 * the head.  When many endpoints without a tenant were paused, or a receiver of all of
 * them was gone, they are to read the same rows.  So each event is offered to all that
 * wait for their turn, each from its own place on (README.md, "Endpoints that are
 * behind").  The endpoints of one tenant read together in the same way.
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/status.h"
#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/laggards.h"
#include "worker/loop.h"

/* A page without a row costs as much as this many rows. */
#define PAGE_COST 32

/* Pages begin once in so many times at the place of the endpoint whose turn it is. */
#define FROM_FIRST 4

/* Endpoints of which one round asks whether they can give up memory. */
#define GIVE_UP_AT_ONCE 256

/* One of the two ways to read for endpoints that are behind. */
typedef struct Reader
{
	OutboxTurn turn;	  /* OUTBOX_TURN_READ, or OUTBOX_TURN_COUNT: it only counts */
	size_t	   place;	  /* of the cursor in OutboxFeed */
	int		   page_rows; /* of a page */
	int		   step_rows; /* of a step */
	uint32	   nreads;	  /* how often it has read */
	/* True if the endpoint has to be read for, and that is not held up. */
	bool (*wants)(OutboxEndpoint *ep, TimestampTz now);
	/* Is called for each that has come to the end of a tick, and for one that has not. */
	void (*ended)(OutboxEndpoint *ep);
} Reader;

/* An endpoint that wants the current event, and the result of its filter. */
typedef struct Wanted
{
	OutboxEndpoint	  *ep;
	OutboxFilterResult filter;
	bool			   cancelled;
} Wanted;

typedef struct Pages
{
	const Reader	*reader;
	uint64			 number;
	TimestampTz		 now;
	OutboxEndpoint	*first;	   /* whose turn it is */
	OutboxEndpoint	*leader;   /* from its place on they are read ... */
	OutboxTick		*tick;	   /* ... up to this tick */
	OutboxEndpoint	*rearmost; /* of the endpoints that wait (NULL: there is one) */
	OutboxEndpoint	*amid;	   /* of the endpoints in a tick, the rearmost (NULL: none) */
	int				 n;
	OutboxEndpoint **members; /* all that wait, then the endpoints that join */
	int				 nwanted;
	Wanted			*wanted;
} Pages;

static OutboxCursor *
place_of(const Reader *r, OutboxEndpoint *ep)
{
	return (OutboxCursor *) ((char *) ep->feed + r->place);
}

/* Returns up to which tick it may read for the endpoint.  NULL: there is nothing to read. */
static OutboxTick *
target_of(const Reader *r, OutboxEndpoint *ep)
{
	return outbox_head_target(place_of(r, ep), r->turn == OUTBOX_TURN_READ && ep->tenant);
}

/* ------------------------------------------------------------- the two ways */

/* Newer ticks come all the time, so it is noted at once that all of this one was read. */
static void
has_read(OutboxEndpoint *ep)
{
	OutboxFeed *feed = ep->feed;

	if (outbox_head_reached(&feed->cursor))
	{
		feed->attached = true;
		feed->counted = true;
		feed->backlog = feed->window_count - feed->ncancelled;
		outbox_cursor_clear(&feed->cursor);
		outbox_cursor_clear(&feed->counter);
	}
	else if (outbox_head_target(&feed->cursor, ep->tenant != NULL) == NULL)
	{
		outbox_turn_remove(OUTBOX_TURN_READ, ep);
		outbox_turn_add(OUTBOX_TURN_AHEAD, ep);
	}
	ep->place.dirty = true;
	outbox_busy_add(ep);
}

static bool
wants_count(OutboxEndpoint *ep, TimestampTz now)
{
	(void) now;
	return !ep->feed->counted && !ep->member.dropped && !ep->member.recreate &&
		!outbox_step_held(OUTBOX_STEP_READ, ep->id);
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

static Reader delivers = {.turn = OUTBOX_TURN_READ,
						  .place = offsetof(OutboxFeed, cursor),
						  .page_rows = OUTBOX_PAGE_ROWS,
						  .step_rows = 2 * OUTBOX_PAGE_ROWS,
						  .wants = outbox_window_wants_events,
						  .ended = has_read};
static Reader counts = {.turn = OUTBOX_TURN_COUNT,
						.place = offsetof(OutboxFeed, counter),
						.page_rows = 2000,
						.step_rows = 2000,
						.wants = wants_count,
						.ended = has_counted};

/* ------------------------------------------------------------- whose turn it is */

static bool
can_join(const Reader *r, OutboxEndpoint *ep, TimestampTz now)
{
	return r->wants(ep, now) &&
		(r->turn == OUTBOX_TURN_COUNT || outbox_window_has_memory(ep));
}

/*
 * Returns the thing for which the endpoint has to wait to be read for: its turn, memory,
 * or the head.  OUTBOX_TURNS: it does not want to be read for.
 */
static OutboxTurn
turn_of(const Reader *r, OutboxEndpoint *ep, TimestampTz now)
{
	return !r->wants(ep, now)									 ? OUTBOX_TURNS :
		!can_join(r, ep, now)									 ? OUTBOX_TURN_MEMORY :
		target_of(r, ep) || outbox_head_reached(place_of(r, ep)) ? r->turn :
																   OUTBOX_TURN_AHEAD;
}

static void
wait_for(OutboxTurn turn, OutboxEndpoint *ep)
{
	if (turn != OUTBOX_TURNS)
		outbox_turn_add(turn, ep);
}

void
outbox_laggards_take_turns(OutboxEndpoint *ep, TimestampTz now)
{
	wait_for(turn_of(&delivers, ep, now), ep);
	wait_for(turn_of(&counts, ep, now), ep);
}

/*
 * Returns the endpoint that can be read for, and has waited longest.  The endpoints
 * before it leave the list: they need no page, have reached the head, or wait for
 * something else.
 */
static OutboxEndpoint *
next_in_turn(const Reader *r, TimestampTz now)
{
	OutboxEndpoint *ep;

	while (outbox_memory_fits_ahead(0) &&
		   (ep = outbox_turn_first(OUTBOX_TURN_MEMORY)) != NULL)
	{
		outbox_turn_remove(OUTBOX_TURN_MEMORY, ep);
		outbox_turn_add(OUTBOX_TURN_READ, ep);
	}
	while ((ep = outbox_turn_first(r->turn)) != NULL)
	{
		OutboxTurn turn = turn_of(r, ep, now);

		if (turn == r->turn && target_of(r, ep))
			break;
		outbox_turn_remove(r->turn, ep);
		if (turn == r->turn)
			r->ended(ep);
		else if (turn != OUTBOX_TURNS)
		{
			outbox_turn_add(turn, ep);
			outbox_busy_add(ep); /* a batch waits no longer for events that are read */
		}
	}
	return ep;
}

/* ---------------------------------------------------------- who reads together */

static bool
same_tick(const OutboxTick *a, const OutboxTick *b)
{
	return a == b || (a->number != 0 && a->number == b->number);
}

/*
 * True if a reader at this cursor may read up to 'tick'.  A reader that is within another
 * tick may go over to a later one if the later one adds nothing before its place.  That
 * would be an event of a transaction that the other tick knows as running.
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
	return pages->reader->turn == OUTBOX_TURN_COUNT ||
		outbox_window_takes_from(ep, read, pages->tick);
}

/* About where in the log it is. */
static int64
near_seq(const OutboxCursor *c)
{
	return Max(c->read->seq_low, c->reading ? c->last_seq : 0);
}

static bool
is_before(const Reader *r, OutboxEndpoint *ep, OutboxEndpoint *other)
{
	return other == NULL || near_seq(place_of(r, ep)) < near_seq(place_of(r, other));
}

static void
consider_waiting(void *arg, OutboxEndpoint *ep)
{
	Pages		 *pages = arg;
	const Reader *r = pages->reader;

	if (!ep->lists->in_turn[r->turn] || ep->tenant != pages->first->tenant ||
		!can_join(r, ep, pages->now))
		return;
	if (is_before(r, ep, pages->rearmost))
		pages->rearmost = ep;
	if (place_of(r, ep)->reading && is_before(r, ep, pages->amid))
		pages->amid = ep;
	pages->members[pages->n++] = ep;
}

/* Looks through the waiting endpoints or through the tenant's, whichever are fewer. */
static void
find_waiting(Pages *pages)
{
	OutboxTurn	  turn = pages->reader->turn;
	OutboxTenant *tenant = pages->first->tenant;

	if (tenant && tenant->nendpoints < outbox_loop.turns[turn])
		outbox_subscribers_of_tenant(tenant, consider_waiting, pages);
	else
		for (OutboxEndpoint *ep = outbox_turn_first(turn); ep;
			 ep = outbox_turn_next(turn, ep))
			consider_waiting(pages, ep);
}

/*
 * Returns up to which tick the leader reads.  Endpoints that begin a tick begin the same
 * one, so that they can join one another later.
 */
static OutboxTick *
choose_tick(const Pages *pages)
{
	const OutboxCursor *c = place_of(pages->reader, pages->leader);
	OutboxTick		   *tick = NULL;

	if (c->reading == NULL && pages->amid)
		tick = target_of(pages->reader, pages->amid);
	if (tick == NULL || !may_read_to(c, tick))
		tick = target_of(pages->reader, pages->leader);
	return tick;
}

/*
 * Where the pages begin: at the leader's place, and with the earliest 'read' of the
 * endpoints that have the same place.
 */
static void
begin_at(Pages *pages, OutboxCursor *from)
{
	OutboxCursor *leader = place_of(pages->reader, pages->leader);
	int64		  last_seq;

	outbox_cursor_copy(from, leader);
	if (pages->n == 1)
		return;
	last_seq = last_seq_of(leader, pages->tick);
	outbox_cursor_set(from, leader->read, pages->tick, last_seq);
	for (int i = 0; i < pages->n; i++)
	{
		const OutboxCursor *c = place_of(pages->reader, pages->members[i]);

		if (c->read != from->read && may_read_to(c, pages->tick) &&
			last_seq_of(c, pages->tick) == last_seq &&
			outbox_tick_reaches(from->read, c->read) &&
			may_take_from(pages, pages->leader, c->read))
			outbox_cursor_set(from, c->read, pages->tick, last_seq);
	}
}

/* Leaves the members that can read with the leader, and the leader. */
static void
join(Pages *pages, const OutboxCursor *from)
{
	OutboxTick *tick = pages->tick;
	int			n = 0;

	for (int i = 0; i < pages->n; i++)
	{
		OutboxEndpoint *ep = pages->members[i];
		OutboxCursor   *c = place_of(pages->reader, ep);

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
		outbox_row_is_covered(row, place_of(pages->reader, ep)))
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
	if (pages->reader->turn == OUTBOX_TURN_COUNT)
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
 * Reads pages for endpoints that wait for their turn, and advances their cursors.  Returns
 * the cost in rows.
 *
 * They begin at the place of the endpoint whose turn it is, or mostly at the rearmost
 * place.  So each gets on, and endpoints that are behind catch up with the others.  As
 * many rows are read as endpoints were asked, so that asking them costs no more than
 * reading.
 */
static int
read_pages(Reader *r, OutboxEndpoint *first, TimestampTz now, XLogRecPtr *lsn)
{
	static uint64		number;
	static OutboxCursor place;
	Pages		   pages = {.reader = r, .number = ++number, .now = now, .first = first};
	OutboxLogQuery query = {.want = wants,
							.take = takes,
							.arg = &pages,
							.max_rows = r->page_rows,
							.max_bytes = OUTBOX_PAGE_BYTES,
							.tenant = outbox_tenant_name(first->tenant)};
	int			   waiting;
	int			   cost = 0;

	pages.members = palloc_extended(sizeof(OutboxEndpoint *) * outbox_loop.turns[r->turn],
									MCXT_ALLOC_HUGE);
	find_waiting(&pages);
	waiting = pages.n;
	pages.leader = r->nreads++ % FROM_FIRST == 0 ? first : pages.rearmost;
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
			query.max_bytes = 1;
		cost += outbox_log_read(&place, pages.tick, &query, lsn) + PAGE_COST;
		if (place.reading == NULL || cost >= waiting ||
			pages.leader->feed->page != number || !can_join(r, pages.leader, now) ||
			outbox_head_step_is_over())
			break;
	}
	for (int i = 0; i < pages.n; i++)
	{
		OutboxEndpoint *ep = pages.members[i];
		OutboxCursor   *c = place_of(r, ep);

		if (ep->feed->page != number)
			continue;
		if (place.reading)
			c->last_seq = Max(c->last_seq, place.last_seq);
		else
		{
			outbox_cursor_set(c, place.read, NULL, 0);
			if (ep != pages.leader)
				r->ended(ep);
		}
	}
	r->ended(pages.leader);
	outbox_turn_last(r->turn, pages.leader); /* it is to be in the next page as well */
	pfree(pages.members);
	pfree(pages.wanted);
	return Max(cost, PAGE_COST);
}

/* Reads some pages, in turn.  True: there may be more. */
static bool
read_in_turn(Reader *r, TimestampTz now, XLogRecPtr *lsn)
{
	OutboxEndpoint *ep;
	int				cost = 0;

	while ((ep = next_in_turn(r, now)) != NULL)
	{
		if (cost >= r->step_rows || (cost > 0 && outbox_head_step_is_over()))
			return true;
		cost += read_pages(r, ep, now, lsn);
	}
	return false;
}

bool
outbox_laggards_read(TimestampTz now, XLogRecPtr *lsn)
{
	bool more = read_in_turn(&delivers, now, lsn);

	return read_in_turn(&counts, now, lsn) || more;
}

bool
outbox_laggards_have_work(TimestampTz now)
{
	return next_in_turn(&delivers, now) != NULL || next_in_turn(&counts, now) != NULL;
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
		ep->place.dirty = true; /* the settle parks the waiting deliveries */
		outbox_busy_settle(ep);
	}
}
