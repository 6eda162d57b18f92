/*
 * queue.h
 *	  The lists that an endpoint's deliveries are on.
 */
#ifndef OUTBOX_QUEUE_H
#define OUTBOX_QUEUE_H

#include "endpoint/endpoint.h"

/* A delivery of this event, on no list yet.  'parked': it has a row. */
extern OutboxDelivery *outbox_delivery_make(OutboxEndpoint *ep, OutboxEvent *event,
											bool parked);

/* It has ended, and is on no list any more; all of a list. */
extern void outbox_delivery_free(OutboxDelivery *d);
extern void outbox_delivery_free_list(dlist_head *list);

/* It may be sent; it was not sent after all, and comes before the others. */
extern void outbox_delivery_ready(OutboxEndpoint *ep, OutboxDelivery *d);
extern void outbox_delivery_ready_again(OutboxEndpoint *ep, OutboxDelivery *d);
extern void outbox_delivery_leave_ready(OutboxEndpoint *ep, OutboxDelivery *d);

/* 'n' more, or less, of its kind are ready or waiting. */
extern void outbox_delivery_count(OutboxDelivery *d, int n);

/* Its row has to change, with the next settle. */
extern void outbox_delivery_settle(OutboxEndpoint *ep, OutboxDelivery *d,
								   OutboxRowChange verdict);

#endif /* OUTBOX_QUEUE_H */
