/*
 * unsettled.h
 *	  Deliveries that have ended and are not settled: how many there may be.
 *
 * They are sent again after a crash.  So their number is bounded while a settle is held up,
 * or has much to write.
 */
#ifndef OUTBOX_UNSETTLED_H
#define OUTBOX_UNSETTLED_H

#include "endpoint/endpoint.h"

/* A settle does not wait for its time while so many deliveries have ended. */
#define OUTBOX_SETTLE_AFTER 1000

/* So many of all endpoints have ended since the last settle that left nothing. */
extern int outbox_unsettled_n;

/*
 * So many more deliveries of the endpoint have ended.  The second: they are settled.  The
 * third: all of all endpoints are, or belong to endpoints that may not send.
 */
extern void outbox_unsettled_add(OutboxEndpoint *ep, int n);
extern void outbox_unsettled_end(OutboxEndpoint *ep);
extern void outbox_unsettled_end_all(void);

/*
 * _room returns how many more all endpoints together may send.  _may_send is true if the
 * endpoint may send one more: there is room, or it has less than an equal part of as many
 * again.  An endpoint that has none may always send one.
 */
extern int	outbox_unsettled_room(void);
extern bool outbox_unsettled_may_send(const OutboxEndpoint *ep);

#endif /* OUTBOX_UNSETTLED_H */
