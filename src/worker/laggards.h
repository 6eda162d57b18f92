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
 * the first has something to do.  The third returns when it will have, if nothing happens
 * before.
 */
extern bool		   outbox_laggards_read(TimestampTz now, XLogRecPtr *lsn);
extern bool		   outbox_laggards_have_work(TimestampTz now);
extern TimestampTz outbox_laggards_next_time(TimestampTz now);

#endif /* OUTBOX_LAGGARDS_H */
