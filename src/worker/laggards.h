/*
 * laggards.h
 *	  Reads the log for endpoints that are behind its head.
 */
#ifndef OUTBOX_LAGGARDS_H
#define OUTBOX_LAGGARDS_H

#include "endpoint/endpoint.h"

/*
 * Puts the endpoint on the lists of the turns that it waits for to be read for or
 * counted.
 */
extern void outbox_laggards_take_turns(OutboxEndpoint *ep, TimestampTz now);

/*
 * Reads a few pages for endpoints that are catching up, in turn.  Then counts backlogs in
 * small steps, in turn.  A backlog is unknown after a restart, and after a change of topics.
 * Raises '*lsn' as outbox_log_read() does.  True: there may be more.  The second is true if
 * the first has something to do.
 */
extern bool outbox_laggards_read(TimestampTz now, XLogRecPtr *lsn);
extern bool outbox_laggards_have_work(TimestampTz now);

/*
 * Where memory is short, endpoints that may not send give up what they have read.  Their
 * windows are read again later.  Deliveries that wait in memory are parked by the next
 * settle.
 */
extern void outbox_laggards_give_up(TimestampTz now);

#endif /* OUTBOX_LAGGARDS_H */
