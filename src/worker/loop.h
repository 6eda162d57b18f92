/*
 * loop.h
 *	  What the steps of a worker's loop tell one another.
 */
#ifndef OUTBOX_LOOP_H
#define OUTBOX_LOOP_H

#include "endpoint/endpoint.h"

/* The endpoints of this worker.  Written by roster.c. */
typedef struct OutboxLoopRoster
{
	OutboxEndpoint **endpoints; /* by id */
	int				 n;
	dlist_head		 busy;		 /* those that are not idle */
	bool			 recreating; /* some are to be read anew, and wait for their
								 * requests to end */
	TimestampTz		 reload_at;	 /* settings are to be read again, then or at
								 * once */
} OutboxLoopRoster;

/* Requests.  Written by dispatch.c, and by what gives an endpoint work or slots. */
typedef struct OutboxLoopTraffic
{
	int	  in_flight;	   /* of all endpoints */
	int64 delivered;	   /* since the worker started */
	int	  unsettled;	   /* deliveries that ended since the last settle */
	bool  sending_allowed; /* else nothing is sent */
	bool  at_limit;		   /* an endpoint had due work, and
								 * outbox.worker_max_in_flight was reached */
	bool  refill_all;	   /* any endpoint may have got slots or work */
} OutboxLoopTraffic;

/* Times.  Written by chores.c. */
typedef struct OutboxLoopDue
{
	TimestampTz settle_since;	/* since then something is to be settled; 0: nothing */
	TimestampTz retry_locks_at; /* not before: a lock was not to be had */
} OutboxLoopDue;

typedef struct OutboxLoop
{
	OutboxLoopRoster  roster;
	OutboxLoopTraffic traffic;
	OutboxLoopDue	  due;
	OutboxCursor	  head;				/* how far the log has been read and counted */
	int64			  unmatched;		/* events that no endpoint subscribes to, not yet
								 * published */
	bool			  database_ours;	/* what belongs to no endpoint is done here */
	bool			  commands_pending; /* an operator may have asked for something */
	bool			  replays_changed;	/* the list of replays is to be read */
} OutboxLoop;

extern OutboxLoop outbox_loop;

#endif /* OUTBOX_LOOP_H */
