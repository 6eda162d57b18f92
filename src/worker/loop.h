#ifndef OUTBOX_LOOP_H
#define OUTBOX_LOOP_H

#include "endpoint/endpoint.h"
#include "store/settle.h"

/*
 * The endpoints of this worker.  Written by busy.c, changes.c, reload.c, roster.c and
 * worker.c.
 */
typedef struct OutboxLoopRoster
{
	OutboxEndpoint **endpoints; /* by id */
	int				 n;
	int				 max;  /* room in 'endpoints' */
	dlist_head		 busy; /* endpoints that each round examines (busy.c) */
	dlist_head		 open; /* endpoints with something to settle or to publish */
	int				 nopen;
	bool			 recreating; /* true if some are to be loaded again and wait for their
								  * requests to end */
	int				 to_come;	 /* endpoints that the next reloads read */
	TimestampTz		 reload_at;	 /* when settings are to be read again (0: at once) */
} OutboxLoopRoster;

/* The worker's requests. */
typedef struct OutboxLoopTraffic
{
	int64 delivered;	   /* since the worker started */
	int	  unsent;		   /* deliveries that get rows with the next settle and were not
							* sent (backlog_limit.c) */
	bool  sending_allowed; /* true if requests may be sent */
	bool  all_durable;	   /* true if all that was read may be sent: its WAL is durable */
	bool  refill_all;	   /* true if an endpoint may have got slots or work */
} OutboxLoopTraffic;

/* Times.  Written by chores.c, judge.c, loop.c, publish.c and worker.c. */
typedef struct OutboxLoopDue
{
	TimestampTz settle_at;		/* of what waits to be settled (0: nothing does) */
	int64		settle_took;	/* µs of settling since then */
	TimestampTz settled_at;		/* when the last settle ended */
	TimestampTz retry_locks_at; /* steps that need a lock which was not free are not tried
								 * before */
	TimestampTz
		publish_at;		  /* of endpoints that the last round left out (DT_NOEND: none) */
	TimestampTz judge_at; /* outbox_judge_later() may have become false for an endpoint
							 * of which it was true (DT_NOEND: there is none) */
} OutboxLoopDue;

typedef struct OutboxLoop
{
	OutboxLoopRoster  roster;
	OutboxLoopTraffic traffic;
	OutboxLoopDue	  due;
	OutboxToSettle	  to_settle;
	int				  turns[OUTBOX_TURNS]; /* endpoints that wait in turn (busy.c) */
	OutboxCursor	  head;				   /* how far the log has been read and counted */
	uint64			  page;		 /* the last one that was read for several endpoints */
	int64			  unmatched; /* events that no endpoint subscribes to, not yet
										 * published */
	bool			  database_ours;	/* true if this worker does the work that belongs
										 * to no endpoint */
	pg_atomic_uint64 *changed;			/* counts changes of settings */
	uint64			  seen_changed;		/* its value before settings were last read */
	uint64			  reloads;			/* how often settings were read to the end */
	bool			  commands_pending; /* true if there may be commands of operators */
	bool			  replays_changed;	/* true if the list of replays is to be read */
	int64			  forgotten; /* the newest call of outbox.forget() whose events are
										 * in no endpoint's memory once none is recreated */
} OutboxLoop;

extern OutboxLoop outbox_loop;

/*
 * The worker's endpoint with this id (NULL: none), and its place in the list, or the place
 * where it would be.
 */
extern OutboxEndpoint *outbox_loop_find(int32 id);
extern int			   outbox_loop_place_of(int32 id);

/*
 * Something waits to be settled.  It waits for outbox.settle_interval.  Without rows of
 * outbox.parked it waits for longer where the last settle took long, so that settling takes
 * a small part of the time.
 */
extern void outbox_loop_want_settle(TimestampTz now, bool has_rows);

/* True if settings have changed since they were read. */
extern bool outbox_loop_reload_is_due(void);

#endif /* OUTBOX_LOOP_H */
