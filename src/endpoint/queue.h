#ifndef OUTBOX_QUEUE_H
#define OUTBOX_QUEUE_H

#include "endpoint/endpoint.h"

/*
 * Makes a delivery of this event, on no list yet except 'held'.  'parked': true if
 * it has a row in outbox.parked.
 */
extern OutboxDelivery *outbox_delivery_make(OutboxEndpoint *ep, OutboxEvent *event,
											bool parked);

/*
 * The first frees a delivery that is on no list any more, the second all of a list.
 */
extern void outbox_delivery_free(OutboxDelivery *d);
extern void outbox_delivery_free_list(dlist_head *list);

/*
 * _ready adds the delivery to the end of 'ready'.  _ready_again adds it to the
 * front, because it was not sent after all.  _leave_ready removes it.
 */
extern void outbox_delivery_ready(OutboxEndpoint *ep, OutboxDelivery *d);
extern void outbox_delivery_ready_again(OutboxEndpoint *ep, OutboxDelivery *d);
extern void outbox_delivery_leave_ready(OutboxEndpoint *ep, OutboxDelivery *d);

/* Adds the delivery to 'in_flight': it is in a request that is started now. */
extern void outbox_delivery_begin(OutboxEndpoint *ep, OutboxDelivery *d, TimestampTz now);

/*
 * Adds 'n' to the number of deliveries with a row like this one's that are ready or
 * waiting.
 */
extern void outbox_delivery_count(OutboxDelivery *d, int n);

/* From now on the position names the delivery, unless it has a row. */
extern void outbox_delivery_hold(OutboxDelivery *d);

/* Adds the delivery to 'settling': the next settle changes its row. */
extern void outbox_delivery_settle(OutboxEndpoint *ep, OutboxDelivery *d,
								   OutboxVerdict verdict);

#endif /* OUTBOX_QUEUE_H */
