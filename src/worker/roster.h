#ifndef OUTBOX_ROSTER_H
#define OUTBOX_ROSTER_H

#include "nodes/pg_list.h"

#include "endpoint/endpoint.h"

extern MemoryContext outbox_roster_cxt; /* of the endpoints */

extern void outbox_roster_init(void);

/*
 * True if the tables have this endpoint, even if it is not loaded yet: workers are
 * woken a moment after the commit of a new one.  Needs a transaction.
 */
extern bool outbox_roster_expects(int32 id);

/*
 * _add adds an endpoint to the list.  _remove frees endpoints that are on it, and
 * _forget an endpoint that is not on it any more, or was not yet.
 */
extern void outbox_roster_add(OutboxEndpoint *ep);
extern void outbox_roster_remove(const List *leaving);
extern void outbox_roster_forget(OutboxEndpoint *ep);

/*
 * All endpoints that do not rest are examined once: the reason why they wait may have
 * changed.  'stuck': the ones that are held for a call that did not return, too.
 */
extern void outbox_roster_wake_all(bool stuck);

/* The endpoint is freed and loaded anew, once nothing of it is in flight. */
extern void outbox_roster_load_again(OutboxEndpoint *ep);

/*
 * For an endpoint that was dropped.  True: its requests are to end first, so that they are
 * counted.  It is to be on the list until _recreate frees it.
 */
extern bool outbox_roster_lingers(OutboxEndpoint *ep);

/* Breaks off requests of such endpoints that began before this time. */
extern void outbox_roster_cancel(TimestampTz before);

/* Makes endpoints that this worker serves no longer begin to leave. */
extern void outbox_roster_leave(void);

/*
 * After a settle: frees the endpoints that were dropped, and those that are to be loaded
 * again.  The next reload loads these, here or, when their share has been given back, in
 * another worker.
 */
extern void outbox_roster_recreate(void);

/*
 * The ids of the endpoints that were freed to be loaded again, until _loaded is called with
 * them, or for all.  _load_later adds one.
 */
extern void		   outbox_roster_load_later(int32 id);
extern const List *outbox_roster_to_load(void);
extern void		   outbox_roster_loaded(bool all, const List *ids);

#endif /* OUTBOX_ROSTER_H */
