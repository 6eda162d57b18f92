/*
 * chores.h
 *	  What a worker does beside reading and sending.
 */
#ifndef OUTBOX_CHORES_H
#define OUTBOX_CHORES_H

#include "base/outbox.h"

#include "server/shmem.h"

extern void outbox_chores_init(OutboxDatabase *db);

/* Takes over what belongs to no endpoint, if it is to be done here. */
extern void outbox_database_step(TimestampTz now);

/* Settles what is due; 'final': all that there is. */
extern void outbox_settle_step(TimestampTz now, bool final);

/* Commands, scheduled events, replays; outbox.max_backlog_size; all the rest. */
extern void outbox_chores_first(TimestampTz now);
extern void outbox_chores_backlog(TimestampTz now);
extern void outbox_chores_last(TimestampTz now);

/* True if one of them has something to do at once. */
extern bool outbox_chores_wait(TimestampTz now);

/* When one of them is due by itself. */
extern TimestampTz outbox_chores_next_time(void);

#endif /* OUTBOX_CHORES_H */
