/*
 * retries.h
 *	  Parked deliveries whose retry is not due yet, by due time and by seq.
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
/* Their rows could not be read: puts them back on the heap. */
extern void outbox_retries_not_loaded(OutboxEndpoint *ep, const int64 *seqs, int n);
extern OutboxLane *outbox_retries_take_loaded(OutboxEndpoint *ep, int64 seq);
extern void		   outbox_retries_remove(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_make_due(OutboxEndpoint *ep, int64 seq, TimestampTz now);

/* True if it is on the heap. */
extern bool outbox_retries_contains(OutboxEndpoint *ep, int64 seq);

extern void outbox_retries_add_parked(OutboxEndpoint *ep, int64 seq, TimestampTz due,
									  const char *key, int64 group);

/*
 * True if a retry is due, the endpoint may send now, and not too much is ready
 * already.
 */
extern bool outbox_retries_has_due(OutboxEndpoint *ep, TimestampTz now);

/*
 * Takes up to 'max' due retries off the heap.  Returns how many, and their seqs in
 * 'seqs'.
 */
extern int outbox_retries_take_due(OutboxEndpoint *ep, TimestampTz now, int64 *seqs,
								   int max);

#endif /* OUTBOX_RETRIES_H */
