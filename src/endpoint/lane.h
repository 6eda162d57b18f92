/*
 * lane.h
 *	  The deliveries of one key, in the order of the log.
 */
#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "endpoint/endpoint.h"

extern void outbox_lanes_init(OutboxEndpoint *ep);
extern void outbox_lanes_free(OutboxEndpoint *ep);

/* The key whose lane orders an event here; NULL: it is in no lane. */
extern const char *outbox_lane_key(const OutboxEndpoint *ep, const char *key);
extern OutboxLane *outbox_lane_find(OutboxEndpoint *ep, const char *key);
extern OutboxLane *outbox_lane_get(OutboxEndpoint *ep, const char *key, bool known);

/* Nothing blocks it, and the table has been asked. */
extern bool outbox_lane_is_free(const OutboxLane *lane);

/*
 * What outbox.parked has of a lane: it is to be asked again; the answer, with the
 * lowest seq of its followers, -1: none; there are followers from this seq on.
 */
extern void outbox_lane_forget_rows(OutboxLane *lane);
extern void outbox_lane_answer(OutboxEndpoint *ep, OutboxLane *lane, bool retrying,
							   bool dead, int64 first);
extern void outbox_lane_parked(OutboxLane *lane, int64 first);

/* All lanes: how many, what waits in them, too many, not all of them known. */
extern int	  outbox_lanes_count(const OutboxEndpoint *ep);
extern int64 *outbox_lanes_visit_waiting(OutboxEndpoint *ep,
										 int64 *(*visit)(dlist_head *waiting, int64 *arg),
										 int64 *arg);
extern void	  outbox_lanes_evict(OutboxEndpoint *ep);
extern void	  outbox_lanes_forget_rows(OutboxEndpoint *ep);

/*
 * A delivery takes its place in its lane, or is ready at once.  'known': what
 * outbox.parked has of its key is in memory.
 */
extern void outbox_lane_place(OutboxEndpoint *ep, OutboxDelivery *d, bool known);

/* The delivery waits for its turn. */
extern void outbox_lane_wait(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d);

/* If the lane has no live head and is not blocked: who is next?  May free it. */
extern void outbox_lane_advance(OutboxEndpoint *ep, OutboxLane *lane);

/*
 * The follower that may go along with its live head, if there is one; taking it
 * off its lane; and putting it back where it was.
 */
extern OutboxDelivery *outbox_lane_peek(const OutboxLane *lane);
extern void			   outbox_lane_pop(OutboxEndpoint *ep, OutboxLane *lane);
extern void outbox_lane_return(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d);

/* Its head is parked: what follows will be, with the next settle. */
extern void outbox_lane_park_later(OutboxEndpoint *ep, OutboxLane *lane);

/* The table has no followers of it any more. */
extern void outbox_lane_no_followers(OutboxEndpoint *ep, OutboxLane *lane);

/* Before a settle: followers of blocked or overlong lanes join 'settling'. */
extern void outbox_lanes_park_followers(OutboxEndpoint *ep);

#endif /* OUTBOX_LANE_H */
