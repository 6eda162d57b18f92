/*
 * chores.c
 *	  Owns the work of a worker besides reading and sending: outcomes are
 *	  settled, scheduled events move into the log, commands and replays are
 *	  carried out, old events, attempts and deduplication keys are forgotten.
 *
 * Each of these is a step (step.h).  A step that fails is put on hold, and the
 * others continue.
 */
#include "base/outbox.h"

#include "utils/timestamp.h"

#include "base/crash_point.h"
#include "base/settings.h"
#include "emit/dedup.h"
#include "emit/scheduled.h"
#include "endpoint/status.h"
#include "endpoint/window.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "store/own_events.h"
#include "store/positions.h"
#include "store/settle.h"
#include "store/totals.h"
#include "worker/backlog_limit.h"
#include "worker/busy.h"
#include "worker/chores.h"
#include "worker/dispatch.h"
#include "worker/forget.h"
#include "worker/leftovers.h"
#include "worker/loop.h"
#include "worker/operator_commands.h"
#include "worker/publish.h"
#include "worker/reader.h"
#include "worker/replay.h"
#include "worker/roster.h"

/* Endpoints of which one round asks whether they can give up memory. */
#define GIVE_UP_AT_ONCE 256

static OutboxDatabase *db;

void
outbox_chores_init(OutboxDatabase *database, OutboxWorker *self)
{
	db = database;
	outbox_forget_init(database, self);
	outbox_backlog_limit_init(database);
}

static TimestampTz
totals_due(void)
{
	return outbox_step_held(OUTBOX_STEP_SETTLE, 0) ? DT_NOEND : outbox_totals_due();
}

static bool
something_to_settle(TimestampTz now)
{
	bool	   sharing = outbox_settle_may_share(&outbox_loop.to_settle);
	dlist_iter iter;

	if (outbox_loop.due.settle_since != 0 || outbox_loop.traffic.unsettled > 0 ||
		outbox_loop.roster.recreating || outbox_shares_leaving() ||
		outbox_own_events_waits() || totals_due() <= now ||
		outbox_settle_behind_at(&outbox_loop.to_settle) <= now ||
		(sharing &&
		 (outbox_loop.turns[OUTBOX_TURN_SHARE] > 0 ||
		  outbox_settle_wants_head(&outbox_loop.head, now))))
		return true;
	dlist_foreach(iter, &outbox_loop.roster.busy)
	{
		OutboxEndpoint *ep = outbox_listed(busy_node, iter.cur);

		if ((outbox_settle_wants(ep) ||
			 ((!dlist_is_empty(&ep->queue->loading) || ep->table->unblocking) &&
			  outbox_step_may(OUTBOX_STEP_PARKED))) &&
			!(ep->status.unstorable && outbox_settle_held(ep)))
			return true;
	}
	return false;
}

/*
 * The endpoints that wait for the shared position longest are settled now.  So a settle
 * stays short when many endpoints become idle together, and the others cost nothing
 * meanwhile.
 */
static void
settle_those_that_share(void)
{
	OutboxEndpoint *ep;

	for (int n = 0;
		 n < OUTBOX_SHARE_AT_ONCE && (ep = outbox_turn_first(OUTBOX_TURN_SHARE)) != NULL;
		 n++)
	{
		outbox_turn_remove(OUTBOX_TURN_SHARE, ep);
		outbox_busy_settle(ep);
	}
}

/*
 * Loads the parked followers of lanes whose head has ended.  It is done right after
 * a settle, when the rows of delivered heads are deleted.
 */
static void
bring_followers(void *arg)
{
	TimestampTz *now = arg;

	if (!outbox_txn_begin_settle())
	{
		outbox_loop.due.retry_locks_at = *now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	if (outbox_step_lock(OUTBOX_STEP_PARKED, OUTBOX_TABLE_PARKED, OUTBOX_TABLE_PARKED,
						 RowExclusiveLock))
		outbox_reader_bring_followers(&outbox_loop.roster.busy);
	OUTBOX_CRASH_POINT("followers.read");
	outbox_txn_commit();
}

static void
compact_positions(void *arg)
{
	(void) arg;
	(void) outbox_positions_compact();
}

void
outbox_settle_step(TimestampTz now, bool final)
{
	bool due = outbox_loop.due.settle_since != 0 &&
		now - outbox_loop.due.settle_since >= outbox_settle_interval * INT64CONST(1000);

	if (!final && !due && outbox_loop.traffic.unsettled < OUTBOX_SETTLE_AFTER)
	{
		if (outbox_loop.due.settle_since == 0 && something_to_settle(now))
			outbox_loop.due.settle_since = now;
		return;
	}
	if (!final && now < outbox_loop.due.retry_locks_at)
		return;
	settle_those_that_share();
	if (!outbox_settle(&outbox_loop.to_settle, &outbox_loop.head, final))
	{
		outbox_loop.due.retry_locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	if (outbox_settle_was_released())
		outbox_loop.commands_pending = true;
	outbox_loop.traffic.refill_all = true;
	outbox_busy_add_settled(); /* lanes may have advanced */
	if (outbox_loop.to_settle.more)
	{
		outbox_loop.due.settle_since = now - outbox_settle_interval * INT64CONST(1000);
		return;
	}
	outbox_loop.traffic.unsettled = 0;
	outbox_loop.due.settle_since = 0;
	if (outbox_reader_wants_followers(&outbox_loop.roster.busy))
		outbox_reader_followers_ended(&outbox_loop.roster.busy,
									  !outbox_step_run(OUTBOX_STEP_FOLLOWERS,
													   bring_followers, &now));
	if (final)
		return;
	if (outbox_positions_want_compaction(now))
		(void) outbox_step_run(OUTBOX_STEP_POSITIONS, compact_positions, NULL);
	outbox_roster_recreate();
}

static void
run_commands(void *arg)
{
	(void) arg;
	outbox_operator_commands_run();
}

static void
command_step(TimestampTz now)
{
	if (!outbox_operator_commands_have_work(now) ||
		now < outbox_loop.due.retry_locks_at || !outbox_step_may(OUTBOX_STEP_COMMAND))
		return;

	/*
	 * Outcomes have to be in the tables before an operator's command reads these.
	 */
	outbox_loop.due.settle_since = now - outbox_settle_interval * INT64CONST(1000);
	outbox_settle_step(now, false);
	if (outbox_loop.due.settle_since == 0 &&
		!outbox_step_run(OUTBOX_STEP_COMMAND, run_commands, NULL))
		outbox_operator_commands_failed();
}

static void
run_replays(void *arg)
{
	(void) arg;
	outbox_replays_run();
}

static void
replay_step(TimestampTz now)
{
	if (now < outbox_loop.due.retry_locks_at || !outbox_step_may(OUTBOX_STEP_REPLAY) ||
		!outbox_replays_have_work())
		return;

	/*
	 * The events that a replay may park depend on the stored positions, so these are
	 * stored first.
	 */
	outbox_settle_step(now, true);
	if (outbox_loop.due.settle_since != 0)
		outbox_loop.due.retry_locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
	else if (!outbox_step_run(OUTBOX_STEP_REPLAY, run_replays, NULL))
		outbox_replays_failed();
}

static void
run_schedule(void *arg)
{
	outbox_scheduled_step(db, *(TimestampTz *) arg);
}

static void
schedule_step(TimestampTz now)
{
	if (now >= outbox_scheduled_next_time(db) && outbox_step_may(OUTBOX_STEP_SCHEDULE) &&
		!outbox_step_run(OUTBOX_STEP_SCHEDULE, run_schedule, &now))
		outbox_scheduled_failed();
}

static void
run_backlog(void *arg)
{
	TimestampTz *now = arg;

	if (!outbox_backlog_limit_step(*now))
		outbox_loop.due.retry_locks_at = *now + OUTBOX_RETRY_LOCKS_AFTER;
}

static void
run_dedup(void *arg)
{
	outbox_dedup_sweep(*(TimestampTz *) arg);
}

static void
dedup_step(TimestampTz now)
{
	if (now >= outbox_dedup_next_time() && outbox_step_may(OUTBOX_STEP_DEDUP) &&
		!outbox_step_run(OUTBOX_STEP_DEDUP, run_dedup, &now))
		outbox_dedup_failed();
}

/*
 * Settle first: after reporting that it has no copies, this worker must write no data of
 * the tenant.
 */
static void
forget_step(TimestampTz now)
{
	if (now >= outbox_forget_report_time() && now >= outbox_loop.due.retry_locks_at)
	{
		outbox_settle_step(now, true);
		if (outbox_loop.due.settle_since == 0)
			outbox_forget_report(now);
	}
	if (outbox_loop.database_ours && now >= outbox_forget_next_time() &&
		outbox_step_may(OUTBOX_STEP_FORGET) &&
		!outbox_step_run(OUTBOX_STEP_FORGET, outbox_forget_run, &now))
		outbox_forget_failed();
}

static void
retention_step(TimestampTz now)
{
	if (now < outbox_retention_next_time())
		return;

	/*
	 * Positions in memory have to be stored before it is decided which part of the log
	 * can be emptied.  Other workers store theirs within seconds, and then it is decided
	 * again.
	 */
	if (outbox_retention_checks_log(now))
	{
		outbox_settle_step(now, true);
		if (outbox_loop.due.settle_since != 0)
			return;
	}
	outbox_retention_run();
}

/* Reads from the tables where another worker has left the work of the database. */
static void
take_database(void *arg)
{
	(void) arg;
	outbox_txn_begin_step();
	outbox_retention_init(db);
	outbox_positions_in_use(db);
	outbox_totals_read(db);
	outbox_txn_commit();
	outbox_scheduled_begin();
	outbox_loop.database_ours = true;
}

void
outbox_database_step(TimestampTz now)
{
	if (!outbox_loop.database_ours && outbox_serves_database() &&
		now >= outbox_loop.due.retry_locks_at)
		(void) outbox_step_run(OUTBOX_STEP_DATABASE, take_database, NULL);
}

void
outbox_chores_first(TimestampTz now)
{
	command_step(now);
	if (!outbox_enabled)
		return;
	if (outbox_loop.database_ours)
		schedule_step(now);
	replay_step(now);
}

void
outbox_chores_backlog(TimestampTz now)
{
	if (now >= outbox_loop.due.retry_locks_at && now >= outbox_backlog_limit_next_time())
		(void) outbox_step_run(OUTBOX_STEP_BACKLOG, run_backlog, &now);
}

void
outbox_chores_last(TimestampTz now)
{
	outbox_settle_step(now, false);
	forget_step(now);
	if (now >= outbox_leftovers_next_time())
		outbox_leftovers_run(now);
	if (!outbox_loop.database_ours)
		return;
	retention_step(now);
	dedup_step(now);
}

bool
outbox_chores_have_work(TimestampTz now)
{
	if (now < outbox_loop.due.retry_locks_at)
		return false;
	return (outbox_step_may(OUTBOX_STEP_DATABASE) &&
			outbox_loop.database_ours != outbox_serves_database()) ||
		(outbox_step_may(OUTBOX_STEP_COMMAND) &&
		 outbox_operator_commands_have_work(now)) ||
		(outbox_enabled && outbox_step_may(OUTBOX_STEP_REPLAY) &&
		 outbox_replays_have_work());
}

TimestampTz
outbox_chores_next_time(void)
{
	TimestampTz until = outbox_step_next_time();

	if (outbox_step_may(OUTBOX_STEP_COMMAND))
		until = Min(until, outbox_operator_commands_next_time());
	if (outbox_step_may(OUTBOX_STEP_BACKLOG))
		until = Min(until, outbox_backlog_limit_next_time());
	if (outbox_loop.due.settle_since != 0)
		until = Min(until,
					outbox_loop.due.settle_since +
						outbox_settle_interval * INT64CONST(1000));
	else
		until = Min(until, outbox_settle_behind_at(&outbox_loop.to_settle));
	until = Min(until, outbox_forget_report_time());
	until = Min(until, outbox_leftovers_next_time());
	if (!outbox_loop.database_ours)
		return until;
	if (outbox_step_may(OUTBOX_STEP_FORGET))
		until = Min(until, outbox_forget_next_time());
	until = Min(until, outbox_retention_next_time());
	if (outbox_loop.due.settle_since == 0)
		until = Min(until, totals_due()); /* else the settle that waits writes them */
	if (outbox_step_may(OUTBOX_STEP_DEDUP))
		until = Min(until, outbox_dedup_next_time());
	if (outbox_enabled && outbox_step_may(OUTBOX_STEP_SCHEDULE))
		until = Min(until, outbox_scheduled_next_time(db));
	return until;
}

/*
 * The endpoints are examined in turn, so that all of them give up something before one does
 * twice.  Nothing is read for them before they may send again.
 */
void
outbox_chores_give_up(TimestampTz now)
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
