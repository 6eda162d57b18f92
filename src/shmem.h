/*
 * shmem.h
 *	  The shared state: one slot per served database, and the statistics of
 *	  endpoints.
 *
 * Everything here is rebuilt after a restart; what must survive is in tables.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "outbox.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/*
 * Databases with the extension that one server keeps track of.  A database
 * beyond it is not served, and outbox.status says so.
 */
#define OUTBOX_MAX_DATABASES 256

/* What the worker of a database does; outbox.status shows it in words. */
typedef enum OutboxWorkerState
{
	OUTBOX_WORKER_NONE,			/* no process */
	OUTBOX_WORKER_STARTING,		/* asked for, or getting ready */
	OUTBOX_WORKER_RUNNING,
	OUTBOX_WORKER_DISABLED,		/* outbox.enabled is off */
	OUTBOX_WORKER_HELD,			/* this log has another origin, or another instance */
	OUTBOX_WORKER_VERSION_MISMATCH	/* the SQL objects are of a version that
									 * this library cannot serve */
} OutboxWorkerState;

/*
 * One database.  A slot is claimed (under outbox_shared->lock, exclusive) the
 * first time anyone needs it and keeps its database until that is dropped:
 * backends cache the pointer, and check the oid at every use.
 */
typedef struct OutboxDatabase
{
	Oid			dboid;			/* InvalidOid: free */

	/*
	 * Rung at each commit that emitted, before the latch is set.  The worker
	 * compares it with the value it saw before its last snapshot: the latch
	 * alone can be reset by whoever waits on it inside a transaction.
	 */
	pg_atomic_uint64 emitted;

	/* Rung at each commit that changed endpoints or asked for something. */
	pg_atomic_uint64 changed;

	/*
	 * TimestampTz: when an event of outbox.scheduled is due next, as far as is
	 * known.  Lowered at each commit that scheduled something earlier.
	 */
	pg_atomic_uint64 due_at;

	/* The log piece that new events go to. Which one is never a matter of
	 * correctness, only of when it can be dropped. */
	pg_atomic_uint32 piece;

	/* The worker.  Written under outbox_shared->lock. */
	OutboxWorkerState state;
	pid_t		pid;			/* 0: none */
	Latch	   *latch;			/* NULL: none */
	uint64		generation;		/* of the worker: a late exit of an old one
								 * must not clear the new one's slot */
	TimestampTz started_at;
	int64		restarts;		/* after abnormal exits, since server start */
	char		reason[256];	/* why the state is not 'running', in words */

	/* Published by the worker, read without lock. */
	pg_atomic_uint64 last_loop_at;	/* TimestampTz */
	pg_atomic_uint64 endpoints;
	pg_atomic_uint64 resting;	/* it looks at 'emitted' by itself in a moment */
	pg_atomic_uint64 in_flight;
	pg_atomic_uint64 delivered; /* since this worker started */
	pg_atomic_uint64 unmatched; /* events that no endpoint subscribes to, since
								 * this worker started */

	/* The launcher's own. */
	bool		has_extension;	/* a worker has seen it there */
	bool		probe;			/* look (again) whether it has */
	TimestampTz next_start_at;	/* pacing after failures */
	int			failures;		/* in a row */

	/* What the last worker left behind for the launcher. */
	bool		exited;			/* it is gone, and that is not yet noted */
	bool		exited_cleanly; /* with exit code 0, or because it was asked to */
	bool		found_none;		/* it saw that the extension is not there */

	/*
	 * Backends that want the database for themselves (DROP DATABASE, CREATE
	 * DATABASE … TEMPLATE and the like).  No worker runs while there is one.
	 */
	int			holds;

	/*
	 * The highest endpoint id that has statistics, so that they can be
	 * forgotten with the database.
	 */
	pg_atomic_uint32 highest_endpoint;
} OutboxDatabase;

typedef struct OutboxShared
{
	LWLock	   *lock;			/* the slots */
	LWLock	   *tick_lock;		/* ticks are numbered in the order of their
								 * snapshots */
	pid_t		launcher_pid;
	Latch	   *launcher_latch;
	bool		rescan;			/* the set of databases has changed */
	bool		reprobe;		/* somebody made the extension and found no
								 * slot: look into every database again */
	OutboxDatabase databases[OUTBOX_MAX_DATABASES];
} OutboxShared;

/* NULL when the library was not preloaded. */
extern OutboxShared *outbox_shared;

extern void outbox_shmem_init(void);	/* from _PG_init: hooks and requests */

/*
 * The slot of a database; claims a free one when 'create'.  NULL when there is
 * none, or no shared memory.  The result for MyDatabaseId is cached.
 */
extern OutboxDatabase *outbox_database_slot(Oid dboid, bool create);

/* Lowers db->due_at.  False: it was no later. */
extern bool outbox_lower_due_at(OutboxDatabase *db, TimestampTz due);

/*
 * Asks the launcher to look whether the database has the extension, whatever
 * it knew or however often a worker failed there.
 */
extern void outbox_launcher_probe(Oid dboid);

/* Asks the launcher to look at pg_database again. */
extern void outbox_launcher_rescan(void);

/* Wakes the launcher: something in a slot is of interest to it. */
extern void outbox_launcher_ring(void);

/*
 * Statistics of one endpoint, for outbox.stats: written by the worker that
 * owns it, read by anybody.  Kept in a dshash, so that any number of endpoints
 * fits; counters that must survive a restart are in the position rows too.
 */
typedef struct OutboxStatsKey
{
	Oid			dboid;
	int32		endpoint_id;
} OutboxStatsKey;

typedef enum OutboxEndpointState
{
	OUTBOX_ENDPOINT_ACTIVE,
	OUTBOX_ENDPOINT_PAUSED,
	OUTBOX_ENDPOINT_BACKING_OFF,
	OUTBOX_ENDPOINT_DISABLED
} OutboxEndpointState;

typedef struct OutboxStats
{
	OutboxStatsKey key;
	OutboxEndpointState state;
	TimestampTz state_since;
	int64		pending;		/* matched, not yet handed to a request */
	bool		pending_exact;
	int64		processing;		/* deliveries in flight */
	int64		retrying;
	int64		blocked;
	int64		dead;
	int64		delivered;		/* since the endpoint's creation */
	int64		failed_attempts;
	TimestampTz oldest_pending_at;	/* 0: nothing pending */
	TimestampTz next_attempt_at;	/* 0: none is scheduled */
	TimestampTz last_success_at;	/* 0: never since the worker started */
	double		rate_per_s;		/* deliveries, over the last minute */
	double		latency_p50_ms; /* emit to 2xx, first attempts, last 5 min; -1:
								 * no data */
	double		latency_p95_ms;
	double		latency_p99_ms;
	char		reason[128];
	char		last_error[256];
} OutboxStats;

/*
 * Publishing never fails: without memory the statistics stay as they were.  The
 * caller must hold no LWLock.
 */
extern void outbox_stats_publish(const OutboxStats *stats);
extern bool outbox_stats_fetch(Oid dboid, int32 endpoint_id, OutboxStats *stats);
extern void outbox_stats_forget(Oid dboid, int32 endpoint_id);

/* Forgets those of the endpoints 1 to 'highest'. */
extern void outbox_stats_forget_all(Oid dboid, uint32 highest);

#endif							/* OUTBOX_SHMEM_H */
