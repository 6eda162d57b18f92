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
 * Is there one that was not read yet?  Its bell rings a moment after others can
 * see it.
 */
extern bool outbox_roster_expects(int32 id);
extern void outbox_roster_busy(OutboxEndpoint *ep);

/*
 * Reads all settings.  False: a lock was not to be had.  'tidy': what dropped
 * endpoints may have left behind is looked for.
 */
extern bool outbox_roster_reload(bool tidy);

/* That was an error: the endpoints are those from before. */
extern void outbox_roster_reload_failed(void);

/* Endpoints that are not served here any more begin to leave. */
extern void outbox_roster_leave(void);

/*
 * After a settle: those that start over leave, and are met again, here or, when
 * their share has been given back, elsewhere.
 */
extern void outbox_roster_recreate(void);

#endif /* OUTBOX_ROSTER_H */
