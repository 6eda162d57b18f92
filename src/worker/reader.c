/*
 * reader.c
 *	  Owns how the log is read for endpoints.
 *
 * The head is read once for all of them.  Each event is matched against all
 * subscriptions and counted for each endpoint that wants it.  It is handed to those
 * that are attached: they have read everything before it, and have room.  An
 * endpoint that cannot keep up is detached at the event that it has no room for.
 * It is then catching up: it reads by itself from there, until it can be attached
 * again.  So the head never waits, and 10,000 idle endpoints cost one look-up per
 * event.
 */
#include "base/outbox.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/memory.h"
#include "endpoint/retries.h"
#include "endpoint/status.h"
#include "endpoint/subscribers.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "server/shares.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/loop.h"
#include "worker/reader.h"

/*
 * Rows per page, and bytes of payload after which a page ends.  A page has a query
 * of its own, so each costs as much as some hundred rows.
 */
#define PAGE_ROWS 512
#define PAGE_BYTES (256 * 1024)

/* Pages of the head per step. */
#define HEAD_PAGES 8

/*
 * Rows per step that are read for all catching-up endpoints together, and that are read
 * only to be counted.  A page without a row costs as much as this many rows.
 */
#define LAGGARD_ROWS (2 * PAGE_ROWS)
#define COUNT_ROWS 2000
#define PAGE_COST 32

/* µs after which a step begins no further page. */
#define STEP_TIME (2 * OUTBOX_PAGE_TIME)

static OutboxGotWork got_work;
static int			 noverflowed;
static TimestampTz	 step_begun;

void
outbox_reader_init(OutboxGotWork callback)
{
	got_work = callback;
}

/* ----------------------------------------------------------------- head */

/* Adds an event to the endpoint's backlog. */
static void
count_event(OutboxEndpoint *ep, const OutboxRow *row)
{
	if (ep->feed.backlog++ == ep->feed.window_count - ep->feed.ncancelled)
		ep->feed.backlog_since = outbox_row_created_at(row);
}

static void *
head_wants(void *arg, const char *name, size_t len, OutboxRow *row)
{
	OutboxSubscribers *s = outbox_subscribers_of(name, len, row);
	bool			   forgotten = outbox_row_forgotten(row);
	bool			   attached = false;
	bool			   wanted = false;

	(void) arg;
	for (int i = 0; i < s->n; i++)
	{
		OutboxEndpoint *ep = s->endpoints[i];

		s->result[i] = forgotten ? OUTBOX_FILTER_YES : outbox_passes(ep, row);
		if (s->result[i] == OUTBOX_FILTER_NO)
			continue;
		s->cancelled[i] = outbox_parked_is_cancelled(ep, outbox_row_seq(row));
		wanted = true;
		attached = attached || ep->feed.attached;
	}

	/* Counted only now, when nothing can throw an error any more. */
	for (int i = 0; i < s->n && !forgotten; i++)
		if (s->endpoints[i]->feed.counted && s->result[i] != OUTBOX_FILTER_NO &&
			!s->cancelled[i])
		{
			count_event(s->endpoints[i], row);
			got_work(s->endpoints[i]); /* at least to publish it */
		}
	if (!wanted && outbox_serves_database() && !outbox_subscribers_elsewhere(s, row))
		outbox_loop.unmatched++;
	return attached ? s : NULL;
}

static void
head_takes(void *arg, void *wanted, OutboxEvent *event)
{
	OutboxSubscribers *s = wanted;

	(void) arg;
	for (int i = 0; i < s->n; i++)
	{
		OutboxEndpoint *ep = s->endpoints[i];

		if (!ep->feed.attached || s->result[i] == OUTBOX_FILTER_NO)
			continue;
		if (!outbox_window_may_push(ep) ||
			!outbox_window_push(ep, event, s->result[i], s->cancelled[i]))
		{
			/* From this event on the endpoint reads by itself. */
			ep->feed.attached = false;
			outbox_cursor_set(&ep->feed.cursor, event->page->read, event->page->reading,
							  event->seq - 1);
		}
		got_work(ep);
	}
}

static bool
step_is_over(void)
{
	return GetCurrentTimestamp() - step_begun >= STEP_TIME;
}

/*
 * Takes a tick, and begins with it.  An event that follows a change of settings must be
 * judged by them.  The change may be there since settings were last read, so they are
 * read first, and the tick after that.  False: not yet.
 */
static bool
begin_tick(XLogRecPtr *lsn, const OutboxLogQuery *reader)
{
	OutboxTick *tick = outbox_tick_take();
	bool		begin = false;

	if (!outbox_subscribers_here() && !outbox_serves_database())
	{
		/* No endpoint here could miss anything. */
		outbox_cursor_set(&outbox_loop.head, tick, NULL, 0);
	}
	else if (!outbox_tick_same(outbox_loop.head.read, tick))
	{
		begin = !outbox_loop_reload_is_due();
		if (begin)
			outbox_log_read(&outbox_loop.head, tick, reader, lsn);
		else
			outbox_cursor_set(&outbox_loop.head, outbox_loop.head.read, tick, 0);
	}
	outbox_tick_unref(tick);
	return begin;
}

/* False: settings are to be read before anything else. */
static bool
read_head(bool news, XLogRecPtr *lsn)
{
	OutboxLogQuery reader = {.want = head_wants,
							 .take = head_takes,
							 .max_rows = PAGE_ROWS,
							 .max_bytes = PAGE_BYTES};

	if (outbox_loop.head.reading == NULL && (!news || !begin_tick(lsn, &reader)))
		return outbox_loop.head.reading == NULL;
	for (int i = 1; i < HEAD_PAGES && outbox_loop.head.reading != NULL && !step_is_over();
		 i++)
		outbox_log_read(&outbox_loop.head, outbox_loop.head.reading, &reader, lsn);
	return true;
}

/* ------------------------------------------------------------- laggards */

static void *
laggard_wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	static OutboxFilterResult result;

	if (!outbox_subscribes(arg, topic, len, row))
		return NULL;
	result = outbox_row_forgotten(row) ? OUTBOX_FILTER_YES : outbox_passes(arg, row);
	return result == OUTBOX_FILTER_NO ? NULL : &result;
}

static void
laggard_takes(void *arg, void *wanted, OutboxEvent *event)
{
	/* Never full: the page has no more rows than the window has room. */
	outbox_window_push(arg, event, *(OutboxFilterResult *) wanted,
					   outbox_parked_is_cancelled(arg, event->seq));
}

/* True if reading for this endpoint has failed and may not be tried again yet. */
static bool
is_held(const OutboxEndpoint *ep)
{
	return outbox_step_held(OUTBOX_STEP_READ, ep->id);
}

/*
 * Returns the tick up to which a cursor at 'c' may read, the newest one that the
 * head has.  NULL: there is nothing to read.  A start position has no number and
 * may be newer than the head.  Then the result is NULL too, or events from before
 * the start would be delivered.
 */
static OutboxTick *
target_for(const OutboxCursor *c)
{
	OutboxTick *tick = outbox_loop.head.reading ? outbox_loop.head.reading :
												  outbox_loop.head.read;

	if (c->reading)
		return c->reading;
	if (c->read->number == 0)
		return outbox_tick_follows(tick, c->read) ? tick : NULL;
	return tick->number > c->read->number ? tick : NULL;
}

bool
outbox_reader_at_head(const OutboxCursor *c)
{
	return c->reading == NULL && outbox_loop.head.reading == NULL &&
		(c->read->number == outbox_loop.head.read->number ||
		 outbox_tick_same(c->read, outbox_loop.head.read));
}

static void
attach_if_caught_up(OutboxEndpoint *ep)
{
	if (ep->feed.attached || !outbox_reader_at_head(&ep->feed.cursor))
		return;
	ep->feed.attached = true;
	ep->feed.counted = true;
	ep->feed.backlog = ep->feed.window_count - ep->feed.ncancelled;
	outbox_cursor_clear(&ep->feed.cursor);
	outbox_cursor_clear(&ep->feed.counter);
}

static bool
can_read_more(OutboxEndpoint *ep, TimestampTz now)
{
	return !ep->feed.attached && !ep->member.recreate &&
		outbox_window_wants_events(ep, now) && !is_held(ep) &&
		(outbox_reader_at_head(&ep->feed.cursor) || target_for(&ep->feed.cursor) != NULL);
}

/* Returns what the page has cost. */
static int
read_laggard(OutboxEndpoint *ep, XLogRecPtr *lsn)
{
	OutboxLogQuery reader = {.want = laggard_wants,
							 .take = laggard_takes,
							 .arg = ep,
							 .max_rows = Min(PAGE_ROWS,
											 OUTBOX_WINDOW - ep->feed.window_count),
							 .max_bytes = outbox_memory_fits(0) ? PAGE_BYTES : 1,
							 .tenant = ep->config.tenant};
	OutboxTick	  *target = target_for(&ep->feed.cursor);
	int			   rows = 0;

	outbox_step_blame(ep->id);
	if (target)
		rows = outbox_log_read(&ep->feed.cursor, target, &reader, lsn);
	attach_if_caught_up(ep);
	ep->place.dirty = true;
	got_work(ep);
	return PAGE_COST + rows;
}

/*
 * Returns the next endpoint that can read, and has waited longest.  Those before it wait
 * again: they lack memory, or reading for them has failed.  NULL: none of the first
 * OUTBOX_TURN_FRUITLESS can read.
 */
static OutboxEndpoint *
next_laggard(TimestampTz now)
{
	for (int i = 0; i < OUTBOX_TURN_FRUITLESS; i++)
	{
		OutboxEndpoint *ep = outbox_turn_first(OUTBOX_TURN_READ);

		if (ep == NULL)
			return NULL;
		if (can_read_more(ep, now))
			return ep;
		if (ep->feed.attached || outbox_status_is_off(ep) || ep->pace.retry_at > now)
			outbox_turn_remove(OUTBOX_TURN_READ, ep);
		else
			outbox_turn_last(OUTBOX_TURN_READ, ep);
	}
	return NULL;
}

/* Reads a few pages for catching-up endpoints, in turn.  True: there may be more. */
static bool
read_laggards(TimestampTz now, XLogRecPtr *lsn)
{
	OutboxEndpoint *ep;
	int				cost = 0;

	while ((ep = next_laggard(now)) != NULL)
	{
		if (cost >= LAGGARD_ROWS || (cost > 0 && step_is_over()))
			return true;
		cost += read_laggard(ep, lsn);
		outbox_turn_remove(OUTBOX_TURN_READ, ep); /* the round adds it again */
	}
	return false;
}

static void
overflow_takes(void *arg, void *wanted, OutboxEvent *event)
{
	(void) wanted;
	if (outbox_parked_is_cancelled(arg, event->seq))
		return;
	if (event->forgotten)
	{
		outbox_tally_count(arg, OUTBOX_COUNT_CANCELLED);
		return;
	}
	outbox_endpoint_overflow(arg, event);
	noverflowed++;
}

int
outbox_reader_overflow(OutboxEndpoint *ep)
{
	OutboxLogQuery reader = {.want = laggard_wants,
							 .take = overflow_takes,
							 .arg = ep,
							 .max_rows = PAGE_ROWS,
							 .max_bytes = PAGE_BYTES,
							 .tenant = ep->config.tenant};
	OutboxTick	  *target = target_for(&ep->feed.cursor);
	XLogRecPtr	   unused = 0;

	noverflowed = 0;
	if (target)
		outbox_log_read(&ep->feed.cursor, target, &reader, &unused);
	ep->place.dirty = true;
	got_work(ep);
	return noverflowed;
}

/* ------------------------------------------------------------- counting */

static void *
counter_wants(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	OutboxEndpoint *ep = arg;

	if (!outbox_row_forgotten(row) && outbox_subscribers_include(ep, topic, len, row) &&
		!outbox_parked_is_cancelled(ep, outbox_row_seq(row)))
		count_event(ep, row);
	return NULL;
}

/* True if a page of the log may be counted for the endpoint now. */
static bool
can_count(OutboxEndpoint *ep)
{
	return !is_held(ep) &&
		(outbox_reader_at_head(&ep->feed.counter) || target_for(&ep->feed.counter));
}

/* As next_laggard(). */
static OutboxEndpoint *
next_to_count(void)
{
	for (int i = 0; i < OUTBOX_TURN_FRUITLESS; i++)
	{
		OutboxEndpoint *ep = outbox_turn_first(OUTBOX_TURN_COUNT);

		if (ep == NULL)
			return NULL;
		if (ep->feed.counted || ep->member.dropped || ep->member.recreate)
			outbox_turn_remove(OUTBOX_TURN_COUNT, ep);
		else if (can_count(ep))
			return ep;
		else
			outbox_turn_last(OUTBOX_TURN_COUNT, ep);
	}
	return NULL;
}

/*
 * Counts backlogs in small steps, in turn.  A backlog is unknown after a restart, and
 * after a change of topics.  True: there is more to count.
 */
static bool
count_ahead(void)
{
	OutboxEndpoint *ep;
	int				cost = 0;

	while ((ep = next_to_count()) != NULL)
	{
		OutboxLogQuery reader = {.want = counter_wants,
								 .arg = ep,
								 .max_rows = COUNT_ROWS,
								 .max_bytes = PAGE_BYTES,
								 .tenant = ep->config.tenant};
		XLogRecPtr	   unused = 0;

		if (cost >= COUNT_ROWS || (cost > 0 && step_is_over()))
			return true;
		outbox_step_blame(ep->id);
		if (!outbox_reader_at_head(&ep->feed.counter))
			cost += outbox_log_read(&ep->feed.counter, target_for(&ep->feed.counter),
									&reader, &unused);
		cost += PAGE_COST;
		outbox_turn_last(OUTBOX_TURN_COUNT, ep);
		if (outbox_reader_at_head(&ep->feed.counter))
		{
			ep->feed.counted = true;
			outbox_cursor_clear(&ep->feed.counter);
		}
		got_work(ep); /* to publish it */
	}
	return false;
}

/* ----------------------------------------------------------------- step */

static void
load_due_retries(dlist_head *busy, TimestampTz now)
{
	dlist_iter iter;

	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, member.busy_node, iter.cur);
		int64			seqs[OUTBOX_RETRIES_MAX];
		int				n;

		if (ep->member.dropped || ep->member.recreate ||
			!outbox_retries_has_due(ep, now) || is_held(ep))
			continue;
		outbox_step_blame(ep->id);
		n = outbox_retries_take_due(ep, now, seqs, OUTBOX_RETRIES_MAX);
		PG_TRY();
		{
			if (n > 0)
				outbox_parked_load_retries(ep, seqs, n);
			OUTBOX_CRASH_POINT("retry.loaded");
		}
		PG_CATCH();
		{
			outbox_retries_not_loaded(ep, seqs, n);
			PG_RE_THROW();
		}
		PG_END_TRY();
		got_work(ep);
	}
}

/*
 * Reads from outbox.parked what memory lacks, and of what is not urgent one slice
 * in a step.  True: there is more of that.
 */
static bool
look_at_parked(dlist_head *busy)
{
	dlist_iter iter;
	bool	   more = false;

	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, member.busy_node, iter.cur);

		if (ep->member.dropped || ep->member.recreate || is_held(ep) ||
			!outbox_parked_wants_look(ep))
			continue;
		outbox_step_blame(ep->id);
		more = outbox_parked_look(ep, !more) || more;
		got_work(ep);
	}
	return more;
}

/*
 * True if parked followers may be loaded.  What is on 'settling' has no row yet, so
 * nothing is loaded while there is any.
 */
static bool
may_bring_followers(OutboxEndpoint *ep)
{
	return (!dlist_is_empty(&ep->queue.loading) || ep->table.unblocking) &&
		!ep->member.dropped && !ep->member.recreate && ep->queue.nsettling == 0 &&
		!outbox_step_held(OUTBOX_STEP_FOLLOWERS, ep->id);
}

bool
outbox_reader_wants_followers(dlist_head *busy)
{
	dlist_iter iter;

	dlist_foreach(iter, busy)
	{
		if (may_bring_followers(
				dlist_container(OutboxEndpoint, member.busy_node, iter.cur)))
			return true;
	}
	return false;
}

void
outbox_reader_bring_followers(dlist_head *busy)
{
	dlist_iter iter;

	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, member.busy_node, iter.cur);

		if (!may_bring_followers(ep))
			continue;
		outbox_step_blame(ep->id);
		outbox_parked_load_followers(ep);
		if (ep->table.unblocking)
		{
			ep->table.unblocked = true;
			outbox_parked_unblock(ep);
		}
		outbox_step_passed(OUTBOX_STEP_FOLLOWERS, ep->id);
	}
	outbox_step_blame(0);
}

/* If it was undone, the rows that became due are blocked again. */
void
outbox_reader_followers_ended(dlist_head *busy, bool undone)
{
	dlist_iter iter;

	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, member.busy_node, iter.cur);

		if (ep->table.unblocked && undone)
		{
			ep->table.unblocking = true;
			outbox_parked_count_again(ep);
		}
		ep->table.unblocked = false;
	}
}

bool
outbox_reader_has_work_for(OutboxEndpoint *ep, TimestampTz now)
{
	if (ep->member.dropped || ep->member.recreate || is_held(ep))
		return false;
	return outbox_retries_has_due(ep, now) || outbox_parked_wants_look(ep);
}

bool
outbox_reader_has_work(dlist_head *busy, bool head, TimestampTz now)
{
	dlist_iter iter;

	if ((head && outbox_loop.head.reading != NULL) || next_laggard(now) != NULL ||
		next_to_count() != NULL)
		return true;
	dlist_foreach(iter, busy)
	{
		if (outbox_reader_has_work_for(dlist_container(OutboxEndpoint, member.busy_node,
													   iter.cur),
									   now))
			return true;
	}
	return false;
}

bool
outbox_reader_step(dlist_head *busy, bool head, bool news, TimestampTz now,
				   XLogRecPtr *lsn)
{
	dlist_iter iter;
	bool	   more;

	step_begun = GetCurrentTimestamp();
	if (head && !read_head(news, lsn))
		return true;
	more = head && outbox_loop.head.reading != NULL;
	more = read_laggards(now, lsn) || more;
	more = count_ahead() || more;
	load_due_retries(busy, now);
	more = look_at_parked(busy) || more;
	outbox_step_blame(0);
	dlist_foreach(iter, busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, member.busy_node, iter.cur);

		if (!is_held(ep))
			outbox_step_passed(OUTBOX_STEP_READ, ep->id);
	}
	return more;
}
