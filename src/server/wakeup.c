/*
 * wakeup.c
 *	  Owns the bell: at commit it rings whom the transaction concerns.
 *
 * Counters are rung before the latch is set.  Whoever sleeps compares the
 * counter with what he saw before his last look, because a latch can be reset
 * by anything that waits on it inside a transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "base/crash_point.h"
#include "base/version.h"
#include "server/prepared.h"
#include "server/shmem.h"
#include "server/wakeup.h"

#define MARK_EMITTED 0x01
#define MARK_CHANGED 0x02
#define MARK_LAUNCHER 0x04
#define MARK_DATABASES 0x08
#define MARK_SCHEDULED 0x10

static OutboxMarks marks;

static void
ring_workers(const OutboxMarks *rung)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, true);
	bool			all = (rung->what & MARK_CHANGED) != 0;

	if (db == NULL)
		return;
	if (rung->what & MARK_SCHEDULED)
		all = outbox_lower_due_at(db, rung->scheduled_for) || all;
	if (rung->what & MARK_EMITTED)
		pg_atomic_fetch_add_u64(&db->emitted, 1);
	if (rung->what & MARK_CHANGED)
		pg_atomic_fetch_add_u64(&db->changed, 1);

	/*
	 * For events alone, a worker without endpoints need not hurry, and one that
	 * rests looks by itself in a moment: the counter is enough.  Raising it is a
	 * barrier; a worker publishes both before it looks at the counter for the
	 * last time (time_to_sleep()).  What is scheduled for later than is known
	 * already finds them awake anyway.
	 */
	if (all || (rung->what & MARK_EMITTED))
		outbox_workers_ring(db, all);
}

/*
 * Runs when the transaction is visible to others.  It cannot be undone any
 * more, so nothing here may fail: what is called takes a lock at most.
 */
static void
ring(const OutboxMarks *rung)
{
	if (rung->what & MARK_LAUNCHER)
		outbox_launcher_probe(MyDatabaseId);
	if (rung->what & MARK_DATABASES)
		outbox_launcher_rescan();
	if (rung->what & (MARK_EMITTED | MARK_CHANGED | MARK_SCHEDULED))
		ring_workers(rung);
}

/* A prepared transaction is committed by another session: prepared.c. */
static void
at_transaction_end(XactEvent event, void *arg)
{
	OutboxMarks rung = marks;

	(void) arg;
	outbox_prepared_at_transaction_end(event, &marks);
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

/* False: there is nothing to wake. */
static bool
hear_of_the_end(void)
{
	static bool registered = false;

	if (outbox_shared == NULL)
		return false;
	if (!registered)
	{
		RegisterXactCallback(at_transaction_end, NULL);
		registered = true;
	}
	return true;
}

static void
mark(int what)
{
	if (hear_of_the_end())
		marks.what |= what;
}

void
outbox_wakeup_prepare(const char *gid)
{
	if (hear_of_the_end())
		outbox_prepared_begin(gid);
}

/* What it was marked with, or, if that is not known, everything. */
void
outbox_wakeup_end_prepared(const char *gid, bool commit)
{
	OutboxMarks noted = {MARK_EMITTED | MARK_CHANGED | MARK_SCHEDULED, DT_NOBEGIN};

	if (!hear_of_the_end())
		return;
	(void) outbox_prepared_ended(gid, &noted);
	if (!commit)
		return;
	if (noted.what & MARK_SCHEDULED)
		outbox_mark_scheduled(noted.scheduled_for);
	mark(noted.what);
}

void
outbox_mark_emitted(void)
{
	mark(MARK_EMITTED);
}

void
outbox_mark_scheduled(TimestampTz deliver_at)
{
	if ((marks.what & MARK_SCHEDULED) == 0 || deliver_at < marks.scheduled_for)
		marks.scheduled_for = deliver_at;
	mark(MARK_SCHEDULED);
}

void
outbox_mark_changed(void)
{
	mark(MARK_CHANGED);
}

void
outbox_mark_launcher(void)
{
	mark(MARK_LAUNCHER);
}

void
outbox_mark_databases(void)
{
	mark(MARK_DATABASES);
}

/*
 * outbox.wake_launcher(): the install script's last word.
 */
OUTBOX_FUNCTION(outbox_wake_launcher_1_0, 0)
{
	(void) fcinfo;
	if (outbox_shared == NULL)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("events are kept, but not delivered: outbox is not preloaded"),
				 errhint(
					 "Add outbox to shared_preload_libraries and restart the server.")));
	outbox_mark_launcher();
	PG_RETURN_VOID();
}

/*
 * outbox.preloaded()
 */
OUTBOX_FUNCTION(outbox_preloaded_1_0, 0)
{
	(void) fcinfo;
	PG_RETURN_BOOL(outbox_shared != NULL);
}
