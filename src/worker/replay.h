/*
 * replay.h
 *	  Sends events again that were delivered before.
 */
#ifndef OUTBOX_REPLAY_H
#define OUTBOX_REPLAY_H

#include "endpoint/endpoint.h"

/* Is there a replay that could go on?  Cheap. */
extern bool outbox_replays_have_work(void);

/* One page of each.  False: a lock was not to be had. */
extern bool outbox_replays_run(void);
extern void outbox_replays_failed(void); /* that was an error */

#endif /* OUTBOX_REPLAY_H */
