#ifndef OUTBOX_BACKLOG_LIMIT_H
#define OUTBOX_BACKLOG_LIMIT_H

#include "endpoint/endpoint.h"
#include "server/shmem.h"

/* Returns when the next step is due.  DT_NOEND: no endpoint is to retain less. */
extern TimestampTz outbox_backlog_limit_next_time(void);

/*
 * Makes rows of the oldest events that endpoints lack which retain too much, as many as
 * one step may.  False: a lock was not free.
 */
extern bool outbox_backlog_limit_step(TimestampTz now);

/*
 * True if a replay for this endpoint is to read on although enough of it is due: a piece of
 * the log is to be emptied, and the endpoint has few rows.
 */
extern bool outbox_backlog_limit_hurries(const OutboxEndpoint *ep);

#endif /* OUTBOX_BACKLOG_LIMIT_H */
