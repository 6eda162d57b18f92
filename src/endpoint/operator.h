/*
 * operator.h
 *	  What an operator did to parked deliveries; the rows say so already.
 */
#ifndef OUTBOX_OPERATOR_H
#define OUTBOX_OPERATOR_H

#include "endpoint/endpoint.h"

extern void outbox_operator_retry_dead(OutboxEndpoint *ep, int64 seq, const char *key,
									   bool blocked, TimestampTz due);
extern void outbox_operator_retry_now(OutboxEndpoint *ep, int64 seq, const char *key,
									  TimestampTz due);
extern void outbox_operator_discard_dead(OutboxEndpoint *ep, int64 seq, const char *key,
										 bool blocked);
extern void outbox_operator_cancel_retry(OutboxEndpoint *ep, int64 seq, const char *key);
extern void outbox_operator_cancel_follower(OutboxEndpoint *ep, int64 seq,
											const char *key);
extern void outbox_operator_skip(OutboxEndpoint *ep, int64 seq, bool counted);

/* True if memory has the delivery. */
extern bool outbox_operator_in_memory(OutboxEndpoint *ep, int64 seq, const char *key);

/* True if memory has the delivery already, so that a follower's row is not read. */
extern bool outbox_operator_skip_follower(OutboxEndpoint *ep, int64 seq, const char *key);

#endif /* OUTBOX_OPERATOR_H */
