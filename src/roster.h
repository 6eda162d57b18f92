/*
 * roster.h
 *	  All endpoints of the worker, and which of them are not idle.
 */
#ifndef OUTBOX_ROSTER_H
#define OUTBOX_ROSTER_H

#include "endpoint.h"

/* By id. */
extern OutboxEndpoint **outbox_endpoints;
extern int	outbox_nendpoints;

/* Those that are not idle. */
extern dlist_head outbox_busy;

/* Some endpoint may have got slots or work. */
extern bool outbox_fill_all;

/* Endpoints that are to be read anew wait for their requests to end. */
extern bool outbox_recreating;

/* Settings have to be read again at this time, or at once. */
extern TimestampTz outbox_reload_at;

/* 'shared_head': the head of the log came from the shared position. */
extern void outbox_roster_init(bool shared_head);
extern OutboxEndpoint *outbox_roster_find(int32 id);	/* NULL: none */
extern void outbox_roster_busy(OutboxEndpoint *ep);

/* Reads all settings.  False: a lock was not to be had. */
extern bool outbox_roster_reload(bool first);

/* After a settle: those that start over leave, and are met again. */
extern void outbox_roster_recreate(void);

#endif							/* OUTBOX_ROSTER_H */
