/*
 * attempts.h
 *	  Attempts that have ended, until a settle writes them to outbox.attempts.
 */
#ifndef OUTBOX_ATTEMPTS_H
#define OUTBOX_ATTEMPTS_H

#include "endpoint/endpoint.h"

extern void outbox_attempts_init(OutboxDatabase *db);

/*
 * Remembers one.  'error': why it failed, NULL: it did not.  'keep_body': with
 * what was kept of the answer to a failure.
 */
extern void outbox_attempt_ended(const OutboxDelivery *d, const OutboxOutcome *outcome,
								 const char *error, bool keep_body);

/* In a settle's transaction; and when that is committed. */
extern void outbox_attempts_write(void);
extern void outbox_attempts_written(void);

/* Text that a receiver sent, made fit for this database's encoding. */
extern char *outbox_foreign_text(const char *s, size_t len);

#endif /* OUTBOX_ATTEMPTS_H */
