/*
 * prepared.h
 *	  The processes to wake when a prepared transaction is committed.
 */
#ifndef OUTBOX_PREPARED_H
#define OUTBOX_PREPARED_H

#include "postgres.h"

#include "access/xact.h"

#include "server/wakeup.h"

/* Called while the server starts, after outbox_shmem_init(). */
extern void outbox_prepared_init(void);

/*
 * The first is called before PREPARE TRANSACTION.  The second stores the marks when
 * the transaction is prepared.
 */
extern void outbox_prepared_begin(const char *gid);
extern void outbox_prepared_at_transaction_end(XactEvent event, const OutboxMarks *marks);

/*
 * Called when a prepared transaction was committed or rolled back.  Takes its note,
 * and returns false if it has none: it was prepared before the server started, or
 * there was no space for the note.  'marks' is then unchanged.
 */
extern bool outbox_prepared_ended(const char *gid, OutboxMarks *marks);

#endif /* OUTBOX_PREPARED_H */
