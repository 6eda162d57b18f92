/*
 * retries.h
 *	  Parked deliveries that wait for their time, by seq.
 */
#ifndef OUTBOX_RETRIES_H
#define OUTBOX_RETRIES_H

#include "endpoint.h"

extern void outbox_retries_init(OutboxEndpoint *ep);
extern void outbox_retries_add(OutboxEndpoint *ep, int64 seq, TimestampTz due,
							   int64 group, OutboxLane *lane);
extern OutboxLane *outbox_retries_loaded(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_remove(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_hurry(OutboxEndpoint *ep, int64 seq, TimestampTz now);

/* Does it wait for its time here? */
extern bool outbox_retries_wait(OutboxEndpoint *ep, int64 seq);

/*
 * Events that were cancelled before the endpoint came to them.  Those that its
 * backlog counts are counted in 'ncancelled': an event that was cancelled before
 * or after it was counted, and when counting begins anew.
 */
extern void outbox_retries_cancel(OutboxEndpoint *ep, int64 seq, bool counted);
extern bool outbox_retries_was_cancelled(OutboxEndpoint *ep, int64 seq);
extern bool outbox_retries_is_cancelled(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_counted(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_count_again(OutboxEndpoint *ep);

#endif							/* OUTBOX_RETRIES_H */
