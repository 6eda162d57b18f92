/*
 * shmem.h
 *	  The shared state: one slot per served database with its workers, and the
 *	  statistics of endpoints.
 *
 * Everything here is rebuilt after a restart; what must survive is in tables.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "base/outbox.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/*
 * Databases with the extension that one server keeps track of.  A database
 * beyond it is not served, and outbox.status says so.
 */
#define OUTBOX_MAX_DATABASES 256

/* Workers that one database can have. */
#define OUTBOX_MAX_WORKERS 16

/*
 * What the workers of a database divide among themselves: the work that belongs
 * to the database as such, and its endpoints, by their ids (shares.h).
 */
#define OUTBOX_SHARES 256

/* What a worker does; outbox.status and outbox.workers show it in words. */
typedef enum OutboxWorkerState
{
	OUTBOX_WORKER_NONE,		/* no process */
	OUTBOX_WORKER_STARTING, /* asked for, or getting ready */
	OUTBOX_WORKER_RUNNING,
	OUTBOX_WORKER_DISABLED,		   /* outbox.enabled is off */
	OUTBOX_WORKER_HELD,			   /* this log has another origin, or another instance */
	OUTBOX_WORKER_VERSION_MISMATCH /* the SQL objects are of a version that
									 * this library cannot serve */
} OutboxWorkerState;

/* Why a worker that should be there is not, as the launcher knows it. */
typedef enum OutboxAbsence
{
	OUTBOX_ABSENCE_NONE,	/* nothing to say */
	OUTBOX_ABSENCE_FAILED,	/* it ended with an error, and is started again
								 * at next_start_at */
	OUTBOX_ABSENCE_NO_ROOM, /* PostgreSQL has no process for it */
	OUTBOX_ABSENCE_WANTED	/* somebody wants the database for himself */
} OutboxAbsence;

/* One worker of a database.  Written under outbox_shared->lock. */
typedef struct OutboxWorker
{
	OutboxWorkerState state;
	pid_t			  pid;		  /* 0: none */
	Latch			 *latch;	  /* NULL: none */
	uint64			  generation; /* a late exit of an old process must not clear
								 * the new one's slot */
	TimestampTz		  started_at;
	int64			  restarts; /* after abnormal exits, since server start */
	bool			  serves;	/* takes shares */
	bool			  retiring; /* gives back its shares, and then ends */

	/* Published by the worker, read without lock. */
	pg_atomic_uint64 last_loop_at; /* TimestampTz */
	pg_atomic_uint64 endpoints;
	pg_atomic_uint64 resting; /* it looks at 'emitted' by itself in a moment */
	pg_atomic_uint64 in_flight;
	pg_atomic_uint64 memory;		 /* outbox_memory_used */
	pg_atomic_uint64 delivered;		 /* since this worker started */
	bool			 waits_for_lock; /* while it starts; for the views */

	/* The launcher's own. */
	TimestampTz	  next_start_at; /* pacing after failures */
	int			  failures;		 /* in a row */
	int			  delay;		 /* seconds, after the last of them */
	OutboxAbsence absence;

	/* What the last process left behind for the launcher. */
	bool exited;		 /* it is gone, and that is not yet noted */
	bool exited_cleanly; /* with exit code 0, or because it was asked to */
	bool found_none;	 /* it saw that the extension is not there */
} OutboxWorker;

/*
 * One database.  A slot is claimed (under outbox_shared->lock, exclusive) the
 * first time anyone needs it and keeps its database until that is dropped:
 * backends cache the pointer, and check the oid at every use.
 */
typedef struct OutboxDatabase
{
	Oid dboid; /* InvalidOid: free */

	/*
	 * Rung at each commit that emitted, before the latches are set.  A worker
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

	/*
	 * The tables that new events, attempts and positions go to.  Which one is
	 * never a matter of correctness, only of when it can be dropped.
	 */
	pg_atomic_uint32 piece;
	pg_atomic_uint32 attempts_piece;
	pg_atomic_uint32 positions_piece;
	pg_atomic_uint32 position_rows; /* about how many that one has */

	/*
	 * While events of the piece after 'piece' are copied: a transaction that parks
	 * a delivery with a number up to this copies the event, too.  0: none are
	 * copied.  Written under a lock that excludes such transactions.
	 */
	pg_atomic_uint64 keep_upto;

	/*
	 * The highest numbers given out: of ticks, in the order of their snapshots
	 * (tick_lock), of positions, and of positions that idle endpoints share.
	 * Each worker raises them to what the tables hold when it starts.
	 */
	pg_atomic_uint64 last_tick;
	pg_atomic_uint64 last_position;
	pg_atomic_uint64 last_shared;

	pg_atomic_uint64 unmatched; /* events that no endpoint subscribes to, since
								 * the database has had a worker */

	char reason[256]; /* why no worker runs, in a worker's words */

	/* The launcher's own. */
	bool has_extension; /* a worker has seen it there */
	bool probe;			/* look (again) whether it has */

	/*
	 * Backends that want the database for themselves (DROP DATABASE, CREATE
	 * DATABASE … TEMPLATE and the like).  No worker runs while there is one.
	 */
	int holds;

	/*
	 * The highest endpoint id that has statistics, so that they can be
	 * forgotten with the database.
	 */
	pg_atomic_uint32 highest_endpoint;

	/* The workers; beyond nworkers there never was one. */
	int			 nworkers;
	OutboxWorker workers[OUTBOX_MAX_WORKERS];

	/*
	 * Who should have each share, and who has it: a worker's index + 1, or 0.
	 * Written under outbox_shared->lock, by the rules of shares.h.
	 */
	pg_atomic_uint64 shares_changed;
	uint8			 wanted[OUTBOX_SHARES];
	uint8			 owner[OUTBOX_SHARES];
	uint16			 weight[OUTBOX_SHARES]; /* endpoints in it, as last counted */
} OutboxDatabase;

/* The steps of a worker (step.h); the names are in step.c. */
typedef enum OutboxStep
{
	OUTBOX_STEP_SCHEDULE,		 /* events that are due move into the log */
	OUTBOX_STEP_READ,			 /* the log, and retries that are due */
	OUTBOX_STEP_SETTLE,			 /* outcomes are stored */
	OUTBOX_STEP_FOLLOWERS,		 /* parked followers of a key are read */
	OUTBOX_STEP_RETENTION,		 /* a piece of the log is emptied */
	OUTBOX_STEP_FORGET_ATTEMPTS, /* the same of outbox.attempts */
	OUTBOX_STEP_TIDY,			 /* events that were kept aside are removed */
	OUTBOX_STEP_DEDUP,			 /* old deduplication keys are forgotten */
	OUTBOX_STEP_REPLAY,
	OUTBOX_STEP_COMMAND,   /* what an operator asked for */
	OUTBOX_STEP_BACKLOG,   /* outbox.max_backlog_size */
	OUTBOX_STEP_NOTICE,	   /* events about outbox itself */
	OUTBOX_STEP_ATTEMPTS,  /* rows of outbox.attempts are written */
	OUTBOX_STEP_POSITIONS, /* positions change tables */
	OUTBOX_STEP_RELOAD,	   /* endpoints are read */
	OUTBOX_STEP_DATABASE,  /* the work of the database is taken over */
	OUTBOX_STEPS
} OutboxStep;

#define OUTBOX_MAX_HOLDS 512
#define OUTBOX_HOLD_MESSAGE 200

/* A step that failed, as outbox.held_steps shows it. */
typedef struct OutboxHold
{
	Oid			dboid;	/* InvalidOid: free */
	int32		worker; /* its index */
	OutboxStep	step;
	int32		endpoint_id; /* 0: the whole step */
	bool		locked;		 /* another transaction has a lock */
	int			sqlerrcode;
	int			failures; /* in a row */
	TimestampTz since;
	TimestampTz next_try_at;
	char		error[OUTBOX_HOLD_MESSAGE];
} OutboxHold;

typedef struct OutboxShared
{
	LWLock		  *lock;		  /* the slots */
	LWLock		  *tick_lock;	  /* ticks are numbered in the order of their
								 * snapshots */
	LWLock		  *prepared_lock; /* notes about prepared transactions */
	pid_t		   launcher_pid;
	Latch		  *launcher_latch;
	bool		   rescan;	/* the set of databases has changed */
	bool		   reprobe; /* somebody made the extension and found no
								 * slot: look into every database again */
	OutboxDatabase databases[OUTBOX_MAX_DATABASES];
	OutboxHold	   holds[OUTBOX_MAX_HOLDS]; /* of all databases; under 'lock' */
} OutboxShared;

/* NULL when the library was not preloaded. */
extern OutboxShared *outbox_shared;

extern void outbox_shmem_init(void); /* from _PG_init: hooks and requests */

/*
 * The slot of a database; claims a free one when 'create'.  NULL when there is
 * none, or no shared memory.  The result for MyDatabaseId is cached.
 */
extern OutboxDatabase *outbox_database_slot(Oid dboid, bool create);

/*
 * Wakes all workers of the database; those without endpoints, and
 * those that rest, only when 'all'.
 */
extern void outbox_workers_ring(OutboxDatabase *db, bool all);

/* Raises a number that only grows. */
extern void outbox_raise(pg_atomic_uint64 *number, uint64 value);

/* Lowers db->due_at.  False: it was no later. */
extern bool outbox_lower_due_at(OutboxDatabase *db, TimestampTz due);

/*
 * Asks the launcher to look whether the database has the extension, whatever
 * it knew or however often a worker failed there.
 */
extern void outbox_launcher_probe(Oid dboid);

/* Forgets what the workers of a database had on hold. */
extern void outbox_holds_forget(Oid dboid);

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
	Oid	  dboid;
	int32 endpoint_id;
} OutboxStatsKey;

typedef enum OutboxEndpointState
{
	OUTBOX_ENDPOINT_ACTIVE,
	OUTBOX_ENDPOINT_PAUSED,
	OUTBOX_ENDPOINT_BACKING_OFF,
	OUTBOX_ENDPOINT_DISABLED,
	OUTBOX_ENDPOINT_HELD
} OutboxEndpointState;

typedef struct OutboxStats
{
	OutboxStatsKey		key;
	OutboxEndpointState state;
	TimestampTz			state_since;
	int64				pending; /* matched, not yet handed to a request */
	bool				pending_exact;
	int64				processing; /* deliveries in flight */
	int64				retrying;
	int64				blocked;
	int64				dead;
	int64				delivered; /* since the endpoint's creation */
	int64				failed_attempts;
	TimestampTz			oldest_pending_at; /* 0: nothing pending */
	TimestampTz			next_attempt_at;   /* 0: none is scheduled */
	TimestampTz			last_success_at;   /* 0: never since the worker started */
	double				rate_per_s;		   /* deliveries, over the last minute */
	int64				recent_second;	   /* for who has the endpoint next: what the */
	uint32				recent[60];		   /* rate is made of */
	double				latency_p50_ms;	   /* emit to 2xx, first attempts, last 5 min; -1:
								 * no data */
	double				latency_p95_ms;
	double				latency_p99_ms;
	char				reason[128];
	char				last_error[256];
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

#endif /* OUTBOX_SHMEM_H */
