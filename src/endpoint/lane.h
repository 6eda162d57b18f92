#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "endpoint/endpoint.h"

extern void outbox_lanes_init(OutboxEndpoint *ep);
extern void outbox_lanes_free(OutboxEndpoint *ep);

/*
 * Returns the key of the lane that orders an event with this key.  NULL: no lane does.
 * _find returns the lane that has such a key, or NULL.  _get makes it if it is missing.
 * 'known' is true if memory knows the key's rows in outbox.parked.
 */
extern const char *outbox_lane_key(const OutboxEndpoint *ep, const char *key);
extern OutboxLane *outbox_lane_find(OutboxEndpoint *ep, const char *key);
extern OutboxLane *outbox_lane_get(OutboxEndpoint *ep, const char *key, bool known);

/* True if nothing blocks the lane, and outbox.parked has been read for it. */
extern bool outbox_lane_is_free(const OutboxLane *lane);

/*
 * The rows of a lane in outbox.parked.  _forget_rows: they have to be read again.
 * _answer: they were read, and 'first' is the lowest seq of the lane's followers there,
 * -1: it has none.  _parked: there are followers, none with a seq below 'first'.
 */
extern void outbox_lane_forget_rows(OutboxLane *lane);
extern void outbox_lane_answer(OutboxEndpoint *ep, OutboxLane *lane, bool retrying,
							   bool dead, int64 first);
extern void outbox_lane_parked(OutboxLane *lane, int64 first);

/*
 * All lanes of an endpoint.  _count returns their number.  _visit_waiting calls 'visit'
 * for each list of waiting deliveries, with the result of the last call.  _evict frees
 * the lanes that only rows block.  _forget_rows makes outbox.parked be read again for
 * every lane.
 */
extern int	 outbox_lanes_count(const OutboxEndpoint *ep);
extern void *outbox_lanes_visit_waiting(OutboxEndpoint *ep,
										void *(*visit)(dlist_head *waiting, void *arg),
										void *arg);
extern void	 outbox_lanes_evict(OutboxEndpoint *ep);
extern void	 outbox_lanes_forget_rows(OutboxEndpoint *ep);

/*
 * Gives a delivery its place in its lane, or makes it ready if it has no lane.  'known'
 * is true if memory knows the rows of its key in outbox.parked.
 */
extern void outbox_lane_place(OutboxEndpoint *ep, OutboxDelivery *d, bool known);

/*
 * If the lane has no live head and is not blocked, makes its next delivery the head.  May
 * free the lane, if nothing is left in it.
 */
extern void outbox_lane_advance(OutboxEndpoint *ep, OutboxLane *lane);

/*
 * _peek returns the next follower, or NULL if there is none or something of the
 * lane comes before it.  _leave takes a follower off its lane, and _return puts it
 * back where it was.
 */
extern OutboxDelivery *outbox_lane_peek(const OutboxLane *lane);
extern void outbox_lane_leave(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d);
extern void outbox_lane_return(OutboxEndpoint *ep, OutboxLane *lane, OutboxDelivery *d);

/* The lane is blocked: the next settle parks its followers. */
extern void outbox_lane_park_later(OutboxEndpoint *ep, OutboxLane *lane);

/* outbox.parked has no followers of the lane any more. */
extern void outbox_lane_no_followers(OutboxEndpoint *ep, OutboxLane *lane);

/*
 * Before a settle: moves the followers of blocked lanes, and of very long lanes, to
 * 'settling'.  Where memory is short, all of an endpoint that may not send.
 */
extern void outbox_lanes_park_followers(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_LANE_H */
