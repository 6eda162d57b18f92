/*
 * worker.c
 *	  The loop of one of a database's workers: requests move, the log is read,
 *	  slots are filled, outcomes are settled; then it sleeps until one of them
 *	  has something to do.
 *
 * No transaction, snapshot or lock is held across a wait or a request.  An SQL
 * error ends the process, and the launcher starts another one: everything that
 * matters is in tables.
 */
#include "outbox.h"

#include "executor/spi.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backlog.h"
#include "clock.h"
#include "command.h"
#include "compat.h"
#include "crash_point.h"
#include "dedup.h"
#include "deliver.h"
#include "launcher.h"
#include "memory.h"
#include "positions.h"
#include "publish.h"
#include "reader.h"
#include "replay.h"
#include "retention.h"
#include "roster.h"
#include "schedule.h"
#include "session.h"
#include "settle.h"
#include "shares.h"
#include "standbys.h"
#include "start.h"

/* How long a request may go on when its endpoint is to be read anew. */
#define CANCEL_AFTER (500 * 1000)

#define WATCH_STANDBYS_EVERY 1	/* ms; they have not flushed enough */
#define AWAIT_STANDBYS_EVERY 50 /* ms; too few are streaming */

/*
 * A look for news costs the same for one event as for a hundred.  A single one is
 * read at once; where many arrive, they are read together.  So a look is followed
 * by a rest of so many times what it took, for each commit that it answered: who
 * waits finds more the next time.  Looks may be ahead of their rests by the burst
 * (µs), and no rest is longer than what nobody minds who emits that fast (µs).
 */
#define LOOK_SHARE 8
#define LOOK_BURST 2000
#define LOOK_REST 2000

/*
 * When commits are asynchronous, what a look has found has to be flushed, and
 * that may take one part in so many: meanwhile nothing else is done.
 */
#define FLUSH_SHARE 3

/* At most (µs), however long that took: a flush that was held up blinds nobody. */
#define LOOK_REST_MAX (100 * 1000)

static OutboxDatabase *db;
static OutboxWorker *self;
static bool database_ours;		/* what belongs to no endpoint is done here */
static char *instance_name;		/* as of the start */
static MemoryContext loop_cxt;

static uint64 seen_emitted;
static uint64 seen_changed;
static TimestampTz fill_at;		/* some endpoint's own time */
static TimestampTz settle_since;	/* 0: nothing to settle */
static TimestampTz locks_at;	/* not before: a lock was not to be had */
static TimestampTz wakeup_at;
static TimestampTz look_at;		/* not before: it was looked often enough */
static XLogRecPtr start_lsn;	/* nothing at all is sent before the WAL is
								 * durable up to here */
static XLogRecPtr hold_lsn;		/* what was read waits for the WAL up to here */

static void
want_settle(TimestampTz now)
{
	if (settle_since == 0)
		settle_since = now;
}

static void
delivery_ended(OutboxEndpoint *ep, TimestampTz now)
{
	want_settle(now);
	outbox_fill_all = outbox_fill_all || outbox_starved;
	if (ep->drop_window)
		outbox_endpoint_drop_window(ep, &outbox_head);
}

/* ------------------------------------------------------------ the steps */

static void
look_later(int64 usec)
{
	look_at = Min(look_at + usec, GetCurrentTimestamp() + LOOK_REST_MAX);
}

/*
 * A worker without endpoints need not hurry.  Until what the last look found is
 * read there is no other look: what was committed since then stays news.
 */
static bool
is_news(uint64 emitted, TimestampTz now)
{
	return outbox_head.under == NULL && now >= look_at &&
		(now >= wakeup_at || (emitted != seen_emitted && outbox_nendpoints > 0));
}

static void
read_step(TimestampTz now, bool *more)
{
	uint64		emitted = pg_atomic_read_u64(&db->emitted);
	bool		news = is_news(emitted, now);
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	if (now < locks_at || (!news && !outbox_reader_has_work(&outbox_busy, now)))
		return;
	if (!outbox_begin(false))
	{
		locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}

	/*
	 * The counter was read before the snapshot is taken: whoever commits after
	 * the snapshot rings after this.
	 */
	*more = outbox_reader_step(&outbox_busy, news, now, &lsn);
	OUTBOX_CRASH_POINT("read.page");
	outbox_commit();
	OUTBOX_CRASH_POINT("read.committed");
	if (news)
	{
		int64		answered = Max(emitted - seen_emitted, 1);

		seen_emitted = emitted;
		wakeup_at = now + outbox_wakeup_interval * INT64CONST(1000);
		look_at = Max(look_at, now - LOOK_BURST);
		look_later(Min((GetCurrentTimestamp() - now) * LOOK_SHARE * Min(answered, LOOK_REST),
					   LOOK_REST));
	}
	hold_lsn = Max(hold_lsn, lsn);
}

/* Tells outbox.status whether this worker sends, and why not. */
static void
report_state(void)
{
	static OutboxWorkerState reported = OUTBOX_WORKER_STARTING;
	static char reported_reason[256];
	OutboxWorkerState state = OUTBOX_WORKER_RUNNING;
	char		reason[256] = "";

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
	outbox_worker_report(db, state, reason);
}

/*
 * Sends nothing that a crash, or a failover to one of the standbys that are
 * asked for, could take back.
 */
static void
check_durability(void)
{
	bool		may;
	XLogRecPtr	durable;
	TimestampTz begun = GetCurrentTimestamp();

	hold_lsn = Max(hold_lsn, outbox_fetched_lsn);
	OUTBOX_CRASH_POINT("flush.begin");
	durable = outbox_log_durable(hold_lsn) ? hold_lsn :
		Max(outbox_durable_lsn, outbox_standbys_lsn());
	OUTBOX_CRASH_POINT("flush.done");
	look_later((GetCurrentTimestamp() - begun) * FLUSH_SHARE);
	report_state();
	may = outbox_enabled && durable >= start_lsn && !outbox_standbys_missing();
	if (durable != outbox_durable_lsn || may != outbox_may_send)
		outbox_fill_all = true;
	outbox_durable_lsn = durable;
	outbox_may_send = may;
}

static bool
has_due_work(const OutboxEndpoint *ep)
{
	return ep->nin_flight > 0 || ep->nready > 0 || ep->window_count > 0;
}

/*
 * Fills free slots.  Where the worker's total is short, everyone first gets up
 * to an equal share, and then who comes first what is left.
 */
static void
fill_slots(TimestampTz now)
{
	bool		scarce = outbox_starved;
	dlist_iter	iter;

	outbox_fill_all = false;
	outbox_starved = false;
	if (scarce)
	{
		int			n = 0;

		dlist_foreach(iter, &outbox_busy)
			n += has_due_work(dlist_container(OutboxEndpoint, busy_node, iter.cur));
		dlist_foreach(iter, &outbox_busy)
			outbox_deliver_fill(dlist_container(OutboxEndpoint, busy_node, iter.cur),
								now, outbox_worker_max_in_flight / Max(n, 1));
	}
	dlist_foreach(iter, &outbox_busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);

		if (ep->drop_window)
			outbox_endpoint_drop_window(ep, &outbox_head);
		outbox_deliver_fill(ep, now, outbox_worker_max_in_flight);
	}
}

/* Tells the views. */
static void
publish(TimestampTz now)
{
	outbox_publish(now);
	pg_atomic_write_u64(&self->endpoints, outbox_nendpoints);
	pg_atomic_write_u64(&self->in_flight, outbox_in_flight);
	pg_atomic_write_u64(&self->memory, outbox_memory_used);
	pg_atomic_write_u64(&self->delivered, outbox_delivered);
	pg_atomic_write_u64(&self->last_loop_at, now);
	if (outbox_unmatched > 0)
		pg_atomic_fetch_add_u64(&db->unmatched, outbox_unmatched);
	outbox_unmatched = 0;
}

static bool
something_to_settle(TimestampTz now)
{
	dlist_iter	iter;

	if (settle_since != 0 || outbox_unsettled > 0 || outbox_recreating ||
		outbox_shares_leaving() || outbox_settle_wants_head(&outbox_head, now))
		return true;
	dlist_foreach(iter, &outbox_busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);

		if (ep->dirty || ep->nsettling > 0 || ep->state_dirty ||
			!dlist_is_empty(&ep->loading) || ep->unblocking ||
			(outbox_is_quiet(ep) && !ep->shared && now - ep->last_active_at > USECS_PER_SEC))
			return true;
	}
	return false;
}

/*
 * Parked followers of lanes whose head has ended.  Right after a settle, when
 * the rows of those that were delivered are gone.
 */
static void
followers_step(TimestampTz now)
{
	if (!outbox_reader_wants_followers(&outbox_busy))
		return;
	if (!outbox_begin(true))
	{
		locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	outbox_reader_bring_followers(&outbox_busy);
	OUTBOX_CRASH_POINT("followers.read");
	outbox_commit();
}

static void
settle_step(TimestampTz now, bool final)
{
	bool		due = settle_since != 0 &&
		now - settle_since >= outbox_settle_interval * INT64CONST(1000);

	if (!final && !due && outbox_unsettled < OUTBOX_SETTLE_AFTER)
	{
		if (settle_since == 0 && something_to_settle(now))
			settle_since = now;
		return;
	}
	if (!final && now < locks_at)
		return;
	if (!outbox_settle(&outbox_busy, &outbox_head, final))
	{
		locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	outbox_unsettled = 0;
	settle_since = 0;
	outbox_fill_all = true;			/* lanes may have moved on */
	followers_step(now);
	if (final)
		return;
	if (outbox_positions_want_compaction(now))
		outbox_positions_compact();
	outbox_roster_recreate();
}

/*
 * What is on its way to the tables has to be there before an operator's command
 * looks at them.
 */
static void
command_step(TimestampTz now)
{
	settle_step(now, true);
	if (settle_since == 0)
		if (!outbox_commands_run() && outbox_commands_wait)
			locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
}

static void
replay_step(TimestampTz now)
{
	if (now < locks_at || !outbox_replays_have_work())
		return;

	/* What a replay may park depends on the stored positions. */
	settle_step(now, true);
	if (settle_since != 0 || !outbox_replays_run())
		locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
}

static void
retention_step(TimestampTz now)
{
	if (now < outbox_retention_next_time())
		return;

	/*
	 * What is in memory only has to be stored before the log is judged.  Other
	 * workers store theirs within seconds; then it is judged again.
	 */
	if (outbox_retention_judges(now))
	{
		settle_step(now, true);
		if (settle_since != 0)
			return;
	}
	outbox_retention_run();
}

/*
 * What is ours and what is not.  Endpoints that are new here are met by reading
 * the settings; those that are not ours any more leave with the next settle.
 */
static void
shares_step(TimestampTz now)
{
	OutboxSharesNews news;

	if (!outbox_shares_changed())
		return;
	news = outbox_shares_look();
	if (news.retired)
		ShutdownRequestPending = true;
	if (news.taken)
		outbox_reload_at = 0;
	if (news.leaving)
	{
		outbox_roster_leave();
		want_settle(now);
	}
	database_ours = database_ours && outbox_serves_database();
}

/*
 * Who takes shares takes what the tables say, and some of it may come from
 * transactions whose WAL is not on disk yet: nothing is sent, no retry either,
 * before it is.
 */
static void
reload_step(TimestampTz now)
{
	uint64		changed = pg_atomic_read_u64(&db->changed);
	bool		taken = outbox_reload_at == 0;

	if ((changed == seen_changed && now < outbox_reload_at) || now < locks_at)
		return;
	if (!outbox_roster_reload(outbox_serves_database() && !database_ours))
	{
		locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	if (taken)
		start_lsn = hold_lsn = Max(hold_lsn, outbox_log_end());
	seen_changed = changed;
	wakeup_at = now;			/* somebody may start later than the last look */
	outbox_commands_wait = true;
	outbox_replays_changed = true;
	want_settle(now);
}

/* What another worker did for the database is to be read from the tables. */
static void
database_step(TimestampTz now)
{
	if (database_ours || !outbox_serves_database() || now < locks_at)
		return;
	if (!outbox_begin(true))
	{
		locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		return;
	}
	outbox_retention_init(db);
	outbox_positions_in_use(db);
	outbox_commit();
	outbox_schedule_begin();
	database_ours = true;
}

/* Milliseconds until something is due by itself. */
static long
time_to_sleep(TimestampTz now, bool more)
{
	TimestampTz until = Min(Min(outbox_reload_at, outbox_publish_next_time()), outbox_backlog_next_time());
	long		http = outbox_http_timeout();
	dlist_iter	iter;
	long		ms;

	fill_at = DT_NOEND;

	/*
	 * The latch alone may have been reset by a lock wait inside a transaction:
	 * the counters do not forget.  Whoever emits while the worker rests until
	 * look_at need not ring.
	 */
	pg_atomic_write_u64(&self->resting, now < look_at);
	pg_memory_barrier();		/* self->endpoints was published, too */
	if ((now >= locks_at && pg_atomic_read_u64(&db->changed) != seen_changed) ||
		outbox_shares_changed() ||
		(now >= locks_at && database_ours != outbox_serves_database()) ||
		(outbox_commands_wait && now >= locks_at) || ShutdownRequestPending ||
		ConfigReloadPending)
		return 0;
	if (outbox_enabled && now >= locks_at &&
		(more ||
		 is_news(pg_atomic_read_u64(&db->emitted), now) ||
		 outbox_reader_has_work(&outbox_busy, now) || outbox_replays_have_work()))
		return 0;
	if (outbox_fill_all && outbox_may_send && !outbox_starved)
		return 0;
	if (outbox_enabled)
		until = Min(until, now < look_at ? look_at : wakeup_at);
	if (database_ours)
	{
		until = Min(until, Min(outbox_retention_next_time(), outbox_dedup_next_time()));
		if (outbox_enabled)
			until = Min(until, outbox_schedule_next_time(db));
	}
	if (outbox_recreating)
		until = Min(until, now + CANCEL_AFTER / 10);
	if (settle_since != 0)
		until = Min(until, settle_since + outbox_settle_interval * INT64CONST(1000));
	dlist_foreach(iter, &outbox_busy)
	{
		OutboxEndpoint *ep = dlist_container(OutboxEndpoint, busy_node, iter.cur);

		if (outbox_may_send && !outbox_starved)
			fill_at = Min(fill_at, outbox_endpoint_next_time(ep, now));
		if (outbox_is_quiet(ep) && !ep->shared)
			until = Min(until, ep->last_active_at + USECS_PER_SEC + 1000);
	}
	if (outbox_starved && outbox_in_flight == 0)
		fill_at = now + OUTBOX_RETRY_LOCKS_AFTER;	/* no memory for a request */
	until = Min(until, fill_at);
	if (now < locks_at)
		until = locks_at;		/* what could not be done may be urgent */
	ms = until <= now ? 0 : (long) Min((until - now + 999) / 1000, 60 * 1000);
	if (http >= 0)
		ms = Min(ms, http);
	if (outbox_enabled && outbox_standbys_missing())
		ms = Min(ms, AWAIT_STANDBYS_EVERY);
	else if (outbox_enabled && outbox_durable_lsn < hold_lsn)
		ms = Min(ms, WATCH_STANDBYS_EVERY);
	return ms;
}

static void
shut_down(void)
{
	/*
	 * Requests in flight are named by the positions and will be made again.
	 */
	settle_step(GetCurrentTimestamp(), true);
	OUTBOX_CRASH_POINT("stop.settled");
	outbox_http_shutdown();
	proc_exit(0);
}

static void
loop(void)
{
	WaitEventSet *set = outbox_create_wait_event_set(3);

	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(set, WL_SOCKET_READABLE, outbox_http_fd(), NULL, NULL);

	for (;;)
	{
		TimestampTz now;
		WaitEvent	event;
		bool		more = false;

		/* A cancel outside a transaction has nothing to cancel. */
		QueryCancelPending = false;
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(loop_cxt);
		MemoryContextReset(loop_cxt);
		if (ShutdownRequestPending)
			shut_down();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (strcmp(outbox_instance_name, instance_name) != 0)
				shut_down();	/* whose log this is has to be asked again */
			outbox_http_reload();
			outbox_reload_at = Min(outbox_reload_at, GetCurrentTimestamp());	/* the key file */
			outbox_fill_all = true;

			/* Standbys may be asked for that were not when events were read. */
			if (outbox_standbys_required())
				start_lsn = hold_lsn = Max(hold_lsn, outbox_log_end());
		}

		outbox_http_poll();
		now = GetCurrentTimestamp();
		if (outbox_clock_went_back(now))
		{
			settle_step(now, true);
			outbox_clock_follow(now);
			shut_down();
		}
		shares_step(now);
		reload_step(now);
		database_step(now);
		for (int i = 0; outbox_recreating && i < outbox_nendpoints; i++)
			if (outbox_endpoints[i]->recreate)
				outbox_deliver_cancel(outbox_endpoints[i], now - CANCEL_AFTER);

		if (outbox_commands_wait && now >= locks_at)
			command_step(now);
		if (outbox_enabled)
		{
			if (database_ours)
				outbox_schedule_step(db, now);
			replay_step(now);
			read_step(now, &more);
		}
		if (now >= locks_at && !outbox_backlog_step(now))
			locks_at = now + OUTBOX_RETRY_LOCKS_AFTER;
		check_durability();
		if (outbox_fill_all || now >= fill_at)
			fill_slots(now);
		settle_step(now, false);
		if (database_ours)
		{
			retention_step(now);
			outbox_dedup_sweep(now);
		}
		publish(now);
		outbox_memory_give_back(now);

		if (WaitEventSetWait(set, time_to_sleep(GetCurrentTimestamp(), more),
							 &event, 1, PG_WAIT_EXTENSION) > 0 &&
			event.events == WL_LATCH_SET)
			ResetLatch(MyLatch);
	}
}

void
outbox_worker_main(Datum arg)
{
	db = &outbox_shared->databases[OUTBOX_ARGUMENT_SLOT(arg)];
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	self = outbox_worker_attach(db, OUTBOX_ARGUMENT_WORKER(arg));
	BackgroundWorkerInitializeConnectionByOid(db->dboid, InvalidOid, 0);

	/* From here on SIGTERM asks, so that outcomes are settled before the end. */
	pqsignal(SIGTERM, outbox_session_sigterm);

	if (!outbox_session_init())
	{
		outbox_worker_no_extension();
		proc_exit(0);
	}
	loop_cxt = AllocSetContextCreate(TopMemoryContext, "outbox loop",
									 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(loop_cxt);
	instance_name = MemoryContextStrdup(TopMemoryContext, outbox_instance_name);
	outbox_start(db, delivery_ended);
	seen_emitted = pg_atomic_read_u64(&db->emitted);
	seen_changed = pg_atomic_read_u64(&db->changed);
	outbox_shares_join(db, (int) (self - db->workers));
	loop();
}
