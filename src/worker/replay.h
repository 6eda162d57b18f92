/*
 * replay.h
 *	  Replays: events that were delivered before are sent again.
 */
#ifndef OUTBOX_REPLAY_H
#define OUTBOX_REPLAY_H

#include "endpoint/endpoint.h"

/* True if a replay could continue.  Cheap. */
extern bool outbox_replays_have_work(void);

/* Reads a page for some of the replays, in turn. */
extern void outbox_replays_run(void);
extern void outbox_replays_failed(void); /* after an error */

#endif /* OUTBOX_REPLAY_H */
