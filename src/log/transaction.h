/*
 * transaction.h
 *	  The worker's transactions: short, never waiting for a lock that somebody
 *	  else may hold long.
 */
#ifndef OUTBOX_TRANSACTION_H
#define OUTBOX_TRANSACTION_H

#include "base/outbox.h"

#include "utils/rel.h"

#include "log/tables.h"

/*
 * Overrides what settings of the database or the role could break, and becomes
 * the owner of the extension, or outbox.worker_role.  False: this database does not have it.
 */
extern bool outbox_session_init(void);

extern void outbox_session_sigterm(SIGNAL_ARGS);

/*
 * Why the worker's role cannot do what a worker has to, when this process started;
 * NULL: it can.  In a transaction: could it now?
 */
extern const char *outbox_session_role_misfit(void);
extern bool		   outbox_session_role_would_fit(void);

/* Version of the extension's objects, as installed. */
extern const char *outbox_session_version(void);

/* The epoch that is served: once it is no longer the log's, the worker ends. */
extern void outbox_session_set_epoch(int64 epoch);

/*
 * Begins a transaction.  False, and none is open: somebody holds a lock that
 * conflicts (DROP EXTENSION, VACUUM FULL …), try again a little later.  Ends
 * the process when the extension is gone, or of another version than at the
 * start.  'write': the transaction will write outcomes; else it reads the log.
 */
#define OUTBOX_RETRY_LOCKS_AFTER (20 * 1000) /* µs */
extern bool outbox_txn_begin(bool write);

/* One that will also write to the log, which somebody may be indexing. */
extern bool outbox_txn_begin_to_emit(void);
extern void outbox_txn_commit(void);
extern void outbox_txn_abort(void); /* ends it without effect */

/* After an error: aborts whatever is open of it. */
extern bool outbox_txn_is_open(void);
extern void outbox_txn_abort_failed(void);

/* In a transaction: the log may be written to as well.  False: not now. */
extern bool outbox_lock_log(void);

/*
 * In a transaction: locks all indexes of these tables as a reader does.  An error
 * (lock_not_available) at once when another transaction has one, as REINDEX does:
 * nothing is waited for.
 */
extern void outbox_lock_indexes(OutboxTable first, OutboxTable last);

#endif /* OUTBOX_TRANSACTION_H */
