/*
 * retries.h
 *	  Parked deliveries that wait for their time, by seq.
 */
#ifndef OUTBOX_RETRIES_H
#define OUTBOX_RETRIES_H

#include "endpoint/endpoint.h"

extern void outbox_retries_init(OutboxEndpoint *ep);
extern void outbox_retries_add(OutboxEndpoint *ep, int64 seq, TimestampTz due,
							   int64 group, OutboxLane *lane);
extern void outbox_retries_push(OutboxEndpoint *ep, int64 seq, TimestampTz due,
								int64 group, OutboxLane *lane);
extern void outbox_retries_forget(OutboxEndpoint *ep);
/* Their rows could not be read: they are due as before. */
extern void outbox_retries_not_loaded(OutboxEndpoint *ep, const int64 *seqs, int n);
extern OutboxLane *outbox_retries_take_loaded(OutboxEndpoint *ep, int64 seq);
extern void		   outbox_retries_remove(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_make_due(OutboxEndpoint *ep, int64 seq, TimestampTz now);

/* Does it wait for its time here? */
extern bool outbox_retries_contains(OutboxEndpoint *ep, int64 seq);

#endif /* OUTBOX_RETRIES_H */
