#ifndef OUTBOX_TRANSACTION_H
#define OUTBOX_TRANSACTION_H

#include "base/outbox.h"

#include "storage/lockdefs.h"
#include "utils/rel.h"

#include "log/tables.h"

/*
 * Overrides settings of the database or the role that could break the worker.  Then
 * becomes the owner of the extension, or the role of outbox.worker_role.  Returns
 * false if this database does not have the extension.
 */
extern bool outbox_session_init(void);

/*
 * The same for a process that is no worker: it becomes the owner of the extension, whose
 * functions it calls, and could replace them.  Plans and waits for locks are as usual.
 */
extern bool outbox_session_init_as_owner(void);

/*
 * Triggers of the owner, or other code of its own, may run in a transaction, also at its
 * commit.  The connection was made as a superuser, so it could become any role.  From the
 * beginning of the transaction until it has ended, no role can be set.
 */
extern void outbox_session_fix_role(bool fixed);

/*
 * The handler of SIGTERM asks the loop to end.  The loop calls _stores_at_end when it begins:
 * from then on a transaction is cancelled for that, and the process goes on.  It calls _ends
 * when it ends, and has 5 s.
 */
extern void outbox_session_sigterm(SIGNAL_ARGS);
extern void outbox_session_stores_at_end(void);
extern void outbox_session_ends(void);

/*
 * Why the worker's role could not do a worker's work when this process started.  NULL: it
 * can.
 */
extern const char *outbox_session_role_misfit(void);

/* The version of the installed SQL objects. */
extern const char *outbox_session_version(void);

/* The name of the database.  A worker ends before that changes. */
extern const char *outbox_session_database(void);

/* Sets the epoch that is served.  When it is no longer the log's, the worker ends. */
extern void outbox_session_set_epoch(int64 epoch);

/*
 * Begins a transaction.  Returns false, with no transaction open, if another session
 * holds a lock that conflicts (DROP EXTENSION, VACUUM FULL …).  The caller tries again
 * a little later.  Ends the process if the extension was dropped, or has another
 * version than at the start.  With 'write' all tables are locked that a step may write.
 *
 * Without 'write' only the log is locked, and with _settle also the settings and positions.
 * Both lock other tables with outbox_lock_if_free(), so that a lock on a table holds up
 * only work that needs the table.  _read and _step lock as without and with 'write',
 * and throw (55P03), so that the step that calls it is put on hold.
 */
#define OUTBOX_RETRY_LOCKS_AFTER (20 * 1000) /* µs */
extern bool outbox_txn_begin(bool write);
extern bool outbox_txn_begin_settle(void);
extern void outbox_txn_begin_read(void);
extern void outbox_txn_begin_step(void);

/*
 * Locks these tables in the present transaction.  False: another session has one.  It
 * never waits.
 */
extern bool outbox_lock_if_free(OutboxTable first, OutboxTable last, LOCKMODE mode);

/* For a step that cannot do without the table: 55P03 puts it on hold. */
extern void outbox_throw_locked(OutboxTable table);

/*
 * Begins a transaction that also writes to the log.  Also returns false while an index
 * is being built there.
 */
extern bool outbox_txn_begin_to_emit(void);

/* End the transaction and its SPI connection. */
extern void outbox_txn_commit(void);
extern void outbox_txn_abort(void);

/* After an error: whether a transaction is open, and its abort. */
extern bool outbox_txn_is_open(void);
extern void outbox_txn_abort_failed(void);

/*
 * Locks the log for writing, in a transaction.  Returns false if it is locked by
 * another session.
 */
extern bool outbox_lock_log(void);

/*
 * Locks these tables and all their indexes as a reader does.  Needs a transaction.  Throws
 * (55P03) at once if another session has one, as REINDEX does.  It never waits.
 */
extern void outbox_lock_indexes(OutboxTable first, OutboxTable last);

#endif /* OUTBOX_TRANSACTION_H */
