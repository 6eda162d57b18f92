#ifndef OUTBOX_FORGET_PASS_H
#define OUTBOX_FORGET_PASS_H

#include "base/outbox.h"

/*
 * Carries out the next slice of the pass.  If there is no pass, one begins for the requests
 * up to 'upto'.  One of these must be in the list (log/forgotten.h), and no worker may have
 * a copy of what they concern.  Returns false if the next slice is to wait for something.
 */
extern bool outbox_forget_pass_slice(int64 upto);

/* The pass is given up: memory may be ahead of the tables. */
extern void outbox_forget_pass_drop(void);

#endif /* OUTBOX_FORGET_PASS_H */
