/*
 * head.c
 *	  Owns how the head of the log is read, once for all endpoints that keep up.
 *
 * Each event is matched against all subscriptions and counted for each endpoint that
 * wants it.  It is handed to the endpoints that are attached: they have read everything
 * before it, and have room.  An endpoint that cannot keep up is detached at the event
 * that it has no room for.  It is then catching up (laggards.c).  So the head never
 * waits, and 10,000 idle endpoints cost one look-up per event.
 */
#include "base/outbox.h"

#include "endpoint/status.h"
#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "server/shares.h"
#include "store/parked.h"
#include "worker/ahead.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/judge.h"
#include "worker/loop.h"

/* Pages of the head per step. */
#define HEAD_PAGES 8

static TimestampTz step_begun;
static TimestampTz step_ends;  /* no page begins after that */
static TimestampTz tick_begun; /* the step in which the last tick was taken */
static TimestampTz looked_at; /* 'tick_begun' of the last tick that was read to its end */

/* A tick was set aside when settings had been read so often.  It is read after that. */
static bool	  set_aside;
static uint64 set_aside_at;

void
outbox_head_begin_step(void)
{
	step_begun = GetCurrentTimestamp();
	step_ends = step_begun + OUTBOX_STEP_TIME;
}

void
outbox_head_step_extend(TimestampTz since)
{
	TimestampTz now = GetCurrentTimestamp();

	step_ends = Max(step_ends, now + (now - since));
}

bool
outbox_head_step_is_over(void)
{
	return GetCurrentTimestamp() >= step_ends;
}

void
outbox_head_count(OutboxEndpoint *ep, TimestampTz created_at)
{
	if (ep->feed->backlog++ == ep->feed->window_count - ep->feed->ncancelled)
		ep->feed->backlog_since = created_at;
}

/*
 * Counts the event for all endpoints that want it.  Nothing may throw an error after that, or
 * the event would be read and counted again.
 */
static void
count_for_all(const OutboxSubscribers *s, TimestampTz created_at)
{
	for (int i = 0; i < s->n; i++)
		if (outbox_is_counted(s->endpoints[i]) && s->result[i] != OUTBOX_FILTER_NO &&
			!s->cancelled[i])
		{
			outbox_head_count(s->endpoints[i], created_at);
			outbox_busy_add(s->endpoints[i]); /* at least to publish it */
		}
}

/* The endpoint is behind from the current event on, and its backlog is not known. */
static void
leave(OutboxEndpoint *ep)
{
	const OutboxCursor *head = &outbox_loop.head;

	outbox_busy_add(ep);
	if (outbox_is_attached(ep))
		outbox_cursor_set(&ep->feed->cursor, head->read, head->reading, head->last_seq);
	if (outbox_is_counted(ep))
		outbox_cursor_set(&ep->feed->counter, head->read, head->reading, head->last_seq);
}

static void *
head_wants(void *arg, const char *name, size_t len, OutboxRow *row)
{
	OutboxSubscribers *s = outbox_subscribers_of(name, len, row);
	bool			   forgotten = outbox_row_forgotten(row);
	bool			   attached = false;
	bool			   wanted = s->nothers > 0; /* their filters are not evaluated here */

	for (int i = 0; i < s->n; i++)
	{
		OutboxEndpoint *ep = s->endpoints[i];
		bool			reads = outbox_is_attached(ep) || outbox_is_counted(ep);

		s->result[i] = !reads ? OUTBOX_FILTER_LATER :
			forgotten		  ? OUTBOX_FILTER_YES :
								outbox_judge(ep, row);
		wanted = wanted || s->result[i] != OUTBOX_FILTER_NO;
		if (reads && s->result[i] == OUTBOX_FILTER_LATER)
			leave(ep);
		if (s->result[i] == OUTBOX_FILTER_LATER)
			s->result[i] = OUTBOX_FILTER_NO;
		if (s->result[i] == OUTBOX_FILTER_NO)
			continue;
		outbox_endpoint_wake(ep);
		s->cancelled[i] = outbox_parked_is_cancelled(ep, outbox_row_seq(row));
		attached = attached || outbox_is_attached(ep);
	}

	/* An event that an attached endpoint wants is counted when its row was read. */
	if (!attached && !forgotten)
		count_for_all(s, outbox_row_created_at(row));
	if (!wanted && outbox_serves_database() && outbox_loop.roster.to_come == 0)
		outbox_loop.unmatched++;
	return attached ? s : NULL;
}

static void
head_takes(void *arg, void *wanted, OutboxEvent *event)
{
	OutboxSubscribers *s = wanted;

	if (!event->forgotten)
		count_for_all(s, event->created_at);
	for (int i = 0; i < s->n; i++)
	{
		OutboxEndpoint *ep = s->endpoints[i];

		if (!outbox_is_attached(ep) || s->result[i] == OUTBOX_FILTER_NO)
			continue;
		if (outbox_status_is_off(ep) || !outbox_window_may_push(ep) ||
			!outbox_window_push(ep, event, s->result[i], s->cancelled[i]))
		{
			/* From this event on the endpoint reads by itself. */
			outbox_cursor_set(&ep->feed->cursor, event->page->read, event->page->reading,
							  event->seq - 1);
		}
		outbox_busy_add(ep);
	}
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

	set_aside = false;
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
		{
			outbox_cursor_set(&outbox_loop.head, outbox_loop.head.read, tick, 0);
			set_aside = true;
			set_aside_at = outbox_loop.reloads;
		}
	}
	outbox_tick_unref(tick);
	return begin;
}

bool
outbox_head_waits(void)
{
	return set_aside && set_aside_at == outbox_loop.reloads;
}

void
outbox_head_may_read(void)
{
	set_aside = false;
}

bool
outbox_head_read(bool news, XLogRecPtr *lsn)
{
	OutboxLogQuery reader = {.want = head_wants,
							 .take = head_takes,
							 .max_rows = OUTBOX_PAGE_ROWS,
							 .max_bytes = OUTBOX_PAGE_BYTES};

	if (outbox_loop.head.reading == NULL)
	{
		if (!news)
			return true;
		outbox_ahead_end();
		tick_begun = step_begun;
		if (!begin_tick(lsn, &reader) && outbox_loop.head.reading != NULL)
			return false;
	}
	for (int i = 1; i < HEAD_PAGES && outbox_loop.head.reading != NULL &&
		 !outbox_head_step_is_over();
		 i++)
		outbox_log_read(&outbox_loop.head, outbox_loop.head.reading, &reader, lsn);
	if (outbox_loop.head.reading != NULL)
		outbox_ahead_look();
	else
	{
		outbox_ahead_end();
		looked_at = tick_begun;
	}
	return true;
}

/* When it began to read the last tick that it has read to its end.  0: it has read none. */
TimestampTz
outbox_head_looked_at(void)
{
	return looked_at;
}

OutboxTick *
outbox_head_target(const OutboxCursor *c, bool ahead)
{
	bool		waits = outbox_head_waits();
	OutboxTick *tick = outbox_loop.head.reading && !waits ? outbox_loop.head.reading :
															outbox_loop.head.read;

	if (waits && c->reading == outbox_loop.head.reading)
		return NULL;
	if (ahead && outbox_ahead_tick())
		tick = outbox_ahead_tick();
	if (c->reading)
		return c->reading;
	return tick->number != c->read->number && outbox_tick_reaches(tick, c->read) ? tick :
																				   NULL;
}

bool
outbox_head_reached(const OutboxCursor *c)
{
	return c->reading == NULL && outbox_loop.head.reading == NULL &&
		(c->read->number == outbox_loop.head.read->number ||
		 outbox_tick_same(c->read, outbox_loop.head.read));
}

bool
outbox_head_has_place(const OutboxCursor *c)
{
	return outbox_head_reached(c) ||
		(c->reading == NULL && outbox_loop.head.reading == NULL &&
		 outbox_tick_same_events(c->read, outbox_loop.head.read));
}

/* Within a tick an endpoint may be further than the head, or read a later one (ahead.c). */
bool
outbox_head_is_beyond(const OutboxCursor *c)
{
	const OutboxCursor *head = &outbox_loop.head;

	if (!outbox_tick_follows(head->read, c->read))
		return false;
	if (c->reading == NULL || outbox_tick_follows(head->read, c->reading))
		return true;
	return head->reading == c->reading && c->last_seq <= head->last_seq;
}
