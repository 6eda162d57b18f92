#ifndef OUTBOX_TAKEN_H
#define OUTBOX_TAKEN_H

#include "base/outbox.h"

/* This transaction has taken an event of a source, whose subscription this is. */
extern void outbox_taken_add(Oid subscription);

/* Forgets subscriptions that were dropped.  Must be called in a transaction. */
extern void outbox_taken_forget(void);

#endif /* OUTBOX_TAKEN_H */
