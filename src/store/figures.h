#ifndef OUTBOX_FIGURES_H
#define OUTBOX_FIGURES_H

#include "endpoint/tally.h"

/* When outbox_figures_write() is to be called next (DT_NOEND: nothing is to be written). */
extern TimestampTz outbox_figures_due(void);

/*
 * Looks at the whole database at the end of each bucket: the age of the oldest event that
 * waits, and the memory of its workers.  Nothing is noted where nothing was done and nothing
 * waits.
 */
extern TimestampTz outbox_figures_look_due(void);
extern void		   outbox_figures_look(void *now);

/*
 * Writes the figures of buckets that have ended, some of them at a time, in a transaction of
 * its own.  An OutboxStepBody: 'now' points to the time of the round.
 */
extern void outbox_figures_write(void *now);

#endif /* OUTBOX_FIGURES_H */
