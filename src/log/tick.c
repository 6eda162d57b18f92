/*
 * tick.c
 *	  Owns ticks and cursors: moments of the log, and positions in it.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "lib/stringinfo.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "storage/standby.h"
#include "utils/acl.h"
#include "utils/fmgrprotos.h"
#include "utils/resowner.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "log/durable.h"
#include "log/event_number.h"
#include "log/tick.h"
#include "server/shmem.h"

static MemoryContext tick_cxt;
static Oid			 sequence_oid;

void
outbox_tick_init(Oid sequence)
{
	tick_cxt = AllocSetContextCreate(TopMemoryContext, "outbox ticks",
									 ALLOCSET_SMALL_SIZES);
	sequence_oid = sequence;
}

/* The 64-bit form of an xid of a snapshot that was taken just now. */
static uint64
widen(TransactionId xid, FullTransactionId next)
{
	uint32 epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return ((uint64) epoch << 32) | xid;
}

static OutboxTick *
tick_alloc(int nxip)
{
	OutboxTick *tick;

	tick = MemoryContextAlloc(tick_cxt ? tick_cxt : CurrentMemoryContext,
							  offsetof(OutboxTick, xip) + sizeof(uint64) * Max(nxip, 1));
	tick->refs = 1;
	tick->nxip = nxip;
	return tick;
}

/*
 * Reading the log depends on the order of the steps here: the sequence, the snapshot,
 * the sequence again, the end of the WAL.  The end of the WAL is then behind the
 * commit record of everything that the snapshot sees.
 *
 * The snapshot is made of the list of running transactions, not by GetSnapshotData().
 * That one ends behind the newest xid that has completed.  A transaction that got its
 * xid later is not listed, although it may have drawn numbers already.  Its events
 * below seq_low would then never be read.  Nor does it list the transaction that takes
 * it.
 */
static OutboxTick *
take_tick(Oid sequence, OutboxDatabase *db)
{
	int64				seq_low;
	int64				number = 0;
	RunningTransactions running;
	FullTransactionId	next;
	OutboxTick		   *tick;

	if (RecoveryInProgress())
		elog(ERROR, "the log cannot be read during recovery");
	seq_low = outbox_number_highest(sequence);

	/*
	 * Under the lock, so that of any two ticks the one with the higher number has the
	 * later snapshot, whichever workers took them.
	 */
	if (db != NULL)
		LWLockAcquire(outbox_shared->tick_lock, LW_EXCLUSIVE);
	running = GetRunningTransactionData();
	LWLockRelease(ProcArrayLock);
	LWLockRelease(XidGenLock);
	if (db != NULL)
	{
		number = (int64) pg_atomic_add_fetch_u64(&db->last_tick, 1);
		LWLockRelease(outbox_shared->tick_lock);
	}

	next = ReadNextFullTransactionId();
	tick = tick_alloc(running->xcnt);
	tick->number = number;
	tick->taken_at = GetCurrentTimestamp();
	tick->seq_low = seq_low;
	tick->xmin = widen(running->oldestRunningXid, next);
	tick->xmax = widen(running->nextXid, next);

	/* The xids of subtransactions come last, and no event has one. */
	for (int i = 0; i < running->xcnt; i++)
		tick->xip[i] = widen(running->xids[i], next);
	qsort(tick->xip, tick->nxip, sizeof(uint64), outbox_compare_int8);
	tick->seq_high = outbox_number_highest(sequence);
	tick->lsn = outbox_log_end();
	return tick;
}

OutboxTick *
outbox_tick_take(void)
{
	OutboxTick *tick = take_tick(sequence_oid, outbox_database_slot(MyDatabaseId, false));

	OUTBOX_CRASH_POINT("tick.taken");
	return tick;
}

/*
 * Draws an xid that the commit record of this transaction will name.
 *
 * After a crash the server uses xids again that the WAL does not name, for example xids
 * of subtransactions that wrote nothing durable.  A stored snapshot counts all xids
 * below its xmax as seen, except the listed ones.  So the WAL must name an xid at or
 * above that xmax before the snapshot can be found in a table.  A worker stores its
 * ticks in later transactions, whose own xid is high enough.  Here the transaction may
 * be older than the snapshot.
 */
static void
draw_higher_xid(void)
{
	MemoryContext cxt = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	(void) GetCurrentTransactionId();
	ReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(cxt);
	CurrentResourceOwner = owner;
}

OutboxTick *
outbox_tick_in_session(Oid sequence)
{
	OutboxTick *tick;

	Assert(TransactionIdIsValid(GetTopTransactionIdIfAny()));
	tick = take_tick(sequence, NULL);
	draw_higher_xid();
	return tick;
}

OutboxTick *
outbox_tick_before_own_commit(const OutboxTick *now)
{
	uint64		xid = U64FromFullTransactionId(GetTopFullTransactionId());
	OutboxTick *then = tick_alloc(now->nxip);
	int			n = 0;

	memcpy(then, now, offsetof(OutboxTick, xip));
	then->refs = 1;
	for (int i = 0; i < now->nxip; i++)
		if (now->xip[i] != xid)
			then->xip[n++] = now->xip[i];
	then->nxip = n;
	then->xmax = Max(now->xmax, xid + 1);
	return then;
}

OutboxTick *
outbox_tick_make(int64 number, TimestampTz taken_at, int64 seq_low, int64 seq_high,
				 const char *snapshot)
{
	OutboxTick *tick;
	char	   *p;
	uint64		xmin;
	uint64		xmax;
	int			n = 0;

	xmin = strtou64(snapshot, &p, 10);
	if (*p++ != ':')
		elog(ERROR, "malformed snapshot \"%s\"", snapshot);
	xmax = strtou64(p, &p, 10);
	if (*p++ != ':')
		elog(ERROR, "malformed snapshot \"%s\"", snapshot);
	if (*p != '\0')
	{
		n = 1;
		for (const char *q = p; *q; q++)
			n += (*q == ',');
	}

	tick = tick_alloc(n);
	tick->number = number;
	tick->taken_at = taken_at;
	tick->seq_low = seq_low;
	tick->seq_high = seq_high;
	tick->lsn = outbox_log_end();
	tick->xmin = xmin;
	tick->xmax = xmax;
	for (int i = 0; i < n; i++)
	{
		tick->xip[i] = strtou64(p, &p, 10);
		p++;
	}
	return tick;
}

char *
outbox_tick_snapshot(const OutboxTick *tick)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, UINT64_FORMAT ":" UINT64_FORMAT ":", tick->xmin, tick->xmax);
	for (int i = 0; i < tick->nxip; i++)
		appendStringInfo(&buf, "%s" UINT64_FORMAT, i ? "," : "", tick->xip[i]);
	return buf.data;
}

OutboxTick *
outbox_tick_ref(OutboxTick *tick)
{
	if (tick)
		tick->refs++;
	return tick;
}

void
outbox_tick_unref(OutboxTick *tick)
{
	if (tick && --tick->refs == 0)
		pfree(tick);
}

bool
outbox_tick_sees(const OutboxTick *tick, uint64 xid)
{
	if (xid < tick->xmin)
		return true;
	if (xid >= tick->xmax)
		return false;
	return bsearch(&xid, tick->xip, tick->nxip, sizeof(uint64), outbox_compare_int8) ==
		NULL;
}

bool
outbox_tick_same(const OutboxTick *a, const OutboxTick *b)
{
	return a == b ||
		(a->xmin == b->xmin && a->xmax == b->xmax && a->nxip == b->nxip &&
		 memcmp(a->xip, b->xip, sizeof(uint64) * a->nxip) == 0);
}

/*
 * True if a transaction that 'tick' sees, and 'former' lists as running, has rows in the log.
 * Many endpoints that one transaction made ask for the same one.
 */
static bool
late_has_rows(const OutboxTick *tick, const OutboxTick *former)
{
	static uint64 without[1024]; /* had none and have ended, by the end of the xid */

	for (int i = 0; i < former->nxip; i++)
	{
		uint64	xid = former->xip[i];
		uint64 *known = &without[xid % lengthof(without)];

		if (xid == *known || !outbox_tick_sees(tick, xid))
			continue;
		if (outbox_query("SELECT 1 FROM outbox.events WHERE xid = $1 LIMIT 1",
						 arg_xid8(FullTransactionIdFromU64(xid))) > 0)
			return true;
		*known = xid;
	}
	return false;
}

/*
 * If no number was drawn since the earlier one, an event that only one of them sees is of a
 * transaction that the other one lists as running.
 */
bool
outbox_tick_same_events(const OutboxTick *a, const OutboxTick *b)
{
	return outbox_tick_same(a, b) ||
		(a->seq_low == b->seq_low && outbox_number_highest(sequence_oid) == a->seq_low &&
		 !late_has_rows(a, b) && !late_has_rows(b, a));
}

bool
outbox_tick_follows(const OutboxTick *tick, const OutboxTick *former)
{
	if (tick->xmax < former->xmax)
		return false;
	for (int i = 0; i < tick->nxip; i++)
		if (outbox_tick_sees(former, tick->xip[i]))
			return false;
	return true;
}

bool
outbox_tick_reaches(const OutboxTick *tick, const OutboxTick *former)
{
	return tick->number != 0 && former->number != 0 ? tick->number >= former->number :
													  outbox_tick_follows(tick, former);
}

bool
outbox_tick_has_late(const OutboxTick *tick, const OutboxTick *former)
{
	for (int i = 0; i < former->nxip; i++)
		if (outbox_tick_sees(tick, former->xip[i]))
			return true;
	return false;
}

/* -------------------------------------------------------------- cursors */

void
outbox_cursor_set(OutboxCursor *to, OutboxTick *read, OutboxTick *reading, int64 last_seq)
{
	outbox_tick_ref(read);
	outbox_tick_ref(reading);
	outbox_cursor_clear(to);
	to->read = read;
	to->reading = reading;
	to->last_seq = last_seq;
}

void
outbox_cursor_copy(OutboxCursor *to, const OutboxCursor *from)
{
	outbox_cursor_set(to, from->read, from->reading, from->last_seq);
}

void
outbox_cursor_clear(OutboxCursor *c)
{
	outbox_tick_unref(c->read);
	outbox_tick_unref(c->reading);
	memset(c, 0, sizeof(*c));
}

bool
outbox_cursor_covers(const OutboxCursor *c, uint64 xid, int64 seq)
{
	return outbox_tick_sees(c->read, xid) ||
		(c->reading != NULL && seq <= c->last_seq && outbox_tick_sees(c->reading, xid));
}

static bool
same_tick(const OutboxTick *a, const OutboxTick *b)
{
	return a == b || (a->number != 0 && a->number == b->number);
}

/*
 * True if a reader at this cursor may read up to 'tick'.  A reader that is within another
 * tick may go over to a later one if the later one adds nothing before its place.  That
 * would be an event of a transaction that the other tick knows as running.
 */
bool
outbox_cursor_may_read_to(const OutboxCursor *c, const OutboxTick *tick)
{
	if (c->reading == NULL)
		return !same_tick(tick, c->read) && outbox_tick_reaches(tick, c->read);
	return same_tick(tick, c->reading) ||
		(outbox_tick_reaches(tick, c->reading) && c->last_seq <= c->reading->seq_low &&
		 !outbox_tick_has_late(tick, c->reading));
}

/* Behind which row the cursor is, if it reads up to this tick. */
int64
outbox_cursor_start(const OutboxCursor *c, const OutboxTick *tick)
{
	int64 last_seq = c->reading ? c->last_seq : 0;

	if (last_seq >= c->read->seq_low || outbox_tick_has_late(tick, c->read))
		return last_seq;
	return c->read->seq_low;
}

/*
 * True if pages that are read from 'leader' on have all the rows that a reader at 'c' lacks
 * up to where they end.  A later 'read' sees all that an earlier one sees, so the reader of
 * the later one lacks no row that the leader has read.
 */
bool
outbox_cursor_has_place_in(const OutboxCursor *c, const OutboxCursor *leader,
						   const OutboxTick *tick)
{
	return outbox_cursor_may_read_to(c, tick) &&
		(c->read == leader->read || outbox_tick_reaches(c->read, leader->read)) &&
		outbox_cursor_start(c, tick) >= outbox_cursor_start(leader, tick);
}

void
outbox_cursor_begin(OutboxCursor *c, OutboxTick *tick)
{
	if (c->reading != tick)
		outbox_cursor_set(c, c->read, tick, outbox_cursor_start(c, tick));
}

void
outbox_cursor_follow(OutboxCursor *c, const OutboxCursor *page)
{
	if (page->reading)
		c->last_seq = Max(c->last_seq, page->last_seq);
	else
		outbox_cursor_set(c, page->read, NULL, 0);
}

/* About where in the log it is. */
int64
outbox_cursor_near(const OutboxCursor *c)
{
	return Max(c->read->seq_low, c->reading ? c->last_seq : 0);
}
