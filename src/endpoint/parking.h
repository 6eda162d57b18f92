#ifndef OUTBOX_PARKING_H
#define OUTBOX_PARKING_H

#include "endpoint/endpoint.h"

/*
 * The first makes a delivery of an event that has a row, and gives it its place.
 * The second is for a row that is gone, or whose event is gone.  'was_retry': true
 * if the row says 'retrying', false if it says 'blocked'.
 */
extern void outbox_parking_load(OutboxEndpoint *ep, OutboxEvent *event, int attempts,
								TimestampTz first_attempt_at, bool unsent,
								OutboxRedelivery redelivery, bool was_retry, int64 group);
extern void outbox_parking_load_failed(OutboxEndpoint *ep, int64 seq, const char *key,
									   bool was_retry);

/*
 * Counts a row of outbox.parked that was made ('n' is 1) or deleted (-1).  Rows
 * that the count has not reached yet are left to it.
 */
extern void outbox_parking_count_row(OutboxEndpoint *ep, int64 seq,
									 OutboxRowStatus status, int n);

/*
 * Returns the seqs of deliveries in memory whose row says 'retrying', palloc'd, and
 * their number in '*n'.
 */
extern int64 *outbox_parking_loaded_retries(OutboxEndpoint *ep, int *n);

/*
 * Leaves the first 'n' deliveries on 'settling', or a few more that are tried again together,
 * and moves the others to 'rest'.  Until they are on 'settling' again, they are as they were
 * before their outcome: the position names the ones without a row.  False: there are none.
 */
extern bool outbox_parking_split(OutboxEndpoint *ep, int n, dlist_head *rest);
extern void outbox_parking_rejoin(OutboxEndpoint *ep, dlist_head *rest);

/*
 * To be called when a settle is committed.  Empties 'settling': retries are added
 * to the heap, and every delivery on it is freed.
 */
extern void outbox_parking_settled(OutboxEndpoint *ep);

#endif /* OUTBOX_PARKING_H */
