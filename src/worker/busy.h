#ifndef OUTBOX_BUSY_H
#define OUTBOX_BUSY_H

#include "worker/loop.h"

/* Returns the busy endpoint behind this one, or the first (NULL).  NULL: there is none. */
static inline OutboxEndpoint *
outbox_busy_next(const OutboxEndpoint *ep)
{
	const dlist_node *end = &outbox_loop.roster.busy.head;
	dlist_node		 *node = ep ? ep->lists->busy_node.next : end->next;

	return node == end ? NULL : outbox_listed(busy_node, node);
}

/*
 * Something has happened to the endpoint, or is to be done for it.  It is examined in
 * this round and in the next one, settled, and published.
 */
extern void outbox_busy_add(OutboxEndpoint *ep);

/* Nothing has happened to it that views show, but the next settle visits it. */
extern void outbox_busy_settle(OutboxEndpoint *ep);

/*
 * The first: the rounds leave the endpoint out until it is added again, or until 'until'.
 * DT_NOEND: nothing happens by itself.  The second: the endpoint has nothing to settle
 * or to publish.
 */
extern void outbox_busy_wait(OutboxEndpoint *ep, TimestampTz until);
extern void outbox_busy_close(OutboxEndpoint *ep);

/*
 * The endpoint was just loaded.  If it rests, it has yet to follow the shared position.
 * _some_share is true if a settle is due that lets such endpoints, or others.
 * _wake_loaded adds some of them, and returns how many.
 */
extern void outbox_busy_note_loaded(const OutboxEndpoint *ep);
extern bool outbox_busy_some_share(void);
extern int	outbox_busy_wake_loaded(void);

/* Returns one of the open endpoints, each in turn.  There must be one. */
extern OutboxEndpoint *outbox_busy_next_open(void);

/* The endpoint is about to be freed. */
extern void outbox_busy_forget(OutboxEndpoint *ep);

/* Adds the endpoints whose time has come. */
extern void outbox_busy_wake(TimestampTz now);

/* Returns when the next one is to be added.  DT_NOEND: none waits for a time. */
extern TimestampTz outbox_busy_next_time(void);

/*
 * Adds the endpoints that may go on because the last settle has stored something of them,
 * and takes them off its list.
 */
extern void outbox_busy_add_settled(void);

/*
 * The endpoint waits for its turn, or no longer does.  It stays where it is if it waits
 * already.  The third function returns the endpoint that has waited longest, the fourth
 * the endpoint behind it.  NULL: there is none.  _last lets all others go before it if it
 * waits.  _again: the thing is there for which it waits, or all that are on this list, so it
 * waits for a page.
 */
extern void			   outbox_turn_add(OutboxTurn turn, OutboxEndpoint *ep);
extern void			   outbox_turn_remove(OutboxTurn turn, OutboxEndpoint *ep);
extern OutboxEndpoint *outbox_turn_first(OutboxTurn turn);
extern OutboxEndpoint *outbox_turn_next(OutboxTurn turn, OutboxEndpoint *ep);
extern void			   outbox_turn_last(OutboxTurn turn, OutboxEndpoint *ep);
extern void			   outbox_turn_again(OutboxEndpoint *ep);
extern void			   outbox_turn_all_again(OutboxTurn turn);

#endif /* OUTBOX_BUSY_H */
