/*
 * totals.c
 *	  Owns the totals of the whole database: how they are stored, how they are read
 *	  again, and from when on outbox.metrics() shows them.
 *
 * Every process counts in shared memory, so that counting costs an atomic addition.
 * The worker that serves the database stores the totals with the positions, at most
 * once a second.  Counts since then are lost when the whole server crashes.  A total is
 * shown once it is stored and flushed, so a shown total never goes down.
 */
#include "base/outbox.h"

#include "log/durable.h"
#include "log/step.h"
#include "server/shares.h"
#include "store/totals.h"

#define STORE_EVERY (1 * USECS_PER_SEC)

static bool		   were_read;
static int64	   stored[OUTBOX_COUNTERS];	   /* as last committed */
static int64	   adding[OUTBOX_COUNTERS];	   /* in the current settle */
static bool		   added;					   /* true if that has them */
static int64	   candidate[OUTBOX_COUNTERS]; /* shown once the WAL is flushed ... */
static XLogRecPtr  candidate_lsn;			   /* ... up to here (0: there are none) */
static TimestampTz stored_at;

/*
 * The extension may have been dropped and created again since the totals were read.
 * Then nothing is stored, and they begin again.
 */
void
outbox_totals_read(void)
{
	bool found = outbox_positions_read_totals(stored);

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
	{
		if (!outbox_db->totals_known)
		{
			pg_atomic_fetch_add_u64(&outbox_db->totals[c], stored[c]);
			pg_atomic_write_u64(&outbox_db->durable_totals[c], stored[c]);
		}
		else if (!found)
		{
			pg_atomic_write_u64(&outbox_db->totals[c], 0);
			pg_atomic_write_u64(&outbox_db->durable_totals[c], 0);
		}
	}
	if (outbox_db->totals_known && found)
	{
		/* The former worker may have ended before it could show its last figures. */
		memcpy(candidate, stored, sizeof(candidate));
		candidate_lsn = outbox_log_end();
	}
	outbox_db->totals_known = true;
	LWLockRelease(outbox_shared->lock);
	were_read = true;
}

static bool
have_changed(void)
{
	if (!were_read || !outbox_serves_database())
		return false;
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
		if (pg_atomic_read_u64(&outbox_db->totals[c]) != (uint64) stored[c])
			return true;
	return false;
}

TimestampTz
outbox_totals_due(void)
{
	return candidate_lsn == 0 && !outbox_step_held(OUTBOX_STEP_SETTLE, 0) &&
			have_changed() ?
		stored_at + STORE_EVERY :
		DT_NOEND;
}

void
outbox_totals_add(OutboxPositions *p, const OutboxCursor *head, bool final)
{
	added = final ? have_changed() : outbox_totals_due() <= p->now;
	if (!added)
		return;
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
		adding[c] = (int64) pg_atomic_read_u64(&outbox_db->totals[c]);
	outbox_positions_add_totals(p, head, adding);
}

void
outbox_totals_stored(TimestampTz at, XLogRecPtr lsn)
{
	if (!added)
		return;
	added = false;
	memcpy(stored, adding, sizeof(stored));
	memcpy(candidate, adding, sizeof(candidate));
	candidate_lsn = lsn;
	stored_at = at;
}

void
outbox_totals_flushed(XLogRecPtr flushed)
{
	if (candidate_lsn == 0 || candidate_lsn > flushed)
		return;
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
		pg_atomic_write_u64(&outbox_db->durable_totals[c], candidate[c]);
	candidate_lsn = 0;
}

bool
outbox_totals_wait(void)
{
	return candidate_lsn != 0;
}
