/*
 * chores.c
 *	  Owns the work of a worker besides reading and sending: outcomes are
 *	  settled, scheduled events move into the log, commands and replays are
 *	  carried out, old events, attempts and deduplication keys are forgotten.
 *
 * Each of these is a step (step.h).  A step that fails is put on hold, and the
 * others continue.  One table says of each when it is due and how it is carried out, so
 * that the worker never sleeps past one, nor wakes for one that it does not do.
 */
#include "base/outbox.h"

#include "storage/latch.h"
#include "utils/wait_event.h"

#include "base/crash_point.h"
#include "base/settings.h"
#include "emit/dedup.h"
#include "emit/scheduled.h"
#include "endpoint/status.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "store/attempts.h"
#include "store/figures.h"
#include "store/own_events.h"
#include "store/positions.h"
#include "store/settle.h"
#include "store/totals.h"
#include "store/unsettled.h"
#include "worker/backlog_limit.h"
#include "worker/busy.h"
#include "worker/chores.h"
#include "worker/dispatch.h"
#include "worker/forget.h"
#include "worker/forget_pass.h"
#include "worker/kept_limit.h"
#include "worker/leftovers.h"
#include "worker/loop.h"
#include "worker/operator_commands.h"
#include "worker/reader.h"
#include "worker/replay.h"
#include "worker/roster.h"
#include "worker/source_keeper.h"

/* Endpoints of which one round asks whether they can give up memory. */
#define GIVE_UP_AT_ONCE 256

/* Returns the number of deliveries that the next settle writes, or has left. */
static int
not_written(void)
{
	return outbox_unsettled_n + outbox_loop.traffic.unsent;
}

/* Returns when the next settle is due, if nothing else happens. */
static TimestampTz
settle_due(void)
{
	return outbox_loop.due.settle_at != 0 ?
		outbox_loop.due.settle_at :
		Min(outbox_settle_behind_at(&outbox_loop.to_settle), outbox_totals_due());
}

/* Endpoints whose outcomes are to be settled are noted in outbox_publish(). */
static bool
something_to_settle(TimestampTz now)
{
	return settle_due() <= now || not_written() > 0 || outbox_loop.roster.recreating ||
		(outbox_attempts_wait() && !outbox_step_held(OUTBOX_STEP_ATTEMPTS, 0)) ||
		outbox_shares_leaving() || outbox_own_events_waits() ||
		(outbox_settle_may_share(&outbox_loop.to_settle) &&
		 (outbox_busy_some_share() ||
		  outbox_settle_wants_head(&outbox_loop.head, now))) ||
		(outbox_step_may(OUTBOX_STEP_PARKED) && outbox_reader_wants_followers());
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

	for (int n = outbox_busy_wake_loaded();
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
		outbox_reader_bring_followers();
	OUTBOX_CRASH_POINT("followers.read");
	outbox_txn_commit();
}

static void
compact_positions(void *arg)
{
	(void) outbox_positions_compact();
}

void
outbox_settle_step(TimestampTz now, bool final)
{
	bool		due = outbox_loop.due.settle_at != 0 && outbox_loop.due.settle_at <= now;
	TimestampTz begun;

	if (!final && !due && not_written() < OUTBOX_SETTLE_AFTER)
	{
		if (outbox_loop.due.settle_at == 0 && something_to_settle(now))
			outbox_loop_want_settle(now, false);
		return;
	}
	if (!final && now < outbox_loop.due.retry_locks_at)
		return;
	begun = GetCurrentTimestamp();
	settle_those_that_share();
	if (!outbox_settle(&outbox_loop.to_settle, &outbox_loop.head, final))
	{
		outbox_loop.due.retry_locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	outbox_loop.due.settled_at = GetCurrentTimestamp();
	outbox_loop.due.settle_took += outbox_loop.due.settled_at - begun;
	if (outbox_settle_was_released())
		outbox_loop.commands_pending = true;
	outbox_loop.traffic.refill_all = true;
	outbox_busy_add_settled(); /* lanes may have advanced */
	if (outbox_loop.to_settle.more)
	{
		outbox_loop.due.settle_at = now;
		return;
	}
	outbox_unsettled_end_all();
	outbox_loop.traffic.unsent = 0;
	outbox_loop.due.settle_at = 0;
	if (outbox_reader_wants_followers())
		outbox_reader_followers_ended(
			!outbox_step_run(OUTBOX_STEP_FOLLOWERS, bring_followers, &now));
	if (final)
		return;
	if (outbox_positions_want_compaction(now))
		(void) outbox_step_run(OUTBOX_STEP_POSITIONS, compact_positions, NULL);
	outbox_roster_recreate();
}

/* ---------------------------------------------------------- the chores */

/* When a chore is carried out, besides that it is due. */
#define OF_DATABASE 0x01   /* by the worker that does the work of no endpoint */
#define WHILE_ENABLED 0x02 /* while outbox.enabled is on */
#define IF_UNLOCKED 0x04   /* not before retry_locks_at */
#define SETTLED 0x08	   /* once all outcomes are in the tables */

typedef struct Chore
{
	OutboxStep step; /* OUTBOX_STEPS: it has steps of its own, or cannot fail */
	int		   when;
	TimestampTz (*due)(void); /* DT_NOEND: never */
	OutboxStepBody run;		  /* with the time at which this chore began */
	void (*failed)(void);	  /* NULL: nothing is to be done */
} Chore;

static TimestampTz
database_due(void)
{
	return outbox_loop.database_ours || !outbox_serves_database() ? DT_NOEND : 0;
}

/* Reads from the tables where another worker has left the work of the database. */
static void
take_database(void *arg)
{
	outbox_txn_begin_step();
	outbox_retention_init();
	outbox_positions_in_use();
	outbox_totals_read();
	outbox_txn_commit();
	outbox_scheduled_begin();
	outbox_loop.database_ours = true;
}

static void
run_backlog(void *now)
{
	if (!outbox_backlog_limit_step(*(TimestampTz *) now))
		outbox_loop.due.retry_locks_at = *(TimestampTz *) now + OUTBOX_RETRY_LOCKS_AFTER;
}

/* Settles, in parts.  False: the next round goes on. */
static bool
settled(TimestampTz now)
{
	outbox_loop.due.settle_at = now;
	outbox_settle_step(now, false);
	return outbox_loop.due.settle_at == 0;
}

/*
 * Positions in memory have to be stored before it is decided which part of the log can be
 * emptied.  Other workers store theirs within seconds, and then it is decided again.
 */
static void
run_retention(void *now)
{
	if (!outbox_retention_checks_log(*(TimestampTz *) now) ||
		settled(*(TimestampTz *) now))
		outbox_retention_run();
}

/* The first FIRST_CHORES come before the log is read, the next before events are sent. */
#define FIRST_CHORES 3

static const Chore chores[] = {
	{OUTBOX_STEP_DATABASE, IF_UNLOCKED, database_due, take_database, NULL},
	{OUTBOX_STEP_COMMAND, IF_UNLOCKED | SETTLED, outbox_operator_commands_due,
	 outbox_operator_commands_run, outbox_operator_commands_failed},
	{OUTBOX_STEP_SCHEDULE, OF_DATABASE | WHILE_ENABLED, outbox_scheduled_next_time,
	 outbox_scheduled_step, outbox_scheduled_failed},
	{OUTBOX_STEP_BACKLOG, IF_UNLOCKED, outbox_backlog_limit_next_time, run_backlog, NULL},
	{OUTBOX_STEP_BACKLOG, IF_UNLOCKED, outbox_kept_limit_due, outbox_kept_limit_run,
	 NULL},
	{OUTBOX_STEP_REPLAY, WHILE_ENABLED | IF_UNLOCKED | SETTLED, outbox_replays_due,
	 outbox_replays_run, NULL},

	/* After its report this worker must write no data of the tenant. */
	{OUTBOX_STEPS, IF_UNLOCKED | SETTLED, outbox_forget_report_time, outbox_forget_report,
	 NULL},
	{OUTBOX_STEP_FORGET, OF_DATABASE, outbox_forget_next_time, outbox_forget_run,
	 outbox_forget_pass_drop},
	{OUTBOX_STEP_SEEK, 0, outbox_leftovers_moved_due, outbox_leftovers_run_moved, NULL},
	{OUTBOX_STEP_LEFTOVERS, 0, outbox_leftovers_dropped_due, outbox_leftovers_run_dropped,
	 NULL},
	{OUTBOX_STEPS, OF_DATABASE, outbox_retention_next_time, run_retention, NULL},
	{OUTBOX_STEP_DEDUP, OF_DATABASE, outbox_dedup_next_time, outbox_dedup_sweep,
	 outbox_dedup_failed},

	/* A physical copy that is not to send must leave the slots of the original alone. */
	{OUTBOX_STEPS, OF_DATABASE | WHILE_ENABLED, outbox_sources_next_time,
	 outbox_sources_run, NULL},
	{OUTBOX_STEPS, OF_DATABASE, outbox_figures_look_due, outbox_figures_look, NULL},
	{OUTBOX_STEP_FIGURES, 0, outbox_figures_due, outbox_figures_write, NULL},
};

/* Returns when the chore is due, if it may be carried out. */
static TimestampTz
due(const Chore *c)
{
	if ((c->step != OUTBOX_STEPS && !outbox_step_may(c->step)) ||
		((c->when & OF_DATABASE) && !outbox_loop.database_ours) ||
		((c->when & WHILE_ENABLED) && !outbox_enabled))
		return DT_NOEND;
	return c->due();
}

static void
carry_out(const Chore *c, TimestampTz now)
{
	TimestampTz begun = now;

	if (((c->when & IF_UNLOCKED) && now < outbox_loop.due.retry_locks_at) || now < due(c))
		return;
	if (c->when & SETTLED)
	{
		begun = GetCurrentTimestamp();
		if (!settled(now))
			return;
	}
	if (c->step == OUTBOX_STEPS)
		c->run(&begun);
	else if (!outbox_step_run(c->step, c->run, &begun) && c->failed)
		c->failed();
}

/*
 * An endpoint that a settle has freed to be loaded again is loaded before the head goes on.
 * Else its events would count as unmatched.
 */
bool
outbox_chores_first(TimestampTz now)
{
	bool loads = outbox_roster_to_load() != NIL;

	for (int i = 0; i < FIRST_CHORES; i++)
		carry_out(&chores[i], now);
	return loads || outbox_roster_to_load() == NIL;
}

/* µs for which a worker that ends waits for locks that other sessions have. */
#define END_WAITS (2 * USECS_PER_SEC)

/* Settles, and writes the figures of open buckets as well, because their worker ends. */
void
outbox_chores_end(TimestampTz now)
{
	dlist_head *figures = outbox_tally_figures();
	TimestampTz until = now + END_WAITS;
	int			before = -1;

	for (int i = 0; i < outbox_loop.roster.n; i++)
		outbox_attempts_worker_ends(outbox_loop.roster.endpoints[i], now);
	for (;;)
	{
		dlist_node *first;

		outbox_settle_step(now, true);
		if (not_written() != before)
			outbox_tally_end_open(DT_NOEND);
		before = not_written();
		first = dlist_is_empty(figures) ? NULL : dlist_head_node(figures);
		(void) outbox_step_run(OUTBOX_STEP_FIGURES, outbox_figures_write, &now);
		now = GetCurrentTimestamp();
		if (dlist_is_empty(figures) && not_written() == 0 && !outbox_attempts_wait())
			return;
		if (!dlist_is_empty(figures) && dlist_head_node(figures) != first)
			continue;
		if (now >= until)
			return;
		ResetLatch(MyLatch);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 OUTBOX_RETRY_LOCKS_AFTER / 1000, PG_WAIT_EXTENSION);
	}
}

void
outbox_chores_backlog(TimestampTz now)
{
	carry_out(&chores[FIRST_CHORES], now);
}

void
outbox_chores_last(TimestampTz now)
{
	outbox_settle_step(now, false);
	for (size_t i = FIRST_CHORES + 1; i < lengthof(chores); i++)
		carry_out(&chores[i], now);
}

TimestampTz
outbox_chores_next_time(void)
{
	TimestampTz until = Min(outbox_step_next_time(), settle_due());

	for (size_t i = 0; i < lengthof(chores); i++)
		until = Min(until, due(&chores[i]));
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
