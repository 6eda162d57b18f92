/*
 * durable.c
 *	  Owns how far the WAL has to be durable before an event may be sent: a crash,
 *	  or a failover that is asked to, must not take back what a receiver was told.
 */
#include "base/outbox.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"

#include "base/compat.h"
#include "log/durable.h"
#include "log/standbys.h"
#include "log/tick.h"

/* How many xids back the commit log is asked; beyond, the tick's LSN is used. */
#define FRESH_XIDS 100000

XLogRecPtr outbox_durable_lsn;

/* Recent enough, and of this system, for the commit log to be asked. */
static bool
is_fresh(uint64 xid)
{
	uint64 next = U64FromFullTransactionId(ReadNextFullTransactionId());

	return xid + FRESH_XIDS >= next && xid < next &&
		!TransactionIdPrecedes((TransactionId) xid, outbox_oldest_clog_xid());
}

/*
 * Where the WAL has to be durable so that a crash cannot take this xid back.
 * A transaction that flushed its own commit needs nothing; the commit log
 * knows which did not.
 */
XLogRecPtr
outbox_commit_lsn(uint64 xid, const OutboxTick *tick)
{
	return is_fresh(xid) ? TransactionIdGetCommitLSN((TransactionId) xid) :
		tick			 ? tick->lsn :
						   InvalidXLogRecPtr;
}

/*
 * The end of the WAL.  At a page boundary the insert position is already past
 * the header of a page that is not there yet, and XLogFlush() would complain:
 * go back to the page's start.
 */
XLogRecPtr
outbox_log_end(void)
{
	XLogRecPtr lsn = GetXLogInsertRecPtr();
	uint32	   header = XLogSegmentOffset(lsn, wal_segment_size) < XLOG_BLCKSZ ?
			SizeOfXLogLongPHD :
			SizeOfXLogShortPHD;

	if (lsn % XLOG_BLCKSZ <= header)
		lsn -= lsn % XLOG_BLCKSZ;
	return lsn;
}

XLogRecPtr
outbox_log_flush(XLogRecPtr lsn)
{
	if (lsn > GetFlushRecPtr(NULL))
		XLogFlush(lsn);
	return outbox_standbys_required() ? Min(lsn, outbox_standbys_lsn()) : lsn;
}
