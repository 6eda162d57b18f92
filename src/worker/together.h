/*
 * together.h
 *	  Pages of the log that are read for several endpoints that are behind.
 */
#ifndef OUTBOX_TOGETHER_H
#define OUTBOX_TOGETHER_H

#include "datatype/timestamp.h"

#include "endpoint/endpoint.h"

/* A page without a row costs as much as this many rows. */
#define OUTBOX_PAGE_COST 32

/* How pages are read. */
typedef struct OutboxTogether
{
	OutboxTurn		turn; /* OUTBOX_TURN_READ, or OUTBOX_TURN_COUNT: it is only counted */
	OutboxEndpoint *first; /* whose turn it is: it can read */
	TimestampTz		now;
	int				max_rows; /* of a page */
	/* True if an endpoint that waits for its turn could use it now. */
	bool (*may_join)(OutboxEndpoint *ep, TimestampTz now);
	/* Is called for each that has come to the end of a tick, and for one that has not. */
	void (*ended)(OutboxEndpoint *ep);
} OutboxTogether;

/*
 * Reads pages for endpoints that wait for their turn: from the place of one of them on, for
 * all that have theirs in it.  Advances their cursors.  Returns the cost in rows.  Raises
 * '*lsn' as outbox_log_read() does.
 */
extern int outbox_together_read(const OutboxTogether *how, XLogRecPtr *lsn);

#endif /* OUTBOX_TOGETHER_H */
