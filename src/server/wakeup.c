/*
 * wakeup.c
 *	  At commit, wakes the workers or the launcher that the transaction concerns.
 *
 * Counters are raised before the latch is set.  Before a worker sleeps, it compares
 * the counter with the value from before it last read the log.  The latch alone is not
 * enough, because any wait inside a transaction can reset it.
 */
#include "base/outbox.h"

#include "access/xact.h"

#include "base/crash_point.h"
#include "base/version.h"
#include "server/shmem.h"
#include "server/wakeup.h"

/* The processes that the commit of a transaction must wake. */
typedef struct OutboxMarks
{
	int			what;
	TimestampTz scheduled_for; /* the earliest time, if an event is scheduled */
} OutboxMarks;

static OutboxMarks marks;

static void
ring_workers(const OutboxMarks *rung)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);
	bool			all = (rung->what & OUTBOX_MARK_CHANGED) != 0;

	if (db == NULL)
		return;
	if (rung->what & OUTBOX_MARK_SCHEDULED)
		all = outbox_lower_due_at(db, rung->scheduled_for) || all;
	if (rung->what & OUTBOX_MARK_EMITTED)
		pg_atomic_fetch_add_u64(&db->emitted, 1);
	if (rung->what & OUTBOX_MARK_CHANGED)
		pg_atomic_fetch_add_u64(&db->changed, 1);

	/*
	 * For events alone, a worker without endpoints is not woken, nor is a worker that
	 * rests: it compares the counter by itself soon.  Raising the counter is a memory
	 * barrier.  A worker publishes 'endpoints' and 'resting' before it compares the
	 * counter for the last time (time_to_sleep()).  An event that is scheduled for later
	 * than due_at wakes no worker: due_at wakes one before.
	 */
	if (all || (rung->what & OUTBOX_MARK_EMITTED))
		outbox_workers_wake(db, all);
}

/*
 * Runs when the transaction is visible to others.  The transaction cannot be undone any
 * more, so nothing here may fail.  The functions that are called take a lock at most.
 */
static void
ring(const OutboxMarks *rung)
{
	if (rung->what & OUTBOX_MARK_LAUNCHER)
		outbox_launcher_probe(MyDatabaseId);
	if (rung->what & OUTBOX_MARK_DATABASES)
		outbox_launcher_rescan();
	if (rung->what & (OUTBOX_MARK_EMITTED | OUTBOX_MARK_CHANGED | OUTBOX_MARK_SCHEDULED))
		ring_workers(rung);
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	OutboxMarks rung = marks;

	switch (event)
	{
		case XACT_EVENT_COMMIT:
			marks.what = 0;
			if (rung.what == 0)
				break;
			OUTBOX_KILL_POINT("wakeup.committed");
			ring(&rung);
			OUTBOX_KILL_POINT("wakeup.rung");
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			marks.what = 0;
			break;
		default:
			break;
	}
}

/* If the library is not preloaded, there is no process to wake. */
void
outbox_mark(int what)
{
	static bool registered = false;

	if (outbox_shared == NULL)
		return;
	if (!registered)
		RegisterXactCallback(at_transaction_end, NULL);
	registered = true;
	marks.what |= what;
}

void
outbox_mark_scheduled(TimestampTz deliver_at)
{
	if ((marks.what & OUTBOX_MARK_SCHEDULED) == 0 || deliver_at < marks.scheduled_for)
		marks.scheduled_for = deliver_at;
	outbox_mark(OUTBOX_MARK_SCHEDULED);
}

/* The marks are lost when the session that prepares ends, so it may concern anything. */
void
outbox_mark_prepared(void)
{
	outbox_mark_scheduled(DT_NOBEGIN);
	outbox_mark(OUTBOX_MARK_EMITTED | OUTBOX_MARK_CHANGED);
}

/* outbox.wake_launcher(): the last command of the install script. */
OUTBOX_FUNCTION(outbox_wake_launcher_1_0, 0)
{
	if (outbox_shared == NULL)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("events are kept, but not delivered: outbox is not preloaded"),
				 errhint(
					 "Add outbox to shared_preload_libraries and restart the server.")));
	outbox_mark(OUTBOX_MARK_LAUNCHER);
	PG_RETURN_VOID();
}
