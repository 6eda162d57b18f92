#ifndef OUTBOX_ATTEMPTS_H
#define OUTBOX_ATTEMPTS_H

#include "endpoint/endpoint.h"

extern void outbox_attempts_init(void);

/* True if the answers of its successful attempts are remembered, too. */
extern bool outbox_attempts_keep_good(const OutboxEndpoint *ep);

/*
 * Remembers an attempt that has ended, if outbox.log_attempts asks for it.  'error'
 * is why it failed.  NULL: it succeeded.  'keep_answer' is true if the kept parts of its
 * answer are to be stored, too.  Returns true if they will be.  The requests before it that were lost
 * (transport.h) are attempts, too.  _lost remembers only these, for a delivery that was
 * not sent.
 */
extern bool outbox_attempt_ended(const OutboxDelivery *d, const OutboxOutcome *outcome,
								 const char *error, bool keep_answer);
extern void outbox_attempts_lost(const OutboxDelivery *d, const OutboxOutcome *o);

/*
 * The request of the delivery, or of its batch, is broken off.  The receiver may have seen it,
 * so it is remembered as failed.  The second does so for all requests of the endpoint.
 */
extern void outbox_attempts_broken_off(OutboxDelivery *d, TimestampTz now);
extern void outbox_attempts_worker_ends(OutboxEndpoint *ep, TimestampTz now);

/*
 * The first writes the attempts, in a settle's transaction.  The second forgets
 * them, when that transaction is committed.
 */
extern void outbox_attempts_write(void);
extern void outbox_attempts_written(void);

/* True if attempts are in memory that are not written yet. */
extern bool outbox_attempts_wait(void);

#endif /* OUTBOX_ATTEMPTS_H */
