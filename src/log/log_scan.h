#ifndef OUTBOX_LOG_SCAN_H
#define OUTBOX_LOG_SCAN_H

#include "base/outbox.h"

#include "executor/tuptable.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

/*
 * Is called with each row, which is valid until it returns.  Returns false if it does
 * not take this row: the scan then ends.
 */
typedef bool (*OutboxScanTake)(void *arg, TupleTableSlot *slot);

/*
 * Scans the rows that 'snapshot' sees, with above < seq <= upto, and at most 'limit'
 * of them.  If 'tenant' is not NULL, only its rows are read.  Returns true if there are
 * no more such rows.
 */
extern bool outbox_scan_seq(const char *tenant, int64 above, int64 upto, int limit,
							Snapshot snapshot, OutboxScanTake take, void *arg);

/*
 * Scans the rows with these numbers (int8[]), in any order.  It scans all of them,
 * whatever 'take' returns.
 */
extern void outbox_scan_these(Datum seqs, Snapshot snapshot, OutboxScanTake take,
							  void *arg);

/* Like outbox_scan_seq(), for the rows of these transactions only. */
extern bool outbox_scan_xids(const uint64 *xids, int nxids, int64 above, int64 upto,
							 int limit, Snapshot snapshot, OutboxScanTake take,
							 void *arg);

/*
 * Whether a table has an event with this id: a piece of the log, or outbox.scheduled, both
 * of outbox_log_tables().  IN_DOUBT: that depends on a transaction that is still open.
 */
typedef enum OutboxIdState
{
	OUTBOX_ID_FREE,
	OUTBOX_ID_TAKEN,
	OUTBOX_ID_IN_DOUBT
} OutboxIdState;

extern OutboxIdState outbox_scan_id(const Oid *table, const pg_uuid_t *id);

#endif /* OUTBOX_LOG_SCAN_H */
