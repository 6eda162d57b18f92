/*
 * kept.h
 *	  Events that outlive their piece of the log because a parked delivery needs them.
 *	  They are copied, and removed, in slices.
 *
 * A row of outbox.kept_events is the event only if the log has no row of it.  So
 * events are copied before their piece is emptied, while the log is in use.
 */
#ifndef OUTBOX_KEPT_H
#define OUTBOX_KEPT_H

#include "server/shmem.h"

/* Forgets how far the copying and the removing had come. */
extern void outbox_kept_init(void);

/*
 * Must be called in a transaction that excludes all others that park deliveries or
 * write to this piece.  Begins to copy, or continues after the last slice.  Returns
 * true if all is copied: this transaction may then empty the piece.  Returns false if
 * there is more to copy.  The transaction is then committed.
 */
extern bool outbox_kept_copy_rest(int piece);

/* When the next slice is to be copied; DT_NOEND: there is none. */
extern TimestampTz outbox_kept_copy_time(void);

/* Copies a slice, in a transaction of its own. */
extern void outbox_kept_copy(int piece);

/*
 * Called in the transaction that parks these deliveries.  Copies the events that a
 * slice may already have passed.
 */
extern void outbox_kept_add(const int64 *seqs, int n);

/* Reports that the piece was emptied, after the commit. */
extern void outbox_kept_emptied(void);

/* Reports that rows of deliveries are gone, which copies were kept for, after the commit. */
extern void outbox_kept_released(void);

/* When the next slice is to be removed; DT_NOEND: there is none. */
extern TimestampTz outbox_kept_tidy_time(void);

/* Removes a slice of the copies that no delivery needs, in a transaction of its own. */
extern void outbox_kept_tidy(void *unused);

#endif /* OUTBOX_KEPT_H */
