/*
 * log_scan.h
 *	  Rows of the log in the order of seq, by either of its indexes.
 */
#ifndef OUTBOX_LOG_SCAN_H
#define OUTBOX_LOG_SCAN_H

#include "base/outbox.h"

#include "executor/tuptable.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

/*
 * Is shown each row; it is valid until this returns.  False: not now, and none of
 * those behind it.
 */
typedef bool (*OutboxScanTake)(void *arg, TupleTableSlot *slot);

/*
 * At most 'limit' rows that 'snapshot' sees, with above < seq <= upto.  True:
 * there are no more of them.
 */
extern bool outbox_scan_seq(int64 above, int64 upto, int limit, Snapshot snapshot,
							OutboxScanTake take, void *arg);

/* Those of these numbers (int8[]), in any order; all of them, whatever take says. */
extern void outbox_scan_these(Datum seqs, Snapshot snapshot, OutboxScanTake take,
							  void *arg);

/* Like outbox_scan_seq(), of these transactions alone. */
extern bool outbox_scan_xids(const uint64 *xids, int nxids, int64 above, int64 upto,
							 int limit, Snapshot snapshot, OutboxScanTake take,
							 void *arg);

/*
 * Does the piece that events go to now have one with this id?  In doubt: it
 * depends on a transaction that is open.
 */
typedef enum OutboxIdState
{
	OUTBOX_ID_FREE,
	OUTBOX_ID_TAKEN,
	OUTBOX_ID_IN_DOUBT
} OutboxIdState;

extern OutboxIdState outbox_scan_id(const pg_uuid_t *id);

#endif /* OUTBOX_LOG_SCAN_H */
