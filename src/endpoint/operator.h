/*
 * operator.h
 *	  The effect of an operator's command on deliveries in memory.  The tables
 *	  have been changed and committed before these functions are called.
 */
#ifndef OUTBOX_OPERATOR_H
#define OUTBOX_OPERATOR_H

#include "endpoint/endpoint.h"

/*
 * A dead delivery is to be retried at 'due'.  'blocked' is true if it is dead in a
 * way that can block its key.
 */
extern void outbox_operator_retry_dead(OutboxEndpoint *ep, int64 seq, const char *key,
									   bool blocked, TimestampTz due);

/* A retry is due sooner, at 'due'. */
extern void outbox_operator_retry_now(OutboxEndpoint *ep, int64 seq, const char *key,
									  TimestampTz due);

/*
 * One request is due at once, if anything waits: neither backoff nor Retry-After counts
 * any longer.
 */
extern void outbox_operator_probe(OutboxEndpoint *ep, TimestampTz now);

/* A dead delivery was discarded or cancelled.  'blocked' is as above. */
extern void outbox_operator_discard_dead(OutboxEndpoint *ep, int64 seq, const char *key,
										 bool blocked);

/* A delivery was cancelled that waits for its retry ('retries'), or behind its key's head. */
extern void outbox_operator_cancel_parked(OutboxEndpoint *ep, int64 seq, const char *key,
										  bool retries);

/*
 * An event beyond the frontier was cancelled.  'counted' is true if it is part of
 * the backlog.
 */
extern void outbox_operator_skip(OutboxEndpoint *ep, int64 seq, bool counted);

/* True if the delivery is in flight, or was and is not settled yet. */
extern bool outbox_operator_has_sent(OutboxEndpoint *ep, int64 seq);

/* True if the delivery is ready, in flight, settling, or waiting in its lane. */
extern bool outbox_operator_in_memory(OutboxEndpoint *ep, int64 seq, const char *key);

/* The same of any event of this tenant and key.  'key' NULL: of any key, and of none. */
extern bool outbox_operator_has_tenant(OutboxEndpoint *ep, const char *tenant,
									   const char *key);

/* True if memory has this follower already.  Then its row must not be loaded. */
extern bool outbox_operator_skip_follower(OutboxEndpoint *ep, int64 seq, const char *key);

#endif /* OUTBOX_OPERATOR_H */
