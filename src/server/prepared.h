/*
 * prepared.h
 *	  What prepared transactions want to be woken when they are committed.
 */
#ifndef OUTBOX_PREPARED_H
#define OUTBOX_PREPARED_H

#include "postgres.h"

#include "access/xact.h"

#include "server/wakeup.h"

/* While the server starts, after outbox_shmem_init(). */
extern void outbox_prepared_init(void);

/* PREPARE TRANSACTION was asked for; at its end the marks are noted. */
extern void outbox_prepared_begin(const char *gid);
extern void outbox_prepared_at_transaction_end(XactEvent event, const OutboxMarks *marks);

/*
 * A prepared transaction is committed, or rolled back.  False: it was prepared
 * before the server started, or there was no room to note its marks.
 */
extern bool outbox_prepared_ended(const char *gid, OutboxMarks *marks);

#endif /* OUTBOX_PREPARED_H */
