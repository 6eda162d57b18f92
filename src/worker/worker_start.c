/*
 * worker_start.c
 *	  Owns the start of a worker: it checks whether the worker may deliver, waits
 *	  while it may not, and reads where the log stands.
 */
#include "base/outbox.h"

#include <sys/resource.h>

#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

#include "base/crash_point.h"
#include "base/memory.h"
#include "base/settings.h"
#include "base/version.h"
#include "emit/scheduled.h"
#include "endpoint/subscribers.h"
#include "format/cloudevents.h"
#include "log/event_number.h"
#include "log/origin.h"
#include "log/reserve.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/worker_slot.h"
#include "store/positions.h"
#include "store/settle.h"
#include "worker/dispatch.h"
#include "worker/loop.h"
#include "worker/reload.h"
#include "worker/roster.h"
#include "worker/slots.h"
#include "worker/worker_start.h"

#define IDLE_LOOK 10000L /* ms between two checks while it waits */
#define LACK_LOOK 1000L	 /* the same, whether another database lacks a process */

/* ms: when a process looks again at a log that belongs to another database. */
#define COPY_LOOK 60000L

/*
 * Raises the limit of open files, because each request needs a socket.  Warns if
 * the system allows too few.
 */
static void
raise_fd_limit(void)
{
	struct rlimit limit;
	rlim_t		  wanted = (rlim_t) outbox_worker_max_in_flight * 2 + 256;
	rlim_t		  most = 2 * OUTBOX_CONNECTIONS_MAX;

	/* Connections stay open after requests, as many as there may be. */
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= most)
		return;
	limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? most : Min(most, limit.rlim_max);
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
		ereport(
			WARNING,
			(errmsg(
				 "outbox worker can open %lu files, but needs %lu for outbox.worker_max_in_flight = %d",
				 (unsigned long) limit.rlim_cur, (unsigned long) wanted,
				 outbox_worker_max_in_flight),
			 errhint(
				 "Raise the limit of open files of the server, or lower the setting.")));
}

/*
 * The only wait before the loop: until the latch is set, or for 'ms' milliseconds.
 * Ends the process if it was asked to end.  Processes interrupts as well, because
 * DROP DATABASE waits until every process has done so.
 */
static void
wait_ms(long ms)
{
	CHECK_FOR_INTERRUPTS();
	if (ShutdownRequestPending || ConfigReloadPending)
		proc_exit(0);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Waits until the database's 'changed' is not 'changed' any more, until another database lacks a
 * process, or for a tenth of the retention, at most IDLE_LOOK.
 */
static void
wait_for_change(uint64 changed)
{
	for (long ms = Min(IDLE_LOOK, outbox_retention_of_events() * 100L);
		 ms > 0 && pg_atomic_read_u64(&outbox_db->changed) == changed &&
		 !outbox_worker_slots_lack();
		 ms -= LACK_LOOK)
		wait_ms(Min(ms, LACK_LOOK));
}

/* Begins a transaction as soon as the locks that it needs are free. */
static void
begin_when_unlocked(bool write)
{
	while (!outbox_txn_begin(write))
	{
		outbox_worker_slot_waits_for_lock(true);
		wait_ms(OUTBOX_RETRY_LOCKS_AFTER / 1000);
	}
	outbox_worker_slot_waits_for_lock(false);
}

/*
 * Ends the process, because only another one can leave this state, and it needs no
 * process to wait in.  The launcher starts one when something has changed, and from time
 * to time: a dump grants the role's privileges at the end of its restore, and no one says
 * so.
 */
static void
rest(OutboxWorkerState state, const char *reason, uint64 changed, long ms)
{
	if (!outbox_worker_slot_rest(state, reason, changed, ms))
		ereport(LOG,
				(errmsg("outbox worker for this database does nothing: %s", reason)));
	proc_exit(0);
}

/*
 * Finds out which system and database the log belongs to.  A log that belongs to
 * none has nothing to deliver.  The first endpoint claims it, or this function does
 * when retention has something to forget.  Until then it leaves its process to others that
 * lack one.
 */
static void
read_origin(void)
{
	int64		 epoch = 0;
	bool		 zero = false;
	bool		 thorough = true; /* the first time */
	uint64		 changed;
	OutboxOrigin origin;

	for (;;)
	{
		changed = pg_atomic_read_u64(&outbox_db->changed);

		begin_when_unlocked(true);
		outbox_retention_init();
		if (GetCurrentTimestamp() >= outbox_retention_next_time())
		{
			outbox_origin_claim();
			thorough = true;
		}
		origin = outbox_origin(&epoch, &zero, thorough);
		thorough = false;
		outbox_txn_commit();
		if (origin != OUTBOX_ORIGIN_NONE)
			break;
		if (outbox_worker_slots_lack())
			rest(OUTBOX_WORKER_RUNNING,
				 "it has no endpoint, and another database lacks a process", changed,
				 Min(COPY_LOOK, outbox_retention_of_events() * 100L));
		outbox_worker_slot_report(OUTBOX_WORKER_RUNNING, NULL);
		wait_for_change(changed);
	}
	if (origin == OUTBOX_ORIGIN_OURS)
	{
		outbox_session_set_epoch(epoch);
		outbox_log_init(outbox_sequence_oid());
		outbox_scheduled_init(epoch, zero);
		return;
	}
	rest(
		OUTBOX_WORKER_HELD,
		origin == OUTBOX_ORIGIN_LOST ?
			"outbox.origins lacks rows that this log had, so this may be a copy: see that no other database sends its events, then call outbox.adopt()" :
			origin == OUTBOX_ORIGIN_FOREIGN ?
			"this log was written by another system or database, or was restored: it is a copy, and sends nothing before outbox.adopt()" :
			"outbox.instance_name is not the one that this log was made or adopted under: set it so, or call outbox.adopt()",
		changed, COPY_LOOK);
}

/* Returns if this worker may deliver.  If not, ends the process. */
static void
check_may_deliver(void)
{
	uint64 changed = pg_atomic_read_u64(&outbox_db->changed);
	char  *problem = outbox_version_problem(outbox_session_version());

	if (problem != NULL)
		rest(OUTBOX_WORKER_VERSION_MISMATCH, problem, changed, IDLE_LOOK);
	if (outbox_session_role_misfit() != NULL)
		rest(OUTBOX_WORKER_HELD, outbox_session_role_misfit(), changed, IDLE_LOOK);
	read_origin();
}

void
outbox_worker_start(OutboxEnded delivery_ended)
{
	OutboxStepError failure;

	check_may_deliver();
	raise_fd_limit();
	outbox_slots_init();
	outbox_memory_init();
	outbox_dispatch_init(delivery_ended);
	outbox_subscribers_init();

	begin_when_unlocked(false);
	outbox_log_check_sequence();
	outbox_number_load();
	outbox_cloudevents_init();
	outbox_positions_raise_numbers();
	outbox_roster_init();
	outbox_reload_init();

	/*
	 * The head begins at the shared position, if there is one, so that idle
	 * endpoints need not catch up.
	 */
	if (!outbox_position_newest_shared(&outbox_loop.head))
	{
		OutboxTick *now = outbox_tick_take();

		outbox_cursor_set(&outbox_loop.head, now, NULL, 0);
		outbox_tick_unref(now);
	}
	outbox_settle_init(outbox_loop.head.read->number);
	OUTBOX_CRASH_POINT("start.read");
	outbox_txn_commit();
	(void) outbox_step_try(outbox_reserve_fill, NULL, &failure);
}
