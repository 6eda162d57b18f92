#ifndef OUTBOX_LEFTOVERS_H
#define OUTBOX_LEFTOVERS_H

#include "log/tick.h"
#include "server/shmem.h"

/*
 * A reload has found an endpoint that was dropped, or a previous secret whose time is
 * over.  _search lets the tables be searched for rows of endpoints that were dropped
 * while no worker had them.  _reloaded says that a reload is committed.
 */
extern void outbox_leftovers_dropped(int32 id);
extern void outbox_leftovers_secret(void);
extern void outbox_leftovers_search(void);
extern void outbox_leftovers_reloaded(void);

/*
 * True if an endpoint may be loaded that was moved to 'start'.  False: it has rows in
 * outbox.parked of events beyond that, which will be read again.  They are deleted, and
 * then the endpoint is to be loaded again.  To be called inside a transaction.
 */
extern bool outbox_leftovers_may_load(int32 id, int64 generation,
									  const OutboxTick *start);

/* True if the endpoint waits for that. */
extern bool outbox_leftovers_seeking(int32 id);

/*
 * Endpoints that this worker serves no longer are left to the worker that they go to.  It
 * must be called before their share is given back.
 */
extern void outbox_leftovers_leave(void);

/* Two steps that delete rows, and when they are due. */
extern void		   outbox_leftovers_run_moved(void *now);
extern TimestampTz outbox_leftovers_moved_due(void);
extern void		   outbox_leftovers_run_dropped(void *now);
extern TimestampTz outbox_leftovers_dropped_due(void);

#endif /* OUTBOX_LEFTOVERS_H */
