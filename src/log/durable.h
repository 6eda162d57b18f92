#ifndef OUTBOX_DURABLE_H
#define OUTBOX_DURABLE_H

#include "log/tick.h"

/* How far the WAL is durable, as far as the worker knows. */
extern XLogRecPtr outbox_durable_lsn;

/* The end of the WAL, in a form that XLogFlush() accepts. */
extern XLogRecPtr outbox_log_end(void);

/*
 * How far the WAL must be durable so that a crash cannot undo this xid.  'tick' sees
 * the xid; NULL: a snapshot of now does.
 */
extern XLogRecPtr outbox_commit_lsn(uint64 xid, const OutboxTick *tick);

/*
 * Flushes the WAL up to 'lsn' if necessary.  Returns how far it is then durable, here
 * and on the required standbys: 'lsn', or a position before it.
 */
extern XLogRecPtr outbox_log_flush(XLogRecPtr lsn);

#endif /* OUTBOX_DURABLE_H */
