#ifndef OUTBOX_RELOAD_H
#define OUTBOX_RELOAD_H

#include "server/shmem.h"

extern void outbox_reload_init(void);

/*
 * Reads the settings that have changed, or all.  'tidy': reads all, and searches for rows
 * that dropped endpoints may have left behind.  After an error, outbox_reload_failed() must
 * be called: the endpoints are the same as before.
 */
extern void outbox_reload(bool tidy);
extern void outbox_reload_failed(void);

/* The settings of all endpoints are to be read again, some at a time. */
extern void outbox_reload_by_and_by(void);

/*
 * Settings cannot be read at present.  Endpoints whose settings have changed read no events
 * until they can (member.put_off).  So no event is judged by old settings that follows a
 * change of them.  False, or 55P03: a lock was not free.  To be called inside a transaction.
 */
extern bool outbox_reload_put_off(void);

#endif /* OUTBOX_RELOAD_H */
