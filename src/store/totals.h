#ifndef OUTBOX_TOTALS_H
#define OUTBOX_TOTALS_H

#include "store/positions.h"

/*
 * Reads the stored totals.  For the worker that takes the work of the database, inside
 * a transaction.
 */
extern void outbox_totals_read(void);

/*
 * Returns when the totals are to be stored: now or before, if they have changed and
 * this worker stores them.  DT_NOEND: not at all.
 */
extern TimestampTz outbox_totals_due(void);

/*
 * The first adds the totals to the rows of a settle, with 'final' also before they are
 * due.  The second is called when it is committed, the third when the WAL is flushed up
 * to 'flushed'.
 */
extern void outbox_totals_add(OutboxPositions *p, const OutboxCursor *head, bool final);
extern void outbox_totals_stored(TimestampTz at, XLogRecPtr lsn);
extern void outbox_totals_flushed(XLogRecPtr flushed);

/* True while stored totals wait for the flush. */
extern bool outbox_totals_wait(void);

#endif /* OUTBOX_TOTALS_H */
