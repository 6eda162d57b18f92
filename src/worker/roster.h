/*
 * roster.h
 *	  All endpoints of the worker, and which of them are not idle.
 */
#ifndef OUTBOX_ROSTER_H
#define OUTBOX_ROSTER_H

#include "endpoint/endpoint.h"

extern void			   outbox_roster_init(void);
extern OutboxEndpoint *outbox_roster_find(int32 id); /* NULL: none */

/*
 * True if the tables have this endpoint, even if it is not loaded yet: workers are
 * woken a moment after the commit of a new one.  Needs a transaction.
 */
extern bool outbox_roster_expects(int32 id);

/* Adds the endpoint to the list of those that are not idle. */
extern void outbox_roster_busy(OutboxEndpoint *ep);

/*
 * Reads all settings.  'tidy': true to search for what dropped endpoints may have
 * left behind.  False: a lock was not free.  After an error,
 * outbox_roster_reload_failed() must be called.
 */
extern bool outbox_roster_reload(bool tidy);

/* The reload threw an error: the endpoints are those from before. */
extern void outbox_roster_reload_failed(void);

/* Makes endpoints that this worker serves no longer begin to leave. */
extern void outbox_roster_leave(void);

/*
 * After a settle: frees the endpoints that are to be loaded again.  The next reload
 * does that, here or, when their share has been given back, in another worker.
 */
extern void outbox_roster_recreate(void);

#endif /* OUTBOX_ROSTER_H */
