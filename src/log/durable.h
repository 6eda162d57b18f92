/*
 * durable.h
 *	  How far the WAL has to be durable before an event may be sent.
 */
#ifndef OUTBOX_DURABLE_H
#define OUTBOX_DURABLE_H

#include "log/tick.h"

/* As far as the worker knows. */
extern XLogRecPtr outbox_durable_lsn;

/* The end of the WAL that XLogFlush() can be asked for. */
extern XLogRecPtr outbox_log_end(void);

/*
 * Where the WAL has to be durable so that a crash cannot take this xid back, if it
 * was seen by this tick; NULL: by a snapshot of now.
 */
extern XLogRecPtr outbox_commit_lsn(uint64 xid, const OutboxTick *tick);

/*
 * Flushes up to 'lsn' if need be.  Returns how far the WAL is durable then, here and
 * on the standbys that are asked for: 'lsn', or a place before it.
 */
extern XLogRecPtr outbox_log_flush(XLogRecPtr lsn);

#endif /* OUTBOX_DURABLE_H */
