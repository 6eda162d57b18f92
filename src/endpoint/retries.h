#ifndef OUTBOX_RETRIES_H
#define OUTBOX_RETRIES_H

#include "endpoint/endpoint.h"

extern void outbox_retries_init(OutboxEndpoint *ep);

/*
 * Add a retry to the heap.  'due' is as its row says.  'lane' is the lane whose head it
 * is, which it blocks until it is back in memory.  NULL: it is in no lane.  _add leaves
 * out a retry beyond the part that the heap has to have, and only marks its lane.
 */
extern void outbox_retries_add(OutboxEndpoint *ep, int64 seq, TimestampTz due,
							   int64 group, bool tried, OutboxLane *lane);
extern void outbox_retries_push(OutboxEndpoint *ep, int64 seq, TimestampTz due,
								int64 group, bool tried, OutboxLane *lane);

/*
 * The heap has too many: forgets all of them.  They are read again from the table,
 * from the first one on.
 */
extern void outbox_retries_forget(OutboxEndpoint *ep);

/* Their rows could not be read: puts them back on the heap. */
extern void outbox_retries_not_loaded(OutboxEndpoint *ep, const int64 *seqs, int n);

/*
 * The delivery is back in memory, or its row is gone.  Returns the lane that it
 * blocked.  NULL: none, or it was not being loaded.
 */
extern OutboxLane *outbox_retries_take_loaded(OutboxEndpoint *ep, int64 seq);

/*
 * The first removes a retry from the heap, and the caller lets its lane advance.  The
 * second makes it due at 'now'.  It must be on the heap.  The third makes the retry due
 * that is due first, with its group, if there is any.
 */
extern void outbox_retries_remove(OutboxEndpoint *ep, int64 seq);
extern void outbox_retries_make_due(OutboxEndpoint *ep, int64 seq, TimestampTz now);
extern void outbox_retries_first_due(OutboxEndpoint *ep, TimestampTz now);

/* Makes the retries on the heap due of which no attempt has failed. */
extern void outbox_retries_untried_due(OutboxEndpoint *ep, TimestampTz now);

/* Returns the retry on the heap that is due first (NULL: there is none). */
extern OutboxRetry *outbox_retries_first(const OutboxEndpoint *ep);

/*
 * Returns when it is taken, which is up to 5 ms after it is due.  DT_NOEND: there is none,
 * or enough is ready already.
 */
extern TimestampTz outbox_retries_due(const OutboxEndpoint *ep);

/* True if it is on the heap. */
extern bool outbox_retries_contains(OutboxEndpoint *ep, int64 seq);

/* outbox_retries_add() with the lane of this key, which is made if need be. */
extern void outbox_retries_add_parked(OutboxEndpoint *ep, int64 seq, TimestampTz due,
									  const char *key, int64 group);

/*
 * True if the endpoint may send as far as itself is concerned, and a retry is due, or may
 * be the probe, and not too much is ready already.
 */
extern bool outbox_retries_has_due(OutboxEndpoint *ep, TimestampTz now);

/*
 * Takes up to 'max' due retries off the heap.  Returns how many, and their seqs in
 * 'seqs'.
 */
extern int outbox_retries_take_due(OutboxEndpoint *ep, TimestampTz now, int64 *seqs,
								   int max);

#endif /* OUTBOX_RETRIES_H */
