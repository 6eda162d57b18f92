#ifndef OUTBOX_OUTCOME_H
#define OUTBOX_OUTCOME_H

#include "endpoint/endpoint.h"

/* Notes a failed attempt: counts it and keeps 'error'. */
extern void outbox_outcome_failed(OutboxEndpoint *ep, OutboxDelivery *d,
								  const OutboxOutcome *o, const char *error);

/* False: its answer is from the former URL, and says nothing about the present receiver. */
extern bool outbox_outcome_is_present(const OutboxEndpoint *ep, const OutboxDelivery *d);

/*
 * Notes a failed request: for the breaker, for a slow-down, and to disable the
 * endpoint.  'd' is one of its deliveries.  'alone': it was the only one.
 */
extern void outbox_outcome_request_failed(OutboxEndpoint *ep, OutboxDelivery *d,
										  bool alone, const OutboxOutcome *o,
										  TimestampTz now);

/*
 * True if the receiver has asked for a rest since this transaction had its number.  So a probe
 * that it asked for was answered.
 */
extern bool outbox_outcome_rests_since(const OutboxEndpoint *ep, uint64 xid);

/* Returns why a failed delivery becomes dead now.  NULL: it is retried. */
extern const char *outbox_outcome_exhausted(const OutboxEndpoint *ep,
											const OutboxDelivery *d, TimestampTz now);

/* Returns the µs until the next attempt. */
extern int64 outbox_outcome_wait(OutboxEndpoint *ep, const OutboxDelivery *d,
								 const OutboxOutcome *o);

/* The delivery is to be retried at 'due', and blocks its lane until then. */
extern void outbox_outcome_retry(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz due);

/* A ready delivery gets a row, and waits there as one whose retry is due. */
extern void outbox_outcome_keep(OutboxEndpoint *ep, OutboxDelivery *d);

/*
 * True: the receiver refuses the delivery's topic, and this is no probe.  It was ready, and
 * gets a row without a request.
 */
extern bool outbox_outcome_hold(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now);

/* The delivery becomes dead.  The caller lets its lane advance, or blocks it. */
extern void outbox_outcome_give_up(OutboxEndpoint *ep, OutboxDelivery *d,
								   const char *reason, const char *error);

/* A delivery that is on no list becomes dead.  It blocks nothing. */
extern void outbox_outcome_unsent(OutboxEndpoint *ep, OutboxDelivery *d,
								  const char *reason, const char *error);
extern void outbox_outcome_log_dead(const OutboxEndpoint *ep, const OutboxDelivery *d,
									const char *reason, const char *error);
extern bool outbox_outcome_blocks(const OutboxEndpoint *ep, const char *reason);

/* The delivery succeeded.  May free it. */
extern void outbox_outcome_delivered(OutboxEndpoint *ep, OutboxDelivery *d,
									 TimestampTz now);

/*
 * Returns why the delivery must not or cannot be sent, with the words in '*error'.
 * NULL: it can be sent.
 */
extern const char *outbox_outcome_unfit(const OutboxDelivery *d, TimestampTz now,
										const char **error);

/* Acts on the outcome of a delivery that was in flight alone.  May free it. */
extern void outbox_outcome_done(OutboxEndpoint *ep, OutboxDelivery *d,
								const OutboxOutcome *outcome, TimestampTz now);

/* A delivery in flight can never be sent: it becomes dead. */
extern void outbox_outcome_dead(OutboxEndpoint *ep, OutboxDelivery *d, const char *reason,
								const char *error);
extern bool outbox_outcome_reason_blocks(const char *reason);

#endif /* OUTBOX_OUTCOME_H */
