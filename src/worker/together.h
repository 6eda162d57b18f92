/*
 * together.h
 *	  Pages of the log that are read for several endpoints that are behind.
 */
#ifndef OUTBOX_TOGETHER_H
#define OUTBOX_TOGETHER_H

#include "datatype/timestamp.h"

#include "endpoint/endpoint.h"

/* How a page is read. */
typedef struct OutboxTogether
{
	OutboxTurn	turn; /* OUTBOX_TURN_READ, or OUTBOX_TURN_COUNT: it is only counted */
	TimestampTz now;
	OutboxTick *tick; /* up to which */
	int			max_rows;
	size_t		max_bytes;
	/* True if an endpoint that waits for its turn could use it now. */
	bool (*may_join)(OutboxEndpoint *ep, TimestampTz now);
	/* Is called for one that has come to the end of the tick. */
	void (*ended)(OutboxEndpoint *ep);
} OutboxTogether;

/*
 * Reads a page for the endpoint whose turn it is, and for those that wait for theirs and
 * have their place in it.  Advances their cursors.  'ended' is not called for the first.
 * Returns the number of rows examined.  Raises '*lsn' as outbox_log_read() does.
 */
extern int outbox_together_read(OutboxEndpoint *leader, const OutboxTogether *how,
								XLogRecPtr *lsn);

#endif /* OUTBOX_TOGETHER_H */
