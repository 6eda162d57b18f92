/*
 * reader.c
 *	  Owns the step that reads: the head of the log, for endpoints that are
 *	  behind it, and from outbox.parked.
 */
#include "base/outbox.h"

#include "base/crash_point.h"
#include "endpoint/retries.h"
#include "endpoint/status.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "store/parked.h"
#include "worker/busy.h"
#include "worker/head.h"
#include "worker/laggards.h"
#include "worker/loop.h"
#include "worker/reader.h"

/* No other endpoint's rows of outbox.parked are begun with after this time (µs). */
#define PARKED_TIME (5 * 1000)

static void
load_due_retries(OutboxEndpoint *ep, TimestampTz now)
{
	int64 seqs[OUTBOX_RETRIES_MAX];
	int	  n = outbox_retries_take_due(ep, now, seqs, OUTBOX_RETRIES_MAX);

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
}

static bool
wants_parked(OutboxEndpoint *ep, TimestampTz now)
{
	return !ep->member.dropped && !ep->member.recreate &&
		!outbox_step_held(OUTBOX_STEP_READ, ep->id) &&
		(outbox_retries_has_due(ep, now) || outbox_parked_wants_look(ep));
}

/*
 * Calls 'load' for each busy endpoint that wants it.  Thousands may at once, as after a
 * start.  So after PARKED_TIME no other one is begun with, and the ones that had their turn
 * are at the end of the list.  True: more is left.
 */
static bool
in_turn(TimestampTz now, bool (*wants)(OutboxEndpoint *, TimestampTz),
		bool (*load)(OutboxEndpoint *ep, TimestampTz now, TimestampTz until, bool more))
{
	dlist_head		  *busy = &outbox_loop.roster.busy;
	TimestampTz		   until = GetCurrentTimestamp() + PARKED_TIME;
	const dlist_node  *last = dlist_is_empty(busy) ? NULL : dlist_tail_node(busy);
	dlist_mutable_iter iter;
	bool			   begun = false;
	bool			   more = false;

	dlist_foreach_modify(iter, busy)
	{
		OutboxEndpoint *ep = outbox_listed(busy_node, iter.cur);

		if (wants(ep, now))
		{
			if (begun && GetCurrentTimestamp() >= until)
				return true;
			begun = true;
			outbox_step_blame(ep->id);
			more = load(ep, now, until, more) || more;
			dlist_move_tail(busy, iter.cur);
		}
		if (iter.cur == last)
			break;
	}
	return more;
}

/*
 * Loads retries that are due, and rows of outbox.parked that memory lacks.  Of rows that
 * are not urgent one endpoint of a step reads a slice.
 */
static bool
load_parked(OutboxEndpoint *ep, TimestampTz now, TimestampTz until, bool more)
{
	if (outbox_retries_has_due(ep, now))
		load_due_retries(ep, now);
	if (outbox_parked_wants_look(ep))
		more = outbox_parked_look(ep, !more);
	outbox_busy_add(ep);
	return more;
}

/* While it is off, followers stay in the table, as retries do: commands find them there. */
static bool
has_lanes_to_load(const OutboxEndpoint *ep)
{
	return !dlist_is_empty(&ep->queue->loading) && !outbox_status_is_off(ep);
}

/*
 * True if parked followers may be loaded.  A delivery on 'settling' has no row yet, so
 * nothing is loaded while there is any.
 */
static bool
may_bring_followers(OutboxEndpoint *ep, TimestampTz now)
{
	return (has_lanes_to_load(ep) || ep->table->unblocking) && !ep->member.dropped &&
		!ep->member.recreate && ep->queue->nsettling == 0 &&
		!outbox_step_held(OUTBOX_STEP_FOLLOWERS, ep->id);
}

bool
outbox_reader_wants_followers(void)
{
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
		if (may_bring_followers(ep, 0))
			return true;
	return false;
}

static bool
bring_followers(OutboxEndpoint *ep, TimestampTz now, TimestampTz until, bool more)
{
	if (has_lanes_to_load(ep))
		outbox_parked_load_followers(ep, until);
	if (ep->table->unblocking)
	{
		ep->table->unblocked = true;
		outbox_parked_unblock(ep);
	}
	outbox_step_passed(OUTBOX_STEP_FOLLOWERS, ep->id);
	return false;
}

/* What is left comes with the next settle. */
void
outbox_reader_bring_followers(void)
{
	(void) in_turn(0, may_bring_followers, bring_followers);
	outbox_step_blame(0);
}

/* If it was undone, the rows that became due are blocked again. */
void
outbox_reader_followers_ended(bool undone)
{
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
	{
		if (ep->table->unblocked && undone)
		{
			ep->table->unblocking = true;
			outbox_parked_count_again(ep);
		}
		ep->table->unblocked = false;
	}
}

bool
outbox_reader_has_work_for(OutboxEndpoint *ep, TimestampTz now)
{
	return outbox_step_may(OUTBOX_STEP_PARKED) && wants_parked(ep, now);
}

bool
outbox_reader_has_work(bool head, TimestampTz now)
{
	if ((head && outbox_loop.head.reading != NULL) || outbox_laggards_have_work(now))
		return true;
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
		if (outbox_reader_has_work_for(ep, now))
			return true;
	return false;
}

bool
outbox_reader_step(bool head, bool news, TimestampTz now, XLogRecPtr *lsn)
{
	bool more;

	outbox_head_begin_step();
	if (head && !outbox_head_read(news, lsn))
		return true;
	more = head && outbox_loop.head.reading != NULL;
	more = outbox_laggards_read(now, lsn) || more;
	if (outbox_step_lock(OUTBOX_STEP_PARKED, OUTBOX_TABLE_PARKED, OUTBOX_TABLE_PARKED,
						 AccessShareLock))
	{
		more = in_turn(now, wants_parked, load_parked) || more;
		outbox_step_passed(OUTBOX_STEP_PARKED, 0);
	}
	outbox_step_blame(0);

	/*
	 * Reading works again for an endpoint only if it could be read for, and nothing is
	 * left to be read.  Until then each row is read with care, so the one that failed is
	 * found.
	 */
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
		if (outbox_step_next_try(OUTBOX_STEP_READ, ep->id) <= now &&
			!outbox_window_wants_events(ep, now) && !wants_parked(ep, now))
			outbox_step_passed(OUTBOX_STEP_READ, ep->id);
	return more;
}
