#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "endpoint/endpoint.h"

/* 'last_shared_tick' is the number of the tick at which the head begins. */
extern void outbox_settle_init(int64 last_shared_tick);

/*
 * The endpoints that have something to store.  A settle visits the endpoints on
 * 'unsettled': they have changed since the last settle.  Endpoints on 'behind' have
 * only read on, and sent: their stored rows still hold.  If they follow the shared
 * position, they are written when it moves on.  All are written about a second later.
 */
typedef struct OutboxToSettle
{
	dlist_head unsettled;
	dlist_head behind;
	TimestampTz
		 behind_at; /* when all of them are to be written (DT_NOEND: not known yet) */
	bool more;		/* the last settle has left some on 'unsettled' for the next round */
	int	 nwritten;	/* endpoints on 'unsettled' that may go on */
} OutboxToSettle;

/*
 * The first: something has happened to the endpoint.  The second: it was settled, or had
 * nothing to settle.  The third: it has nothing to store, or is about to be freed.
 */
extern void outbox_settle_add(OutboxToSettle *all, OutboxEndpoint *ep);
extern void outbox_settle_leave(OutboxToSettle *all, OutboxEndpoint *ep);
extern void outbox_settle_remove(OutboxEndpoint *ep);

/*
 * Writes what the endpoints on the lists have to store, in one transaction: all of it
 * with 'final', and else as much as does not hold up the others ('more').  If that fails,
 * each endpoint gets a transaction of its own, and is put on hold if it fails again.
 * 'head' is how far the log has been read.  With 'final' the shared position is written
 * too, if it has moved.  False: something is left, because a lock was not free or the
 * time was over.  Call again then.
 */
extern bool outbox_settle(OutboxToSettle *to_settle, const OutboxCursor *head,
						  bool final);

/* Returns when the endpoints that have only read on are to be written, too. */
extern TimestampTz outbox_settle_behind_at(OutboxToSettle *all);

/*
 * True once after an endpoint was stored that could not be stored before.
 * Operators' commands for that endpoint were waiting for it.
 */
extern bool outbox_settle_was_released(void);

/*
 * Endpoints that may begin to follow the shared position with one settle.
 */
#define OUTBOX_SHARE_AT_ONCE 500

/* True if the shared position can be stored and may advance. */
extern bool outbox_settle_may_share(const OutboxToSettle *all);

/* True if the endpoint has something to be stored. */
extern bool outbox_settle_wants(const OutboxEndpoint *ep);

/* True if the endpoint follows the shared position, but now needs one of its own. */
extern bool outbox_settle_lags(const OutboxEndpoint *ep);

/* Returns from when on an endpoint that is idle may follow the shared position. */
extern TimestampTz outbox_settle_shares_at(const OutboxEndpoint *ep);

/*
 * True if the head has events that the stored shared position is behind, and it was
 * written more than a second ago.  An idle worker still stores its position.
 * Otherwise it would keep the log from being truncated.
 */
extern bool outbox_settle_wants_head(const OutboxCursor *head, TimestampTz now);

#endif /* OUTBOX_SETTLE_H */
