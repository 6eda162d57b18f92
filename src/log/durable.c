/*
 * durable.c
 *	  Owns how far the WAL must be durable before an event may be sent.  A crash must
 *	  not undo an event that a receiver has got.  Nor must a failover to a standby that
 *	  the configuration names.
 */
#include "base/outbox.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"

#include "base/compat.h"
#include "log/durable.h"
#include "log/standbys.h"
#include "log/tick.h"

/*
 * The commit log is read for this many recent xids.  For older ones the tick's LSN is
 * used.
 */
#define FRESH_XIDS 100000

XLogRecPtr outbox_durable_lsn;

/* True if the xid is of this system, and recent enough for the commit log. */
static bool
is_fresh(uint64 xid)
{
	uint64 next = U64FromFullTransactionId(ReadNextFullTransactionId());

	return xid + FRESH_XIDS >= next && xid < next &&
		!TransactionIdPrecedes((TransactionId) xid, outbox_oldest_clog_xid());
}

/*
 * A transaction that flushed its own commit needs nothing more.  The commit log knows
 * which transactions did not.
 */
XLogRecPtr
outbox_commit_lsn(uint64 xid, const OutboxTick *tick)
{
	return is_fresh(xid) ? TransactionIdGetCommitLSN((TransactionId) xid) :
		tick			 ? tick->lsn :
						   InvalidXLogRecPtr;
}

/*
 * The end of the WAL.  At a page boundary, the insert position is already behind the
 * header of a page that does not exist yet.  XLogFlush() would report an error for it,
 * so the start of that page is returned.
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
