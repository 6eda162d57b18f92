/*
 * parking.h
 *	  Deliveries that come from rows of outbox.parked, and what their rows count.
 */
#ifndef OUTBOX_PARKING_H
#define OUTBOX_PARKING_H

#include "endpoint/endpoint.h"

/* An event below the frontier that has no row: it was in flight when the position was written. */
extern void outbox_parking_admit(OutboxEndpoint *ep, OutboxEvent *event);

/* An event that has a row. */
extern void outbox_parking_load(OutboxEndpoint *ep, OutboxEvent *event, int attempts,
								TimestampTz first_attempt_at, OutboxRedelivery redelivery,
								bool was_retry, int64 group);
extern void outbox_parking_load_failed(OutboxEndpoint *ep, int64 seq, const char *key,
									   bool was_retry);

/*
 * A row of outbox.parked has come (1) or gone (-1), and that is committed.  Where
 * rows are still being counted those that come later are found then.
 */
extern void outbox_parking_count_row(OutboxEndpoint *ep, int64 seq,
									 OutboxRowStatus status, int n);

/* The numbers of those in memory whose row says 'retrying', palloc'd. */
extern int64 *outbox_parking_loaded_retries(OutboxEndpoint *ep, int *n);

/* A settle is committed: files or frees what was on 'settling'. */
extern void outbox_parking_settled(OutboxEndpoint *ep);

#endif /* OUTBOX_PARKING_H */
