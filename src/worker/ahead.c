/*
 * ahead.c
 *	  Owns how an event reaches an endpoint with a tenant while the head is in a long tick.
 *
 * A transaction of a million events is one tick, and takes seconds.  Events that were
 * committed since then are in the next tick.  So newer ticks are looked through for
 * endpoints with a tenant.  Such an endpoint leaves the head and reads by itself, with
 * the index on (tenant, seq): the rest of the long tick, and then the newer ones.  It is
 * then ahead of the head, which still counts the events that it passes for it, and is
 * attached again when the head has come to the same place.
 *
 * An endpoint without a tenant would have to read all that the head reads, so it waits.
 */
#include "base/outbox.h"

#include "endpoint/subscribers.h"
#include "log/log.h"
#include "worker/ahead.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/loop.h"

/* Ticks that are younger than this (µs) are worth no look, nor a newer tick. */
#define LOOK_AFTER (30 * 1000)
#define LOOK_EVERY (5 * 1000)

static OutboxCursor looked; /* how far newer ticks have been looked through */

static void
leave_head(OutboxEndpoint *ep)
{
	const OutboxCursor *head = &outbox_loop.head;

	if (outbox_is_attached(ep))
	{
		outbox_busy_add(ep);
		outbox_cursor_set(&ep->feed->cursor, head->read, head->reading, head->last_seq);
	}
	else if (!outbox_is_listed(&ep->lists->turn_node[OUTBOX_TURN_AHEAD]))
		return;
	outbox_turn_again(ep);
}

static void *
look_at(void *arg, const char *topic, size_t len, OutboxRow *row)
{
	OutboxSubscribers *s = outbox_subscribers_of(topic, len, row);

	for (int i = 0; i < s->n; i++)
		if (s->endpoints[i]->tenant)
			leave_head(s->endpoints[i]);
	return NULL;
}

void
outbox_ahead_look(void)
{
	OutboxLogQuery reader = {.want = look_at,
							 .max_rows = OUTBOX_PAGE_ROWS,
							 .max_bytes = OUTBOX_PAGE_BYTES};
	OutboxTick	  *long_tick = outbox_loop.head.reading;
	OutboxTick	  *tick;
	TimestampTz	   now = GetCurrentTimestamp();
	XLogRecPtr	   unused = 0;

	if (long_tick == NULL || now - long_tick->taken_at < LOOK_AFTER)
		return;
	if (looked.read == NULL)
		outbox_cursor_set(&looked, long_tick, NULL, 0);
	if (looked.reading != NULL)
		outbox_log_read(&looked, looked.reading, &reader, &unused);
	else if (now - looked.read->taken_at >= LOOK_EVERY)
	{
		/* As in the head: settings are read first, if they may be newer. */
		tick = outbox_tick_take();
		if (!outbox_loop_reload_is_due())
			outbox_log_read(&looked, tick, &reader, &unused);
		outbox_tick_unref(tick);
	}
}

OutboxTick *
outbox_ahead_tick(void)
{
	return looked.reading ? looked.reading : looked.read;
}

void
outbox_ahead_end(void)
{
	outbox_cursor_clear(&looked);
	outbox_turn_all_again(OUTBOX_TURN_AHEAD);
}
