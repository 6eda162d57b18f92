/*
 * kept.h
 *	  Events that outlive their piece of the log because a parked delivery needs
 *	  them: they are copied, and removed, in slices.
 *
 * A row of outbox.kept_events is the event only when the log has no row of it.
 * So events are copied before their piece is emptied, while the log is in use.
 */
#ifndef OUTBOX_KEPT_H
#define OUTBOX_KEPT_H

#include "server/shmem.h"

/* Forgets how far the copying and the removing had come. */
extern void outbox_kept_init(OutboxDatabase *db);

/*
 * In a transaction that excludes all others that park deliveries or write to this
 * piece: begins to copy, or goes on where the slices have come to.  True: all is
 * copied, and this transaction may empty the piece.  False: there is more, and the
 * transaction is committed.
 */
extern bool outbox_kept_complete(int piece);

/* When the next slice is to be copied; DT_NOEND: there is none. */
extern TimestampTz outbox_kept_copy_time(void);

/* Copies a slice, in a transaction of its own. */
extern void outbox_kept_copy(int piece);

/*
 * In the transaction that parks these deliveries: copies the events that a slice
 * may have passed already.
 */
extern void outbox_kept_add(const int64 *seqs, int n);

/* The piece was emptied, and that is committed. */
extern void outbox_kept_emptied(void);

/* When the next slice is to be removed; DT_NOEND: there is none. */
extern TimestampTz outbox_kept_tidy_time(void);

/* Removes what no delivery needs any more: a slice, in a transaction of its own. */
extern void outbox_kept_tidy(void);

#endif /* OUTBOX_KEPT_H */
