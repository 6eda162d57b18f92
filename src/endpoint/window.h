/*
 * window.h
 *	  Events that were read for an endpoint, in the order of the log, and have not
 *	  taken their place yet.
 */
#ifndef OUTBOX_WINDOW_H
#define OUTBOX_WINDOW_H

#include "endpoint/endpoint.h"

/* A push that finds the window full returns false. */
extern bool outbox_window_wants_events(const OutboxEndpoint *ep, TimestampTz now);
extern bool outbox_window_may_push(const OutboxEndpoint *ep);
extern bool outbox_window_push(OutboxEndpoint *ep, OutboxEvent *event,
							   OutboxFilterResult filter, bool cancelled);

/* Empties the window.  The endpoint goes on reading from its frontier. */
extern void outbox_window_drop(OutboxEndpoint *ep, const OutboxCursor *head);

static inline OutboxWindowEntry *
outbox_window_at(const OutboxEndpoint *ep, int i)
{
	return &ep->feed.window[(ep->feed.window_start + i) % ep->feed.window_size];
}

/* What was read is forgotten; an empty window of an idle endpoint needs no memory. */
extern void outbox_window_clear(OutboxEndpoint *ep);
extern void outbox_window_free(OutboxEndpoint *ep);

/* Where the endpoint has got to, when the head of the log is at 'head'. */
extern const OutboxCursor *outbox_window_frontier(OutboxEndpoint	 *ep,
												  const OutboxCursor *head);

/*
 * The next event of the window takes its place.  Returns false if it cannot now.
 * 'd' is the delivery that was made of it, NULL if the event was cancelled.
 */
extern bool outbox_window_take_next(OutboxEndpoint *ep, OutboxDelivery **d);

#endif /* OUTBOX_WINDOW_H */
