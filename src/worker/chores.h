#ifndef OUTBOX_CHORES_H
#define OUTBOX_CHORES_H

#include "base/outbox.h"

#include "server/shmem.h"

/* Settles if that is due.  With 'final' it settles at once, and everything. */
extern void outbox_settle_step(TimestampTz now, bool final);

/*
 * The steps before reading: the work of the database, commands, scheduled events, replays.
 * False: nothing is to be read in this round.  The step between
 * reading and sending: outbox.max_backlog_size.  The steps at the end of a round:
 * settling, retention, deduplication keys.
 */
extern bool outbox_chores_first(TimestampTz now);
extern void outbox_chores_backlog(TimestampTz now);
extern void outbox_chores_last(TimestampTz now);

/* The worker is about to end: outcomes and counts are written. */
extern void outbox_chores_end(TimestampTz now);

/* Returns when one of the steps is due by itself. */
extern TimestampTz outbox_chores_next_time(void);

/*
 * Where memory is short, endpoints that may not send give up what they have read.  Their
 * windows are read again later.  Deliveries that wait in memory are parked by the next
 * settle.
 */
extern void outbox_chores_give_up(TimestampTz now);

#endif /* OUTBOX_CHORES_H */
