#ifndef OUTBOX_REPLAY_H
#define OUTBOX_REPLAY_H

#include "endpoint/endpoint.h"

/* Returns 0 if a replay could continue, else DT_NOEND.  Cheap. */
extern TimestampTz outbox_replays_due(void);

/* Reads a page for some of the replays, in turn. */
extern void outbox_replays_run(void *now);

#endif /* OUTBOX_REPLAY_H */
