/*
 * laggards.c
 *	  Owns how the log is read for endpoints that are behind its head, and for backlogs
 *	  that are not counted.
 *
 * Each event is offered to all that wait, each from its own place on (README.md).
 */
#include "base/outbox.h"

#include "base/memory.h"
#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/judge.h"
#include "worker/laggards.h"
#include "worker/loop.h"
#include "worker/slots.h"

#define PAGE_COST 32 /* rows: a page without one costs as much */

/* Pages begin once in so many times at the place of the endpoint whose turn it is. */
#define FROM_FIRST 4

/* Rows of a page that is read although memory is short. */
#define SHORT_PAGE_ROWS 128

/* Time that is waited after such a page for each of its rows, at most, in µs. */
#define USEC_FOR_ROW 100

/* A page pays if one event was taken for so many of its rows. */
#define PAYS 8

/* One of the two ways to read for endpoints that are behind. */
typedef struct Reader
{
	OutboxTurn turn;	  /* OUTBOX_TURN_READ, or OUTBOX_TURN_COUNT: it only counts */
	OutboxTurn last;	  /* of the lists whose endpoints can join */
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
	int				 taken; /* events */
	OutboxLogQuery	*query;
	size_t			 spares; /* memory that the page leaves free */
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

static void
has_read(OutboxEndpoint *ep)
{
	OutboxFeed *feed = ep->feed;

	if (outbox_head_reached(&feed->cursor))
	{
		feed->backlog = feed->window_count - feed->ncancelled;
		outbox_cursor_clear(&feed->cursor);
		outbox_cursor_clear(&feed->counter);
	}
	ep->place.dirty = true;
	outbox_busy_add(ep);
}

/* A filter is not evaluated twice where its endpoint can be read for. */
static bool
wants_count(OutboxEndpoint *ep, TimestampTz now)
{
	return !outbox_is_counted(ep) && !ep->member.dropped && !ep->member.recreate &&
		!(ep->config.filter && outbox_window_wants_events(ep, now)) &&
		!outbox_step_held(OUTBOX_STEP_READ, ep->id);
}

static void
has_counted(OutboxEndpoint *ep)
{
	if (outbox_head_reached(&ep->feed->counter))
		outbox_cursor_clear(&ep->feed->counter);
	outbox_busy_add(ep); /* to publish it */
}

static Reader delivers = {.turn = OUTBOX_TURN_READ,
						  .last = OUTBOX_TURN_ALONG,
						  .place = offsetof(OutboxFeed, cursor),
						  .page_rows = OUTBOX_PAGE_ROWS,
						  .step_rows = 2 * OUTBOX_PAGE_ROWS,
						  .wants = outbox_window_wants_events,
						  .ended = has_read};
static Reader counts = {.turn = OUTBOX_TURN_COUNT,
						.last = OUTBOX_TURN_COUNT,
						.place = offsetof(OutboxFeed, counter),
						.page_rows = 2000,
						.step_rows = 2000,
						.wants = wants_count,
						.ended = has_counted};

/* ------------------------------------------------------------- whose turn it is */

/* When the endpoint that has waited longest is read for, wherever it is. */
static TimestampTz read_at;

static TimestampTz stuck_at; /* the same, if memory has been short for a second */

/* When less than half of the memory was used the last time. */
static TimestampTz ahead_at;

/*
 * Returns the thing for which the endpoint has to wait to be read for: its turn, memory,
 * pages for others, the head, or time for its filter.  OUTBOX_TURNS: it does not want to be read for.
 */
static OutboxTurn
turn_of(const Reader *r, OutboxEndpoint *ep, TimestampTz now)
{
	if (!r->wants(ep, now))
		return OUTBOX_TURNS;
	if (outbox_head_reached(place_of(r, ep)))
		return r->turn;
	if (target_of(r, ep) == NULL)
		return OUTBOX_TURN_AHEAD;
	if (outbox_judge_later(ep))
		return OUTBOX_TURN_JUDGE;
	if (r == &counts || outbox_window_leads(ep))
		return r->turn;
	return outbox_window_has_enough(ep) ? OUTBOX_TURN_ALONG : OUTBOX_TURN_MEMORY;
}

/*
 * Puts the endpoint on the list of the thing that it waits for, and returns it.  A batch
 * waits for events that its endpoint may read, until that has to wait for something else.
 */
static OutboxTurn
take_turn(const Reader *r, OutboxEndpoint *ep, TimestampTz now)
{
	OutboxTurn turn = turn_of(r, ep, now);

	if ((turn == OUTBOX_TURN_AHEAD || turn == OUTBOX_TURN_JUDGE) &&
		ep->queue->nready > 0 &&
		(outbox_is_listed(&ep->lists->turn_node[r->turn]) ||
		 !outbox_is_listed(&ep->lists->turn_node[turn])))
		outbox_busy_add(ep);
	for (OutboxTurn other = r->turn; other <= r->last; other++)
		if (other != turn)
			outbox_turn_remove(other, ep);
	if (turn != OUTBOX_TURNS)
		outbox_turn_add(turn, ep);
	return turn;
}

void
outbox_laggards_take_turns(OutboxEndpoint *ep, TimestampTz now)
{
	take_turn(&delivers, ep, now);
	take_turn(&counts, ep, now);
}

/*
 * Returns the endpoint that a page can be read for, and has waited longest.  The endpoints
 * before it leave the list: they have reached the head, or wait for something else.
 */
static OutboxEndpoint *
next_of(const Reader *r, OutboxTurn list, TimestampTz now)
{
	OutboxEndpoint *ep;

	while ((ep = outbox_turn_first(list)) != NULL)
	{
		OutboxTurn turn = take_turn(r, ep, now);

		if (turn == r->turn && target_of(r, ep))
			break;
		if (turn == r->turn)
		{
			outbox_turn_remove(turn, ep);
			r->ended(ep);
		}
		else if (turn != OUTBOX_TURN_JUDGE)
			outbox_busy_add(ep);
	}
	return ep;
}

/*
 * Returns when a page is read for an endpoint that has nothing, although memory is short.
 * If it has been for a second, the others may be slow, or not send at all.
 */
static TimestampTz
due_at(void)
{
	return outbox_slots_in_flight() < outbox_loop.turns[OUTBOX_TURN_READ] ?
		Min(read_at, ahead_at + USECS_PER_SEC) :
		Min(read_at, Max(stuck_at, ahead_at + USECS_PER_SEC));
}

/*
 * Returns the endpoint that has waited longest, of all that a page may be read for.
 * While memory is short, endpoints that have nothing wait for the time at which one of
 * them is read for.
 */
static OutboxEndpoint *
next_in_turn(const Reader *r, TimestampTz now)
{
	OutboxEndpoint *ep = next_of(r, r->turn, now);

	if (r == &counts)
		return ep;
	if (outbox_memory_is_short())
		return now >= due_at() ? ep : NULL;
	ahead_at = now;
	return ep ? ep : next_of(r, OUTBOX_TURN_MEMORY, now);
}

/* ---------------------------------------------------------- who reads together */

static bool
may_take_from(const Pages *pages, OutboxEndpoint *ep, const OutboxTick *read)
{
	return pages->reader->turn == OUTBOX_TURN_COUNT ||
		outbox_window_takes_from(ep, read, pages->tick);
}

static bool
is_before(const Reader *r, OutboxEndpoint *ep, OutboxEndpoint *other)
{
	return other == NULL ||
		outbox_cursor_near(place_of(r, ep)) < outbox_cursor_near(place_of(r, other));
}

static int
count_waiting(const Reader *r)
{
	int n = 0;

	for (OutboxTurn turn = r->turn; turn <= r->last; turn++)
		n += outbox_loop.turns[turn];
	return n;
}

static void
consider_waiting(void *arg, OutboxEndpoint *ep)
{
	Pages		 *pages = arg;
	const Reader *r = pages->reader;
	OutboxTurn	  turn = turn_of(r, ep, pages->now);

	if (ep->tenant != pages->first->tenant || turn > r->last ||
		(turn != r->turn && !outbox_window_may_push(ep)))
		return;
	if (turn == r->turn && is_before(r, ep, pages->rearmost))
		pages->rearmost = ep;
	if (place_of(r, ep)->reading && is_before(r, ep, pages->amid))
		pages->amid = ep;
	pages->members[pages->n++] = ep;
}

static void
consider_of_tenant(void *arg, OutboxEndpoint *ep)
{
	const Reader *r = ((Pages *) arg)->reader;

	for (OutboxTurn turn = r->turn; turn <= r->last; turn++)
		if (outbox_is_listed(&ep->lists->turn_node[turn]))
			consider_waiting(arg, ep);
}

/* Looks through the waiting endpoints or through the tenant's, whichever are fewer. */
static void
find_waiting(Pages *pages)
{
	const Reader *r = pages->reader;
	OutboxTenant *tenant = pages->first->tenant;

	if (tenant && tenant->nendpoints < count_waiting(r))
	{
		outbox_subscribers_of_tenant(tenant, consider_of_tenant, pages);
		return;
	}
	for (OutboxTurn turn = r->turn; turn <= r->last; turn++)
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
	if (tick == NULL || !outbox_cursor_may_read_to(c, tick))
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
	last_seq = outbox_cursor_start(leader, pages->tick);
	outbox_cursor_set(from, leader->read, pages->tick, last_seq);
	for (int i = 0; i < pages->n; i++)
	{
		const OutboxCursor *c = place_of(pages->reader, pages->members[i]);

		if (c->read != from->read && outbox_cursor_may_read_to(c, pages->tick) &&
			outbox_cursor_start(c, pages->tick) == last_seq &&
			outbox_tick_reaches(from->read, c->read) &&
			may_take_from(pages, pages->leader, c->read))
			outbox_cursor_set(from, c->read, pages->tick, last_seq);
	}
}

/*
 * While memory is short, an endpoint that has events gets no more from other places.  It
 * does from its own, because endpoints that are at one place are to stay together.
 */
static bool
spares_memory(const Pages *pages, const OutboxEndpoint *ep)
{
	return pages->reader == &delivers && ep->feed->window_count > 0 &&
		outbox_memory_is_short();
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
			(!outbox_cursor_has_place_in(c, from, tick) ||
			 !may_take_from(pages, ep, from->read) ||
			 (spares_memory(pages, ep) && outbox_cursor_start(c, tick) > from->last_seq)))
			continue;
		outbox_cursor_begin(c, tick);
		ep->feed->page = pages->number;
		pages->members[n++] = ep;
	}
	pages->n = n;
}

/* ------------------------------------------------------------- the rows */

/* An endpoint whose filter has to wait leaves the pages, and they end. */
static void
consider(Pages *pages, OutboxEndpoint *ep, OutboxRow *row)
{
	OutboxFilterResult result;
	OutboxCursor	  *c = place_of(pages->reader, ep);

	if (ep->feed->page != pages->number || outbox_row_is_covered(row, c))
		return;
	outbox_step_blame(ep->id);
	result = outbox_row_forgotten(row) ? OUTBOX_FILTER_YES : outbox_judge(ep, row);
	if (result == OUTBOX_FILTER_LATER)
	{
		ep->feed->page = 0;
		c->last_seq = Max(c->last_seq, outbox_row_seq(row) - 1);
		pages->query->max_bytes = 0;
		return;
	}
	if (outbox_judge_later(ep))
		pages->query->max_bytes = 0; /* the page ends with this event */
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
			outbox_head_count(ep, outbox_row_created_at(row));
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

/* One that has no room leaves before this event.  If memory ends, the page does. */
static void
takes(void *arg, void *wanted, OutboxEvent *event)
{
	Pages *pages = arg;

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
		else
			pages->taken++;
		ep->feed->cursor.last_seq = Max(ep->feed->cursor.last_seq, last_seq);
		ep->place.dirty = true;
		outbox_busy_add(ep);
	}
	if (!outbox_memory_fits(pages->spares))
		pages->query->max_bytes = 1;
}

/* Notes when the next endpoint has to be read for, if each is to be in a second. */
static void
set_deadline(const Pages *pages, int cost)
{
	int n = 0;

	if (PAYS * pages->taken >= cost && outbox_memory_fits(outbox_memory_limit() / 4))
		return;
	for (int i = 0; i < pages->n; i++)
		n += outbox_is_listed(&pages->members[i]->lists->turn_node[OUTBOX_TURN_READ]);
	read_at = pages->now +
		USECS_PER_SEC * n / Max(outbox_loop.turns[OUTBOX_TURN_READ], 1);
	stuck_at = Min(read_at, pages->now + USEC_FOR_ROW * cost);
}

/* Returns the endpoint at whose place pages begin. */
static OutboxEndpoint *
choose_leader(Reader *r, const Pages *pages)
{
	if (r->nreads++ % FROM_FIRST == 0 ||
		(r == &delivers && (pages->now >= read_at || outbox_memory_is_short())))
		return pages->first;
	return pages->rearmost;
}

/*
 * Reads pages for endpoints that wait for their turn, and advances their cursors.  Returns
 * the cost in rows.
 *
 * They begin at the rearmost place, or sometimes at the place of the endpoint that has
 * waited longest.  So endpoints that are behind catch up with the others, and each gets
 * on.  As many rows are read as endpoints were asked, or for as long as that took: asking
 * costs no more than reading.
 */
static int
read_pages(Reader *r, OutboxEndpoint *first, TimestampTz now, XLogRecPtr *lsn)
{
	static OutboxCursor place;
	uint64				number = ++outbox_loop.page;
	Pages		   pages = {.reader = r, .number = number, .now = now, .first = first};
	OutboxLogQuery query = {.want = wants,
							.take = takes,
							.arg = &pages,
							.max_rows = r->page_rows,
							.max_bytes = OUTBOX_PAGE_BYTES,
							.tenant = outbox_tenant_name(first->tenant)};
	TimestampTz	   begun = GetCurrentTimestamp();
	int			   waiting, cost = 0;

	pages.members = palloc_extended(sizeof(OutboxEndpoint *) * count_waiting(r),
									MCXT_ALLOC_HUGE);
	find_waiting(&pages);
	waiting = pages.n;
	pages.query = &query;
	pages.spares = outbox_memory_limit() / 2;
	if (r == &delivers && outbox_memory_is_short())
	{
		query.max_rows = SHORT_PAGE_ROWS;
		pages.spares = 0;
	}
	pages.leader = choose_leader(r, &pages);
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
	outbox_head_step_extend(begun);
	while (pages.tick)
	{
		if (!outbox_memory_fits(0))
			query.max_bytes = 1;
		cost += outbox_log_read(&place, pages.tick, &query, lsn) + PAGE_COST;
		if (place.reading == NULL || cost >= waiting || query.max_bytes == 0 ||
			pages.leader->feed->page != number ||
			turn_of(r, pages.leader, now) != r->turn || outbox_head_step_is_over())
			break;
	}
	if (r == &delivers && pages.leader == first)
		set_deadline(&pages, cost);
	for (int i = 0; i < pages.n; i++)
	{
		OutboxEndpoint *ep = pages.members[i];

		if (ep->feed->page == number)
		{
			outbox_cursor_follow(place_of(r, ep), &place);
			if (!place.reading && ep != pages.leader)
				r->ended(ep);
		}
		if (ep != pages.leader)
			take_turn(r, ep, now);
		outbox_turn_last(r->turn, ep);
	}
	r->ended(pages.leader);
	take_turn(r, pages.leader, now);
	outbox_turn_last(r->turn, pages.leader);
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

TimestampTz
outbox_laggards_next_time(TimestampTz now)
{
	TimestampTz at = due_at();

	return outbox_memory_is_short() && outbox_loop.turns[OUTBOX_TURN_READ] > 0 &&
			at > now ?
		at :
		DT_NOEND;
}

bool
outbox_laggards_have_work(TimestampTz now)
{
	return next_in_turn(&delivers, now) != NULL || next_in_turn(&counts, now) != NULL;
}
