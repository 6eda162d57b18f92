/*
 * parked.h
 *	  Deliveries that have a row in outbox.parked.
 *
 * All of these run inside a transaction of transaction.h.
 */
#ifndef OUTBOX_PARKED_H
#define OUTBOX_PARKED_H

#include "endpoint/endpoint.h"

/*
 * What waits in the table for this endpoint: as much of it as memory holds.  Then,
 * as often as it wants to, a look at the rest; with 'slices', also for what is not
 * urgent.  True: there is more of that.
 */
extern void outbox_parked_load(OutboxEndpoint *ep);
extern bool outbox_parked_wants_look(const OutboxEndpoint *ep);
extern bool outbox_parked_look(OutboxEndpoint *ep, bool slices);

/* How much memory holds: shared by so many endpoints; kept to, after a settle. */
extern void outbox_parked_share_room(int64 nendpoints);
extern void outbox_parked_keep_room(OutboxEndpoint *ep);

/* Some of what is blocked in no lane becomes due. */
extern void outbox_parked_unblock(OutboxEndpoint *ep);

extern void outbox_parked_count_again(OutboxEndpoint *ep);

/* An event that lies ahead; it will not be sent. */
extern bool outbox_parked_is_cancelled(OutboxEndpoint *ep, int64 seq);

/* Brings deliveries back: due retries; the next followers of waiting lanes. */
extern void outbox_parked_load_retries(OutboxEndpoint *ep, const int64 *seqs, int n);
extern void outbox_parked_load_followers(OutboxEndpoint *ep);

/* In a settle: what became of deliveries; rows whose event turned out to be gone. */
extern void outbox_parked_write(OutboxEndpoint *ep);
extern void outbox_parked_write_gone(void);
extern bool outbox_parked_is_gone(int32 endpoint_id, int64 seq);
extern void outbox_parked_gone_written(void); /* it is committed */

extern void outbox_parked_forget(int32 endpoint_id, const OutboxTick *start);

#endif /* OUTBOX_PARKED_H */
