#ifndef OUTBOX_WINDOW_H
#define OUTBOX_WINDOW_H

#include "endpoint/endpoint.h"

/*
 * The first is true if the window is so full that no page is read for it before events
 * leave it, the second if an event is in it, or ready.
 */
extern bool outbox_window_has_enough(const OutboxEndpoint *ep);
extern bool outbox_window_has_something(const OutboxEndpoint *ep);

/* True if all that it has waits for a delivery of its only lane to end. */
extern bool outbox_window_is_blocked(OutboxEndpoint *ep);

/*
 * _wants_events is true if the endpoint takes events that are read from its own place on,
 * and _leads if it has so few, and memory allows, that a page is read for it.  _may_push is
 * true if memory allows one more.  _push adds an event, or returns false if the window is
 * full.  An event for an endpoint that is not attached must be new at its cursor.
 * _takes_from is true if it may be read from another tick on than that of the cursor.
 */
extern bool outbox_window_wants_events(OutboxEndpoint *ep, TimestampTz now);
extern bool outbox_window_leads(const OutboxEndpoint *ep);
extern bool outbox_window_may_push(const OutboxEndpoint *ep);
extern bool outbox_window_push(OutboxEndpoint *ep, OutboxEvent *event,
							   OutboxFilterResult filter, bool cancelled);
extern bool outbox_window_takes_from(const OutboxEndpoint *ep, const OutboxTick *read,
									 const OutboxTick *reading);

/*
 * Empties the window and detaches the endpoint, which then reads from its frontier.
 * 'head' is the head of the log.
 */
extern void outbox_window_drop(OutboxEndpoint *ep, const OutboxCursor *head);

/* Begins to count the backlog again, from the frontier on. */
extern void outbox_window_count_again(OutboxEndpoint *ep, const OutboxCursor *head);

static inline OutboxWindowEntry *
outbox_window_at(const OutboxEndpoint *ep, int i)
{
	return &ep->feed->window[(ep->feed->window_start + i) % ep->feed->window_size];
}

/*
 * The first releases all events of the window.  The second frees the memory of a
 * window that is empty.
 */
extern void outbox_window_clear(OutboxEndpoint *ep);
extern void outbox_window_free(OutboxEndpoint *ep);

/*
 * Returns the endpoint's frontier, if the head of the log is at 'head'.  The
 * frontier belongs to the endpoint.
 */
extern const OutboxCursor *outbox_window_frontier(OutboxEndpoint	 *ep,
												  const OutboxCursor *head);

/*
 * The next event of the window takes its place: in its lane, on 'ready', or as a dead
 * delivery.  Returns false if no event can do so now.  'd' is the delivery that was made
 * of the event.  NULL: the event was cancelled or is dead.
 */
extern bool outbox_window_take_next(OutboxEndpoint *ep, OutboxDelivery **d);

/*
 * The same for a delivery of an event that was not in the window.  'known': memory knows
 * the rows of its key in outbox.parked.  Returns false if it is dead.
 */
extern bool outbox_window_place(OutboxEndpoint *ep, OutboxDelivery *d,
								OutboxFilterResult filter, bool known);

#endif /* OUTBOX_WINDOW_H */
