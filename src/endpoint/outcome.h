/*
 * outcome.h
 *	  What the end of a request means for a delivery, its key and its endpoint.
 */
#ifndef OUTBOX_OUTCOME_H
#define OUTBOX_OUTCOME_H

#include "endpoint/endpoint.h"

/* A delivery is in flight no more; its lane has no head then. */
extern void outbox_leave_flight(OutboxEndpoint *ep, OutboxDelivery *d);

/* A delivery failed: it is counted, and remembers why. */
extern void outbox_outcome_failed(OutboxEndpoint *ep, OutboxDelivery *d,
								  const OutboxOutcome *o, const char *error);

/* A request failed: breaker, slow-down, disable.  'd': one of its deliveries. */
extern void outbox_outcome_request_failed(OutboxEndpoint *ep, OutboxDelivery *d,
										  const OutboxOutcome *o, TimestampTz now);

/* Why a failed delivery is given up now; NULL: it is tried again. */
extern const char *outbox_outcome_exhausted(const OutboxEndpoint *ep,
											const OutboxDelivery *d, TimestampTz now);

/* µs until the next attempt. */
extern int64 outbox_outcome_wait(OutboxEndpoint *ep, const OutboxDelivery *d,
								 const OutboxOutcome *o);

/* It waits until then and blocks its lane. */
extern void outbox_outcome_retry(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz due);

/* It is dead.  Its lane goes on, or is blocked, when the caller says so. */
extern void outbox_outcome_give_up(OutboxEndpoint *ep, OutboxDelivery *d,
								   const char *reason, const char *error);

/* A delivery that is on no list is dead at once: it blocks nothing. */
extern void outbox_outcome_unsent(OutboxEndpoint *ep, OutboxDelivery *d,
								  const char *reason, const char *error);
extern void outbox_outcome_log_dead(const OutboxEndpoint *ep, const OutboxDelivery *d,
									const char *reason);
extern bool outbox_outcome_blocks(const OutboxEndpoint *ep, const char *reason);

/* It was delivered. */
extern void outbox_outcome_delivered(OutboxEndpoint *ep, OutboxDelivery *d,
									 TimestampTz now);

/* Why it need not be sent, or cannot be, and that in words; NULL: it can be. */
extern const char *outbox_outcome_unfit(const OutboxDelivery *d, TimestampTz now,
										const char **error);

/* The outcome of a delivery that was in flight; may free it. */
extern void outbox_outcome_done(OutboxEndpoint *ep, OutboxDelivery *d,
								const OutboxOutcome *outcome, TimestampTz now);

/* A delivery in flight that cannot be sent at all. */
extern void outbox_outcome_dead(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
								const char *error);
extern bool outbox_outcome_reason_blocks(const char *reason);

#endif /* OUTBOX_OUTCOME_H */
