/*
 * backlog_limit.h
 *	  How much of the log an endpoint may retain.
 */
#ifndef OUTBOX_BACKLOG_LIMIT_H
#define OUTBOX_BACKLOG_LIMIT_H

#include "base/outbox.h"

/* Returns when the next step is due.  DT_NOEND: there is no limit. */
extern TimestampTz outbox_backlog_limit_next_time(void);

/*
 * Makes dead letters of the oldest events of endpoints that retain too much, as
 * many as one step may.  False: a lock was not free.
 */
extern bool outbox_backlog_limit_step(TimestampTz now);

#endif /* OUTBOX_BACKLOG_LIMIT_H */
