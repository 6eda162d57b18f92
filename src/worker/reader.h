/*
 * reader.h
 *	  Who reads what of the log: the head, which idle and fast endpoints share,
 *	  and those that lag behind.
 */
#ifndef OUTBOX_READER_H
#define OUTBOX_READER_H

#include "endpoint/endpoint.h"

/* The set of endpoints changed: the next laggard to be read for is any of them. */
extern void outbox_reader_forget_turn(void);

/* Has somebody who is here read all that the head of the log has? */
extern bool outbox_reader_at_head(const OutboxCursor *c);

/* Called for each endpoint that got something to do. */
typedef void (*OutboxGotWork)(OutboxEndpoint *ep);
extern void outbox_reader_init(OutboxGotWork got_work);

/*
 * One step, inside a read transaction: with 'head' the head, if 'news' or if it is
 * in the middle of a tick; laggards; counting; what comes back from outbox.parked.
 * Bounded, so that requests go on.  True: there is more to read at once.
 */
extern bool outbox_reader_step(dlist_head *busy, bool head, bool news, TimestampTz now,
							   XLogRecPtr *lsn);

/*
 * Reads a page for an endpoint that is not attached, of which nothing is to be
 * sent: all of it is dead.  Returns how many.  Needs a transaction.
 */
extern int outbox_reader_overflow(OutboxEndpoint *ep);

/* Lanes whose next followers are in outbox.parked.  Needs a transaction. */
extern bool outbox_reader_wants_followers(dlist_head *busy);
extern void outbox_reader_bring_followers(dlist_head *busy);
extern void outbox_reader_followers_ended(dlist_head *busy, bool undone);

/* Is there anything for a step to do?  Cheap; asked before a transaction. */
extern bool outbox_reader_has_work(dlist_head *busy, bool head, TimestampTz now);

#endif /* OUTBOX_READER_H */
