/*
 * settle.c
 *	  Owns the settle: one transaction that writes all changes since the last one, with
 *	  attempts, parked deliveries and positions together.
 *
 * The transaction commits asynchronously.  If a crash loses it, events that were
 * delivered since the last one are delivered again.  No event is lost, because the log
 * is read again from the stored position.  Position and parked rows are in one
 * transaction, so that no crash leaves a position without the parked rows that it
 * relies on.
 */
#include "base/outbox.h"

#include "access/xlog.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "endpoint/lane.h"
#include "endpoint/parking.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "store/attempts.h"
#include "store/own_events.h"
#include "store/parked.h"
#include "store/positions.h"
#include "store/proofs.h"
#include "store/settle.h"
#include "store/totals.h"
#include "store/unsettled.h"

/* An endpoint that was idle for this long (µs) follows the shared position. */
#define IDLE_AFTER (1 * USECS_PER_SEC)

/* Endpoints begin to follow it at full multiples of this (µs), so that many do at once. */
#define SHARE_TOGETHER (100 * 1000)

/*
 * µs between two writes of the shared position and of the time of its tick: while
 * events come, and while only other transactions advance the snapshot.
 */
#define SHARED_EVERY (1 * USECS_PER_SEC)
#define SHARED_EVERY_IDLE (60 * USECS_PER_SEC)

#define BEHIND_EVERY (1 * USECS_PER_SEC) /* µs: endpoints that have only read on */

#define SINGLY_TIME (200 * 1000) /* µs after which a settle one by one stops */

/*
 * Rows of one transaction, during which nothing is sent, and positions that take as long as a
 * row.  Of many rows of one endpoint it writes a part, so that the position, which names the
 * others, is not written for each 250 of them.
 */
#define ROWS_AT_ONCE 250
#define POSITIONS_OF_ROW 8
#define PARTS_OF_ENDPOINT 32

static int		   share_budget; /* endpoints that may still begin to share */
static int64	   shared_tick;	 /* as last written */
static int64	   shared_seq;
static TimestampTz shared_at;
static bool		   storable_again;	/* see outbox_settle_was_released() */
static bool		   some_unstorable; /* false: no endpoint is */

void
outbox_settle_init(int64 last_shared_tick)
{
	shared_tick = last_shared_tick;
	outbox_attempts_init();
	outbox_positions_init();
}

/* ------------------------------------------------------------ the lists */

void
outbox_settle_remove(OutboxEndpoint *ep)
{
	if (ep->lists->settle_list == NULL)
		return;
	dlist_delete(&ep->lists->settle_node);
	ep->lists->settle_list = NULL;
}

static void
put_on(dlist_head *list, OutboxEndpoint *ep)
{
	outbox_settle_remove(ep);
	ep->lists->settle_list = list;
	dlist_push_tail(list, &ep->lists->settle_node);
}

void
outbox_settle_add(OutboxToSettle *all, OutboxEndpoint *ep)
{
	if (ep->lists->settle_list != &all->unsettled)
		put_on(&all->unsettled, ep);
}

TimestampTz
outbox_settle_behind_at(OutboxToSettle *all)
{
	if (dlist_is_empty(&all->unsettled) && dlist_is_empty(&all->behind))
		all->behind_at = DT_NOEND;
	else if (all->behind_at == DT_NOEND)
		all->behind_at = GetCurrentTimestamp() + BEHIND_EVERY;
	return all->behind_at;
}

void
outbox_settle_leave(OutboxToSettle *all, OutboxEndpoint *ep)
{
	if (outbox_settle_wants(ep) || ep->place.written)
		return;
	if (ep->place.moved || outbox_settle_lags(ep))
		put_on(&all->behind, ep);
	else
		outbox_settle_remove(ep);
}

/* ------------------------------------------------- the rows of one endpoint */

/*
 * Stores that the endpoint was disabled.  False: another transaction is changing its row, or
 * has, and the answer was for settings that do not hold any more: the reload forgets it.
 */
static bool
write_state(OutboxEndpoint *ep)
{
	if (outbox_query(
			"UPDATE outbox.endpoint_settings SET state = 'disabled', reason = $2,"
			" state_since = $3 WHERE endpoint_id = (SELECT endpoint_id"
			" FROM outbox.endpoint_settings WHERE endpoint_id = $1"
			" AND version = $4 AND state = 'active' FOR UPDATE SKIP LOCKED)",
			arg_int4(ep->id), arg_text(ep->status.reason),
			arg_time(ep->status.state_since), arg_int8(ep->config.version)) == 0)
		return false;

	/* When it is resumed, its time of failing begins anew. */
	outbox_status_stop_failing(ep);
	ep->place.dirty = true;
	return true;
}

TimestampTz
outbox_settle_shares_at(const OutboxEndpoint *ep)
{
	TimestampTz at = ep->tally->last_active_at + IDLE_AFTER;

	return at - at % SHARE_TOGETHER + SHARE_TOGETHER;
}

/*
 * True if the endpoint may begin to follow the shared position.  One that is to be
 * loaded again, here or by another worker, may not: the shared position moves on
 * without it.
 */
static bool
may_share(OutboxEndpoint *ep, TimestampTz now)
{
	return outbox_is_attached(ep) && !ep->place.shared && !ep->member.recreate &&
		ep->feed->window_count == 0 && ep->queue->nheld == 0 &&
		ep->queue->nsettling == 0 && now >= outbox_settle_shares_at(ep);
}

/*
 * The part that one transaction writes: the endpoints before 'end', or all.  When that
 * fails, the attempts, the shared position and each endpoint are settled by themselves.
 * A part that cannot be written is put on hold, and the rest is written.
 */
typedef struct Part
{
	OutboxToSettle	   *all;
	const OutboxCursor *head;
	bool				final;
	OutboxEndpoint	   *only; /* the only endpoint (NULL: all that can be stored) */
	dlist_node		   *end; /* in 'unsettled': the first one that is left (NULL: none) */
	OutboxEndpoint *split;	 /* the last endpoint, if rows of it are left (NULL: none) */
	dlist_head		rest;	 /* deliveries of it that have these rows */
	bool			endpoints;
	bool			shared; /* true if it includes the shared position */
	bool			attempts;
	bool			parked; /* true if it may write outbox.parked */
	bool			begun;	/* false if a lock was not free */
	bool			wrote_head;
	bool			complete; /* true if it writes endpoints that lag ... */
	bool			behind;	  /* ... and all others that have only read on */
} Part;

static bool
in_part(const Part *part, const OutboxEndpoint *ep)
{
	return part->endpoints && !ep->member.dropped &&
		(part->only ? ep == part->only && (part->parked || ep->queue->nsettling == 0) :
					  !ep->status.unstorable);
}

#define FOREACH_IN_PART(part, iter, ep) \
	dlist_foreach_modify(iter, \
						 &(part)->all->unsettled) if ((iter).cur == (part)->end) break; \
	else if (((ep) = outbox_listed(settle_node, (iter).cur)), in_part(part, ep))

bool
outbox_settle_lags(const OutboxEndpoint *ep)
{
	return ep->place.shared &&
		(ep->place.dirty || ep->feed->window_count > 0 || ep->queue->nheld > 0 ||
		 ep->queue->nsettling > 0 || !outbox_is_attached(ep));
}

/*
 * True if the part may write the shared position.  It may not while an endpoint
 * that this part leaves out follows it in the table and has something left before
 * the head.
 */
static bool
may_move_shared(const Part *part)
{
	dlist_head *lists[] = {&part->all->unsettled, &part->all->behind};

	if (!part->shared)
		return false;
	for (size_t i = 0; i < lengthof(lists); i++)
	{
		dlist_iter iter;
		bool	   left = false;

		dlist_foreach(iter, lists[i])
		{
			OutboxEndpoint *ep = outbox_listed(settle_node, iter.cur);

			left = left || iter.cur == part->end;
			if ((left || !in_part(part, ep)) && outbox_settle_lags(ep))
				return false;
		}
	}
	return true;
}

/*
 * Endpoints that have only read on are settled like the others.  With many idle
 * endpoints the shared position moves often.  So an endpoint with a position of its own
 * has to be due for that.
 */
static void
complete(Part *part, TimestampTz now)
{
	OutboxToSettle	  *all = part->all;
	dlist_mutable_iter iter;

	part->complete = true;
	part->behind = part->final || now >= outbox_settle_behind_at(all);
	if (part->behind)
		all->behind_at = now + BEHIND_EVERY;
	dlist_foreach_modify(iter, &all->behind)
	{
		OutboxEndpoint *ep = outbox_listed(settle_node, iter.cur);

		if (!part->behind && !outbox_settle_lags(ep))
			continue;
		put_on(&all->unsettled, ep);
		dlist_move_head(&all->unsettled, iter.cur); /* it is in this part */
	}
}

static void
write_rows(const Part *part)
{
	List			  *endpoints = NIL;
	OutboxEndpoint	  *ep;
	dlist_mutable_iter iter;

	FOREACH_IN_PART(part, iter, ep)
	if (ep->queue->nsettling > 0)
		endpoints = lappend(endpoints, ep);
	outbox_parked_write(endpoints);
	OUTBOX_CRASH_POINT("settle.parked");
}

static void
write_endpoint(const Part *part, OutboxPositions *p, OutboxEndpoint *ep, bool *share)
{
	ep->status.state_written = ep->status.state_dirty && write_state(ep);
	outbox_own_events_write(ep, ep->status.state_written);
	if (outbox_proof_waits(ep))
		ep->proof->written = outbox_proof_write(ep);
	if (ep->place.stored_version != ep->config.version)
		outbox_subscription_write(ep, outbox_window_frontier(ep, part->head));
	OUTBOX_CRASH_POINT("settle.subscribed");

	/*
	 * The shared position moves on with the head.  So only an endpoint that has
	 * nothing left before the head may follow it.
	 */
	if ((part->behind && ep->place.moved) || (part->complete && outbox_settle_lags(ep)))
		ep->place.dirty = true;
	if (share_budget > 0 && may_share(ep, p->now))
	{
		ep->place.shared = true;
		ep->place.dirty = true;
		*share = true;
		share_budget--;
	}
	else if (ep->place.dirty)
		ep->place.shared = false;
	if (ep->place.dirty)
		outbox_positions_add(p, ep, outbox_window_frontier(ep, part->head));
}

static void
write_head(Part *part, OutboxPositions *p)
{
	const OutboxCursor *head = part->head;

	outbox_positions_add(p, NULL, head);
	if (head->read->number != shared_tick && outbox_serves_database())
		outbox_positions_write_tick(head->read,
									(int) pg_atomic_read_u32(&outbox_db->piece));
	part->wrote_head = true;
}

/* The part is committed: brings memory up to date. */
static void
written(Part *part, TimestampTz at)
{
	OutboxEndpoint	  *ep;
	dlist_mutable_iter iter;

	if (part->wrote_head)
	{
		shared_tick = part->head->read->number;
		shared_seq = part->head->read->seq_high;
		shared_at = at;
	}
	if (part->parked)
		outbox_step_passed(OUTBOX_STEP_PARKED, 0);
	if (part->shared && part->parked)
		outbox_parked_gone_written();
	if (part->shared)
		outbox_totals_stored(at, XactLastCommitEnd);
	if (part->attempts)
		outbox_attempts_written();
	outbox_own_events_end_settle(true);
	FOREACH_IN_PART(part, iter, ep)
	{
		if (!ep->place.written && outbox_settle_wants(ep))
		{
			ep->place.written = true;
			part->all->nwritten++;
		}
		ep->place.was_shared = ep->place.shared;
		ep->place.stored_version = ep->config.version;
		if (ep->status.state_written)
			ep->status.state_dirty = false;
		if (ep->proof && ep->proof->written)
			outbox_proof_written(ep, at);
		ep->status.recovered = false;
		ep->status.failing_fresh = false;
		if (ep->place.dirty)
			outbox_tally_stored(ep, XactLastCommitEnd);

		storable_again = storable_again || ep->status.unstorable;
		ep->status.unstorable = false;
		/* Rows take the time of a settle, so an endpoint with rows waits for all of it. */
		if (ep->queue->nsettling == 0)
			outbox_unsettled_end(ep);
		outbox_parking_settled(ep);
		if (ep == part->split)
			outbox_parking_rejoin(ep, &part->rest);
		else
			outbox_parked_keep_room(ep);
		outbox_settle_leave(part->all, ep);
	}
	if (part->split) /* the others come first */
		dlist_move_tail(&part->all->unsettled, &part->split->lists->settle_node);
}

/* True if the shared position is to be written, whatever endpoints begin to follow it. */
static bool
head_is_due(const Part *part, TimestampTz now)
{
	return outbox_settle_wants_head(part->head, now) ||
		(part->head->read->number != shared_tick &&
		 (part->final || now - shared_at > SHARED_EVERY_IDLE));
}

static void
write_part(void *arg)
{
	Part		   *part = arg;
	OutboxEndpoint *ep;
	OutboxPositions p;
	bool			share = false;
	bool			moves;
	int				cost = 0;

	dlist_mutable_iter iter;

	part->begun = outbox_txn_begin_settle();
	if (!part->begun)
		return;
	OUTBOX_CRASH_POINT("settle.begin");
	part->parked = outbox_step_lock(OUTBOX_STEP_PARKED, OUTBOX_TABLE_PARKED,
									OUTBOX_TABLE_PARKED, RowExclusiveLock);
	part->attempts = part->attempts &&
		(!outbox_attempts_wait() ||
		 outbox_step_lock(OUTBOX_STEP_ATTEMPTS, OUTBOX_TABLE_ATTEMPT_LOG,
						  OUTBOX_TABLE_ATTEMPT_RUNS_2, RowExclusiveLock));

	outbox_positions_begin(&p);
	moves = head_is_due(part, p.now);

	/*
	 * Followers that are to be parked get their rows in this transaction, so that
	 * later reads of the table find them.
	 */
	FOREACH_IN_PART(part, iter, ep)
	{
		if (part->parked)
			outbox_lanes_park_followers(ep, p.now);
		else if (ep->queue->nsettling > 0)
		{
			ep->status.unstorable = some_unstorable = true;
			ep->place.dirty = true;
			continue;
		}
		moves = moves || may_share(ep, p.now);
		cost += 1 + ep->queue->nsettling * POSITIONS_OF_ROW;
		if (cost >= ROWS_AT_ONCE * POSITIONS_OF_ROW && !part->final)
		{
			int n = Max(ROWS_AT_ONCE, ep->queue->nsettling / PARTS_OF_ENDPOINT);

			if (outbox_parking_split(ep, n, &part->rest))
				part->split = ep;
			if (part->only == NULL)
				part->end = iter.next == &part->all->unsettled.head ? NULL : iter.next;
		}
	}
	moves = moves && may_move_shared(part);
	if (part->endpoints && part->only == NULL &&
		(moves || part->final || p.now >= outbox_settle_behind_at(part->all)))
		complete(part, p.now);
	share_budget = moves ? OUTBOX_SHARE_AT_ONCE : 0;
	write_rows(part);
	FOREACH_IN_PART(part, iter, ep)
	write_endpoint(part, &p, ep, &share);
	if (moves && (share || head_is_due(part, p.now)))
		write_head(part, &p);
	if (part->shared)
		outbox_totals_add(&p, part->head, part->final);
	outbox_positions_write(&p);
	OUTBOX_CRASH_POINT("settle.positions");
	if (part->shared && part->parked)
		outbox_parked_write_gone();
	if (part->attempts)
		outbox_attempts_write();
	outbox_own_events_flush();

	OUTBOX_CRASH_POINT("settle.written");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("settle.committed");
	written(part, p.now);
}

/* True if it was written, or part->begun is false.  False: memory is as before. */
static bool
try_part(Part *part, OutboxStepError *failure)
{
	OutboxEndpoint	  *ep;
	dlist_mutable_iter iter;

	if (outbox_step_try(write_part, part, failure))
		return true;
	outbox_own_events_end_settle(false);
	if (part->split)
		outbox_parking_rejoin(part->split, &part->rest);
	FOREACH_IN_PART(part, iter, ep)
	ep->place.shared = ep->place.was_shared;
	return false;
}

/*
 * Settles one endpoint by itself.  If that fails, its changes stay in memory, and
 * nothing more is sent to it.  False: a lock was not free.
 */
static bool
settle_alone(const Part *all, OutboxEndpoint *ep)
{
	Part			part = {.all = all->all,
							.head = all->head,
							.only = ep,
							.endpoints = true,
							.parked = true,
							.final = all->final};
	OutboxStepError failure;

	if (try_part(&part, &failure))
	{
		if (part.begun && in_part(&part, ep))
			outbox_step_passed(OUTBOX_STEP_SETTLE, ep->id);
		all->all->more = all->all->more || part.split != NULL;
		return part.begun;
	}
	ep->status.unstorable = some_unstorable = true;
	ep->place.dirty = true;
	outbox_step_hold(OUTBOX_STEP_SETTLE, ep->id, &failure);
	return true;
}

/* Settles the shared position, or the attempts.  False: a lock was not free. */
static bool
settle_rest(const Part *all, bool attempts)
{
	OutboxStep		step = attempts ? OUTBOX_STEP_ATTEMPTS : OUTBOX_STEP_SETTLE;
	Part			part = {.all = all->all,
							.head = all->head,
							.final = all->final,
							.shared = !attempts,
							.attempts = attempts};
	OutboxStepError failure;

	if (!try_part(&part, &failure))
		outbox_step_hold(step, 0, &failure);
	else if (part.begun)
		outbox_step_passed(step, 0);
	else
		return false;
	return true;
}

bool
outbox_settle_may_share(const OutboxToSettle *all)
{
	bool	   found = false;
	dlist_iter iter;

	if (outbox_step_held(OUTBOX_STEP_SETTLE, 0))
		return false;
	if (!some_unstorable)
		return true;
	dlist_foreach(iter, unconstify(dlist_head *, &all->unsettled))
	{
		const OutboxEndpoint *ep = outbox_listed(settle_node, iter.cur);

		if (ep->status.unstorable && outbox_settle_lags(ep))
			return false;
		found = found || ep->status.unstorable;
	}
	some_unstorable = found;
	return true;
}

static bool
is_held(const OutboxEndpoint *ep)
{
	return outbox_step_held(OUTBOX_STEP_SETTLE, ep->id) ||
		(ep->queue->nsettling > 0 && outbox_step_held(OUTBOX_STEP_PARKED, 0));
}

bool
outbox_settle_wants(const OutboxEndpoint *ep)
{
	return ep->place.dirty || ep->queue->nsettling > 0 || ep->status.state_dirty ||
		outbox_proof_waits(ep);
}

/*
 * Settles endpoints one by one.  Without 'each': endpoints that failed before, when
 * they may be tried again.  With 'each': first the attempts and the shared position, which
 * a hold keeps out of the next settle, and then all endpoints.  Requests wait meanwhile, so
 * the rest is left after SINGLY_TIME.  False: a lock was not free, or some are left.
 */
static bool
settle_singly(const Part *all, bool each)
{
	TimestampTz until = GetCurrentTimestamp() + SINGLY_TIME;

	dlist_mutable_iter iter;

	if (!each && !some_unstorable)
		return true;
	if (each &&
		((all->attempts && !settle_rest(all, true)) ||
		 (all->shared && !settle_rest(all, false))))
		return false;
	dlist_foreach_modify(iter, &all->all->unsettled)
	{
		OutboxEndpoint *ep = outbox_listed(settle_node, iter.cur);

		if (ep->member.dropped ||
			!(ep->status.unstorable || (each && outbox_settle_wants(ep))) ||
			(ep->status.unstorable && is_held(ep)))
			continue;
		if (!settle_alone(all, ep))
			return false;
		if (GetCurrentTimestamp() >= until)
			return !each; /* some are left */
	}
	return true;
}

bool
outbox_settle(OutboxToSettle *to_settle, const OutboxCursor *head, bool final)
{
	Part			all = {.all = to_settle,
						   .head = head,
						   .final = final,
						   .endpoints = true,
						   .shared = !outbox_step_held(OUTBOX_STEP_SETTLE, 0),
						   .attempts = !outbox_step_held(OUTBOX_STEP_ATTEMPTS, 0)};
	static bool		was_locked; /* true if the last one could not begin */
	OutboxStepError failure;

	to_settle->more = false;
	if (!try_part(&all, &failure))
		return settle_singly(&all, true);
	if (!all.begun)
	{
		if (!outbox_step_held(OUTBOX_STEP_SETTLE, 0))
			outbox_step_hold_locked(OUTBOX_STEP_SETTLE, 0, "a table of outbox");
		was_locked = true;
		return false;
	}
	if (all.shared || was_locked)
		outbox_step_passed(OUTBOX_STEP_SETTLE, 0);
	was_locked = false;
	if (all.attempts)
		outbox_step_passed(OUTBOX_STEP_ATTEMPTS, 0);
	to_settle->more = all.end != NULL || all.split != NULL;
	return settle_singly(&all, false);
}

bool
outbox_settle_wants_head(const OutboxCursor *head, TimestampTz now)
{
	return head->read->number != shared_tick && head->read->seq_high != shared_seq &&
		now - shared_at > SHARED_EVERY;
}

bool
outbox_settle_was_released(void)
{
	bool was = storable_again;

	storable_again = false;
	return was;
}
