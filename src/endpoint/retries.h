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

extern void outbox_retries_add_parked(OutboxEndpoint *ep, int64 seq, TimestampTz due,
									  const char *key, int64 group);

/* True if there is a due retry and a slot for it. */
extern bool outbox_retries_has_due(OutboxEndpoint *ep, TimestampTz now);

/* Takes up to 'max' due ones off the heap; returns how many. */
extern int outbox_retries_take_due(OutboxEndpoint *ep, TimestampTz now, int64 *seqs,
								   int max);

#endif /* OUTBOX_RETRIES_H */
