/*
 * worker.c
 *	  Owns the loop of a worker.  In each round requests proceed, the log is read,
 *	  free slots are filled and outcomes are settled.  Then the worker sleeps until
 *	  one of these has something to do.
 *
 * No transaction, snapshot or lock is held across a wait or a request.  A step that
 * fails is put on hold, and the others continue (step.h).  An error anywhere else
 * ends the process.  The launcher starts another one, which reads all that it needs
 * from the tables.
 */
#include "base/outbox.h"

#include "libpq/pqsignal.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"

#include "base/compat.h"
#include "base/crash_point.h"
#include "base/log_lines.h"
#include "base/memory.h"
#include "base/settings.h"
#include "endpoint/packed_settings.h"
#include "endpoint/subscribers.h"
#include "endpoint/window.h"
#include "log/durable.h"
#include "log/standbys.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "server/worker_processes.h"
#include "server/worker_slot.h"
#include "store/settle.h"
#include "transport/sinks.h"
#include "worker/busy.h"
#include "worker/challenges.h"
#include "worker/changes.h"
#include "worker/chores.h"
#include "worker/clock.h"
#include "worker/dispatch.h"
#include "worker/head.h"
#include "worker/judge.h"
#include "worker/laggards.h"
#include "worker/leftovers.h"
#include "worker/links.h"
#include "worker/loop.h"
#include "worker/others.h"
#include "worker/publish.h"
#include "worker/reader.h"
#include "worker/reload.h"
#include "worker/roster.h"
#include "worker/slots.h"
#include "worker/watchdog.h"
#include "worker/worker_start.h"

/* µs that a request may take when its endpoint was dropped, or is to be loaded again. */
#define CANCEL_AFTER (500 * 1000)

#define WATCH_STANDBYS_EVERY 1	/* ms, while they have not flushed enough */
#define AWAIT_STANDBYS_EVERY 50 /* ms, while too few are streaming */

/*
 * A read of the log costs the same for one event as for a hundred.  So a single
 * event is read at once, and events that come quickly are read together: after each
 * read the worker rests.  The rest is READ_REST_FACTOR times the duration of the read for
 * each commit that was found, and at most READ_REST_MAX µs.  Under load, more events
 * are then read at once.  Reads may be ahead of their rests by READ_BURST µs.
 */
#define READ_REST_FACTOR 8
#define READ_BURST 2000
#define READ_REST_MAX 2000

/*
 * When commits are asynchronous, events that were read have to be flushed before they are
 * sent, and nothing else is done meanwhile.  So the next read is put off by FLUSH_SHARE
 * times the duration of the flush.
 */
#define FLUSH_SHARE 3

/* µs by which the next read is put off at most, also after a flush that took very long */
#define PUT_OFF_MAX (100 * 1000)

static char			*instance_name; /* outbox.instance_name when the process started */
static MemoryContext loop_cxt;

static uint64	   seen_emitted;
static TimestampTz fill_at; /* when an endpoint has something to send by itself */
static TimestampTz wakeup_at;
static TimestampTz read_not_before; /* no new tick is taken before this time */
static TimestampTz read_again_at; /* nothing is read before this time: what would have to
									 * be known first is locked */
static XLogRecPtr  send_from_lsn; /* nothing at all is sent before the WAL is durable up
									 * to here */
static XLogRecPtr  needed_lsn;	  /* events that were read wait for the WAL up to here */

static void
delivery_ended(OutboxEndpoint *ep, TimestampTz now)
{
	outbox_loop_want_settle(now, ep->queue->nsettling > 0);
	outbox_busy_add(ep);
	if (ep->feed->drop_window)
		outbox_window_drop(ep, &outbox_loop.head);
}

/* ------------------------------------------------------------ the steps */

static void
put_off_reading(int64 usec)
{
	read_not_before = Min(read_not_before + usec, GetCurrentTimestamp() + PUT_OFF_MAX);
}

/*
 * True if a new tick is to be taken.  A worker without endpoints does so only at
 * wakeup_at.  While the current tick is not read to its end, no other is taken, and
 * events that were committed since then remain news.
 */
static bool
is_news(uint64 emitted, TimestampTz now)
{
	return outbox_loop.head.reading == NULL && now >= read_not_before &&
		(now >= wakeup_at || (emitted != seen_emitted && outbox_loop.roster.n > 0));
}

/*
 * Settings have changed that were not read.  The next round reads them.  If they cannot be
 * read now, the head goes on without the endpoints that they belong to.  False: it has to
 * wait.
 */
static bool
pass_over_changed(void)
{
	static uint64 done_for; /* the counter of changes, when that was last done */
	uint64		  changed = pg_atomic_read_u64(outbox_loop.changed);

	if (outbox_step_may(OUTBOX_STEP_RELOAD))
		return !outbox_head_waits();
	if (done_for != changed && !outbox_reload_put_off())
	{
		read_again_at = GetCurrentTimestamp() + OUTBOX_RETRY_LOCKS_AFTER;
		return false;
	}
	done_for = changed;
	outbox_head_may_read();
	return true;
}

typedef struct Reading
{
	TimestampTz now;
	bool		head; /* true if the head may be read */
	bool		news;
	bool		more;
	uint64		emitted;
} Reading;

static void
read_log(void *arg)
{
	Reading *r = arg;
	bool	 waits;

	outbox_txn_begin_read();

	/*
	 * 'emitted' was read before the snapshot is taken.  A transaction that commits
	 * after the snapshot raises the counter later, so it remains news.
	 */
	waits = r->head && outbox_loop_reload_is_due() && !pass_over_changed();
	r->more = waits || outbox_reader_step(r->head, r->news, r->now, &needed_lsn);
	OUTBOX_CRASH_POINT("read.page");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("read.committed");
	if (r->news && !waits)
	{
		int64 answered = Max(r->emitted - seen_emitted, 1);

		seen_emitted = r->emitted;
		wakeup_at = r->now + outbox_wakeup_interval * INT64CONST(1000);
		read_not_before = Max(read_not_before, r->now - READ_BURST);
		put_off_reading(Min((GetCurrentTimestamp() - r->now) * READ_REST_FACTOR *
								Min(answered, READ_REST_MAX),
							READ_REST_MAX));
	}
}

/* True if there is something to read now, and 'unlocked'.  Fills 'r'. */
static bool
reading_is_due(Reading *r, bool unlocked, TimestampTz now)
{
	*r = (Reading){.now = now,
				   .head = outbox_step_may(OUTBOX_STEP_READ),
				   .emitted = pg_atomic_read_u64(&outbox_db->emitted)};
	r->news = r->head && is_news(r->emitted, now);
	return unlocked && now >= read_again_at &&
		(r->news || outbox_reader_has_work(r->head, now));
}

/*
 * Reads from the log.  While reading the head is on hold, endpoints that are
 * catching up and retries are still read, and the other way round.  'unlocked': no step
 * of the rounds before has met a lock just now.  True: there is more to read at once.
 */
static bool
read_step(bool unlocked, TimestampTz now)
{
	Reading			r;
	OutboxEndpoint *ep;
	OutboxStepError failure;

	if (!reading_is_due(&r, unlocked, now))
		return false;
	if (outbox_step_try(read_log, &r, &failure))
	{
		if (r.head)
			outbox_step_passed(OUTBOX_STEP_READ, 0);
		return r.more;
	}
	if (!r.head && outbox_step_blamed() == 0)
		outbox_loop.due.retry_locks_at = now +
			(outbox_step_was_locked(&failure) ? OUTBOX_RETRY_LOCKS_AFTER : USECS_PER_SEC);
	outbox_step_hold(OUTBOX_STEP_READ, outbox_step_blamed(), &failure);
	ep = outbox_loop_find(outbox_step_blamed());
	if (ep)
		outbox_busy_add(ep); /* a batch waits no longer for events that cannot be read */
	return false;
}

/* Reports to outbox.status whether this worker sends, and why not. */
static void
report_state(void)
{
	static OutboxWorkerState reported = OUTBOX_WORKER_STARTING;
	static char				 reported_reason[256];
	OutboxWorkerState		 state = OUTBOX_WORKER_RUNNING;
	char					 reason[256] = "";

	if (!outbox_enabled)
	{
		state = OUTBOX_WORKER_DISABLED;
		strlcpy(reason, "outbox.enabled is off", sizeof(reason));
	}
	else if (outbox_standbys_missing())
	{
		state = OUTBOX_WORKER_HELD;
		outbox_standbys_explain(reason, sizeof(reason));
	}
	if (state == reported && strcmp(reason, reported_reason) == 0)
		return;
	reported = state;
	strlcpy(reported_reason, reason, sizeof(reported_reason));
	outbox_worker_slot_report(state, reason);
}

/*
 * Flushes the WAL and notes up to where it is durable, here and on the required standbys.
 * An event that lies beyond is not sent, because a crash or a failover could undo it.
 */
static void
check_durability(void)
{
	bool		may;
	XLogRecPtr	durable;
	TimestampTz begun = GetCurrentTimestamp();

	needed_lsn = Max(needed_lsn, outbox_fetched_lsn);
	OUTBOX_CRASH_POINT("flush.begin");
	durable = outbox_log_flush(needed_lsn);
	durable = Max(durable, outbox_durable_lsn);
	OUTBOX_CRASH_POINT("flush.done");
	put_off_reading((GetCurrentTimestamp() - begun) * FLUSH_SHARE);
	report_state();
	may = outbox_enabled && durable >= send_from_lsn && !outbox_standbys_missing();
	if (durable != outbox_durable_lsn || may != outbox_loop.traffic.sending_allowed)
		outbox_loop.traffic.refill_all = true;
	if (may && !outbox_loop.traffic.sending_allowed)
		outbox_roster_wake_all(false);
	outbox_loop.traffic.all_durable = durable >= needed_lsn;
	outbox_durable_lsn = durable;
	outbox_loop.traffic.sending_allowed = may;
}

/* Publishes the state that the views show. */
static void
publish(TimestampTz now)
{
	static TimestampTz at;
	bool			   due = now - at >= USECS_PER_SEC || now < at;

	/* Once a second: the system's figures of the process do not change faster. */
	if (due)
	{
		at = now;
		pg_atomic_write_u64(&outbox_self->resident, outbox_memory_resident(NULL));
		pg_atomic_write_u64(&outbox_self->bound,
							outbox_memory_bound(outbox_loop.roster.n,
												outbox_settings_memory() +
													outbox_subscribers_memory() +
													outbox_others_memory()));
	}
	outbox_log_lines_sum_up(now);
	outbox_publish(now);

	/* Before a longer sleep, or the figures would have requests that have ended. */
	if (!due)
		outbox_loop.due.publish_at = Min(outbox_loop.due.publish_at, at + USECS_PER_SEC);
	pg_atomic_write_u64(&outbox_self->endpoints, outbox_loop.roster.n);
	pg_atomic_write_u64(&outbox_self->in_flight, outbox_slots_in_flight());
	pg_atomic_write_u64(&outbox_self->memory, outbox_memory_used);
	pg_atomic_write_u64(&outbox_self->delivered, outbox_loop.traffic.delivered);
	pg_atomic_write_u64(&outbox_self->last_loop_at, now);
	pg_atomic_write_u64(&outbox_self->looked_at, outbox_head_looked_at());
	if (outbox_loop.unmatched > 0)
	{
		pg_atomic_fetch_add_u64(&outbox_db->unmatched, outbox_loop.unmatched);
		outbox_count_total(OUTBOX_COUNT_UNMATCHED, outbox_loop.unmatched);
	}
	outbox_loop.unmatched = 0;
}

/*
 * Acts on a change of shares.  A reload of the settings loads the endpoints of new
 * shares.  Endpoints of shares that go to another worker leave with the next
 * settle.
 */
static void
shares_step(TimestampTz now)
{
	OutboxSharesChange news;

	if (!outbox_shares_changed())
		return;
	news = outbox_shares_update();
	if (news.retired)
	{
		outbox_step_forget(0);
		ShutdownRequestPending = true;
	}
	if (news.taken)
		outbox_loop.roster.reload_at = 0;
	if (news.leaving)
	{
		outbox_roster_leave();
		outbox_leftovers_leave();
		outbox_loop_want_settle(now, false);
	}
	outbox_loop.database_ours = outbox_loop.database_ours && outbox_serves_database();
}

static TimestampTz
reload_due(void)
{
	if (!outbox_step_may(OUTBOX_STEP_RELOAD))
		return DT_NOEND;
	return outbox_loop_reload_is_due() || outbox_roster_to_load() != NIL ||
			outbox_loop.roster.to_come > 0 ?
		0 :
		Min(outbox_loop.roster.reload_at, outbox_changes_timed_at());
}

static void
reload_roster(void *arg)
{
	outbox_reload(outbox_serves_database() && !outbox_loop.database_ours);
}

static void
reload_step(TimestampTz now)
{
	bool taken = outbox_loop.roster.reload_at == 0 || outbox_roster_to_load() != NIL;

	if (now < outbox_loop.due.retry_locks_at || now < reload_due())
		return;
	if (!outbox_step_run(OUTBOX_STEP_RELOAD, reload_roster, NULL))
	{
		outbox_reload_failed();
		return;
	}
	/*
	 * A worker that takes a share reads its endpoints from tables.  The rows may
	 * come from commits that are not flushed yet, so nothing is sent, not even a
	 * retry, until the WAL is.
	 */
	if (taken)
		send_from_lsn = needed_lsn = Max(needed_lsn, outbox_log_end());
	wakeup_at = now; /* an endpoint may start behind the last tick */
	outbox_loop.commands_pending = true;
	outbox_loop.replays_changed = true;
	outbox_loop_want_settle(now, false);
}

/*
 * Returns the milliseconds until something is due by itself.  0: it is due now.
 * Sets fill_at and outbox_self->resting.
 *
 * 'examined_at' is the time for which this round has examined the endpoints.  Work that
 * has become due since then is still to be done, so the next time of an endpoint is asked
 * for as of then.  A later "nothing more to wait for" would mean that it was done.
 */
static long
time_to_sleep(TimestampTz examined_at, bool more)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = Min(outbox_loop.due.publish_at, outbox_chores_next_time());
	bool		unlocked = now >= outbox_loop.due.retry_locks_at;
	bool		sharing = outbox_loop.due.settle_at == 0 &&
		outbox_settle_may_share(&outbox_loop.to_settle);
	Reading r;
	long	ms;

	fill_at = DT_NOEND;
	until = Min(until, outbox_busy_next_time());
	if (outbox_enabled)
		until = Min(until, outbox_laggards_next_time(now));

	/*
	 * A lock wait inside a transaction may have reset the latch, so the counters
	 * are compared as well.  While the worker rests until read_not_before, a
	 * session that emits need not wake it.
	 */
	pg_atomic_write_u64(&outbox_self->resting, now < read_not_before);
	pg_memory_barrier(); /* outbox_self->endpoints, too, before the counters are read */
	if (outbox_shares_changed() || ShutdownRequestPending || ConfigReloadPending)
		return 0;
	if (outbox_enabled && ((more && unlocked) || reading_is_due(&r, unlocked, now)))
		return 0;
	if (outbox_loop.traffic.refill_all && outbox_loop.traffic.sending_allowed)
		return 0;
	if (sharing && outbox_busy_some_share())
		return 0;
	until = Min(until, reload_due());
	if (outbox_enabled && outbox_step_may(OUTBOX_STEP_READ))
		until = Min(until,
					Max(read_again_at,
						now < read_not_before ? read_not_before : wakeup_at));
	if (outbox_loop.roster.recreating)
		until = Min(until, now + CANCEL_AFTER / 10);
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
	{
		if (outbox_loop.traffic.sending_allowed && !outbox_slots_waits(ep))
			fill_at = Min(fill_at, outbox_dispatch_next_time(ep, examined_at));
		if (sharing && outbox_is_quiet(ep) && !ep->place.shared)
			until = Min(until, outbox_settle_shares_at(ep));
		until = Min(until, ep->link->look_at);
	}
	until = Min(until, outbox_loop.due.judge_at);
	if (now < read_again_at)
		until = Min(until, read_again_at);
	fill_at = Min(fill_at, outbox_slots_next_time());
	if (outbox_slots_wanted() && outbox_slots_in_flight() == 0)
		fill_at = now + OUTBOX_RETRY_LOCKS_AFTER; /* there was no memory for a request */
	until = Min(until, fill_at);
	if (now < outbox_loop.due.retry_locks_at)
		until = outbox_loop.due.retry_locks_at; /* a wait for a lock may be urgent */
	/* It has to go round, or it would be shown as stuck. */
	ms = until <= now ?
		0 :
		(long) Min((until - now + 999) / 1000, outbox_wakeup_interval + 5 * 1000);
	for (int i = 0; i < outbox_ntransports; i++)
	{
		long wanted = outbox_transports[i]->timeout();

		if (wanted >= 0)
			ms = Min(ms, wanted);
	}
	if (outbox_enabled && outbox_standbys_missing())
		ms = Min(ms, AWAIT_STANDBYS_EVERY);
	else if (outbox_enabled && outbox_durable_lsn < needed_lsn)
		ms = Min(ms, WATCH_STANDBYS_EVERY);
	return ms;
}

static void
shut_down(void)
{
	outbox_session_ends();

	/* The stored positions name the requests in flight, so they are made again. */
	outbox_chores_end(GetCurrentTimestamp());
	OUTBOX_CRASH_POINT("stop.settled");
	outbox_watchdog_call_all(shutdown);
	proc_exit(0);
}

/* A call for an endpoint does not return, and was left, or a thread has crashed. */
static void
end_stuck(void)
{
	OutboxEndpoint *ep = outbox_loop_find(outbox_watchdog_blamed());

	outbox_watchdog_end(ep ? outbox_tenant_number(ep->tenant) : 0);
}

static void
loop(void)
{
	WaitEventSet *set = outbox_create_wait_event_set(2 + OUTBOX_SINKS_MAX);

	outbox_session_stores_at_end();
	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < outbox_ntransports; i++)
		if (outbox_transports[i]->fd() >= 0)
			AddWaitEventToSet(set, WL_SOCKET_READABLE, outbox_transports[i]->fd(), NULL,
							  NULL);

	for (;;)
	{
		TimestampTz now;
		WaitEvent	event;
		long		ms;
		bool		more = false, reads, unlocked;

		/* A query cancel outside a transaction has nothing to cancel. */
		QueryCancelPending = false;
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(loop_cxt);
		MemoryContextReset(loop_cxt);
		if (outbox_watchdog.crashed)
			end_stuck();
		if (ShutdownRequestPending)
			shut_down();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (strcmp(outbox_instance_name, instance_name) != 0)
				shut_down(); /* the origin of the log has to be checked again */
			if (outbox_sinks_outdated())
				shut_down(); /* libraries are loaded when a worker starts */
			outbox_sinks_reload();
			outbox_links_reload();
			outbox_reload_by_and_by(); /* the key file may have changed */
			outbox_roster_wake_all(true);
			outbox_step_retry_all();
			outbox_loop.traffic.refill_all = true;

			/* Standbys may be required that were not when the events were read. */
			if (outbox_standbys_required())
				send_from_lsn = needed_lsn = Max(needed_lsn, outbox_log_end());
		}

		outbox_dispatch_new_round();
		outbox_watchdog_call_all(poll);
		now = GetCurrentTimestamp();
		if (outbox_clock_went_back(now))
		{
			outbox_settle_step(now, true);
			outbox_clock_follow(now);
			shut_down();
		}
		outbox_busy_wake(now);
		outbox_judge_again(now);
		shares_step(now);
		reload_step(now);
		if (outbox_loop.roster.recreating)
			outbox_roster_cancel(now - CANCEL_AFTER);

		/* A chore may wait for a settle, and a settle for a table that no reader needs. */
		unlocked = now >= outbox_loop.due.retry_locks_at;
		reads = outbox_chores_first(now) && outbox_enabled;
		outbox_chores_give_up(now);
		if (reads)
			more = read_step(unlocked, now);
		outbox_chores_backlog(now);
		check_durability();
		outbox_links_step(now);
		outbox_challenges_step(now);
		if (outbox_loop.traffic.refill_all || now >= fill_at)
		{
			outbox_dispatch_fill_all(now);
			outbox_dispatch_flush();
		}
		outbox_chores_last(now);
		outbox_memory_give_back(now);
		publish(now);

		ms = time_to_sleep(now, more);
		now = GetCurrentTimestamp();
		if (WaitEventSetWait(set, ms, &event, 1, PG_WAIT_EXTENSION) > 0 &&
			event.events == WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (ms > 0)
			outbox_flow_slept(GetCurrentTimestamp() - now);
	}
}

/*
 * The server log cannot name a background worker's database by itself (%d is empty).
 * So each line of a worker says which it is.
 */
static void
name_worker(void *arg)
{
	errcontext("outbox worker %d of database \"%s\"", outbox_worker_number + 1,
			   outbox_session_database());
}

void
outbox_worker_main(Datum arg)
{
	ErrorContextCallback context = {.callback = name_worker, .previous = NULL};

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die); /* PostgreSQL's own ends it under a lock or in malloc() */
	BackgroundWorkerUnblockSignals();
	outbox_worker_slot_attach(OUTBOX_ARGUMENT_SLOT(arg), OUTBOX_ARGUMENT_WORKER(arg));
	BackgroundWorkerInitializeConnectionByOid(outbox_db->dboid, InvalidOid, 0);

	/*
	 * From here on SIGTERM is a request, so that outcomes are settled before the
	 * end.
	 */
	pqsignal(SIGTERM, outbox_session_sigterm);

	if (!outbox_session_init())
	{
		outbox_worker_slot_no_extension();
		proc_exit(0);
	}
	error_context_stack = &context;
	loop_cxt = AllocSetContextCreate(TopMemoryContext, "outbox loop",
									 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(loop_cxt);
	instance_name = MemoryContextStrdup(TopMemoryContext, outbox_instance_name);
	outbox_step_init();
	outbox_worker_start(delivery_ended);
	seen_emitted = pg_atomic_read_u64(&outbox_db->emitted);
	outbox_shares_join();
	if (sigsetjmp(outbox_watchdog_way_out, 1) != 0)
		end_stuck();
	loop();
}
