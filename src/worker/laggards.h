/*
 * laggards.h
 *	  Reads the log for endpoints that are behind its head.
 */
#ifndef OUTBOX_LAGGARDS_H
#define OUTBOX_LAGGARDS_H

#include "endpoint/endpoint.h"

/*
 * The first reads a few pages for endpoints that are catching up, in turn.  The second
 * counts backlogs in small steps, in turn.  A backlog is unknown after a restart, and
 * after a change of topics.  True: there may be more.
 */
extern bool outbox_laggards_read(TimestampTz now, XLogRecPtr *lsn);
extern bool outbox_laggards_count(TimestampTz now);

/* True if one of the two has something to do. */
extern bool outbox_laggards_have_work(TimestampTz now);

/*
 * Where memory is short, endpoints that may not send give up what they have read.  Their
 * windows are read again later.  What waits in memory is parked by the next settle.
 */
extern void outbox_laggards_give_up(TimestampTz now);

/*
 * Reads a page for an endpoint that is not attached, for outbox_endpoint_overflow().
 * Returns how many events it was called with.  Needs a transaction.
 */
extern int outbox_laggards_overflow(OutboxEndpoint *ep);

#endif /* OUTBOX_LAGGARDS_H */
