/*
 * parked.h
 *	  Deliveries that have a row in outbox.parked.
 *
 * All functions here run inside a transaction of transaction.h, except _share_room,
 * _keep_room, _wants_look, _count_again, _is_gone, _add_gone and _gone_written.
 */
#ifndef OUTBOX_PARKED_H
#define OUTBOX_PARKED_H

#include "endpoint/endpoint.h"

/*
 * The rows of outbox.parked for an endpoint.  _load reads as many as memory may hold,
 * when the endpoint is loaded.  _look reads rows that memory lacks now.  With 'slices'
 * it also reads a slice of the rows that are not urgent, and returns true if there are
 * more.  _wants_look is true if a call would have something to do.
 */
extern void outbox_parked_load(OutboxEndpoint *ep);
extern bool outbox_parked_wants_look(const OutboxEndpoint *ep);
extern bool outbox_parked_look(OutboxEndpoint *ep, bool slices);

/*
 * How many rows memory may hold for each endpoint: _share_room sets it for
 * 'nendpoints' endpoints, _keep_room enforces it for one after a settle.
 */
extern void outbox_parked_share_room(int64 nendpoints);
extern void outbox_parked_keep_room(OutboxEndpoint *ep);

/* Makes some of the rows due that say 'blocked' and are in no lane. */
extern void outbox_parked_unblock(OutboxEndpoint *ep);

/* Begins to count the endpoint's rows again. */
extern void outbox_parked_count_again(OutboxEndpoint *ep);

/*
 * True if this event, which lies beyond the frontier, was cancelled for the
 * endpoint.
 */
extern bool outbox_parked_is_cancelled(OutboxEndpoint *ep, int64 seq);

/*
 * Load deliveries from their rows: due retries, and the next followers of the lanes
 * on queue.loading, of one lane at least, and of further ones until then.
 */
extern void outbox_parked_load_retries(OutboxEndpoint *ep, const int64 *seqs, int n);
extern void outbox_parked_load_followers(OutboxEndpoint *ep, TimestampTz until);

/*
 * In a settle, _write changes the rows of deliveries on 'settling' of these endpoints, and
 * _write_gone rows whose event is gone.  _is_gone is true for such a row that is not written yet.
 */
extern void outbox_parked_write(const List *endpoints);
extern void outbox_parked_write_gone(void);
extern bool outbox_parked_is_gone(int32 endpoint_id, int64 seq);
extern void outbox_parked_gone_written(void); /* when that is committed */

/*
 * Appends the seqs of the endpoint's rows that _is_gone is true for to '*n' other ones, which
 * were palloc'd, and returns all of them.
 */
extern int64 *outbox_parked_add_gone(int32 endpoint_id, int64 *seqs, int *n);

/* Cancels a row because its event is forgotten, and removes the event's data from it. */
extern void outbox_parked_empty(int32 endpoint_id, int64 seq);

#endif /* OUTBOX_PARKED_H */
