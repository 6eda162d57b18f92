#ifndef OUTBOX_EVENT_NUMBER_H
#define OUTBOX_EVENT_NUMBER_H

#include "base/outbox.h"

/*
 * Draws the next number of the log, after the transaction has got its xid.  Marks the
 * transaction as one that emits.
 */
extern int64 outbox_number_draw(void);

/*
 * Returns a number that is not lower than any that was drawn before the call.  One that
 * is drawn by a call after it is higher.  Throws (42501) if the role may not read the
 * sequence.
 */
extern int64 outbox_number_highest(Oid sequence);

/*
 * Reads the highest number that is in use from the tables of the log, unless that is
 * known.
 */
extern void outbox_number_load(void);

/*
 * True if this transaction drew the number for a direct INSERT, as the column's
 * default.
 */
extern bool outbox_number_is_new(int64 seq);

#endif /* OUTBOX_EVENT_NUMBER_H */
