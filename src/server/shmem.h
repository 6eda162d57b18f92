/*
 * shmem.h
 *	  The shared state: one slot per served database with its workers, and the
 *	  statistics of endpoints.
 *
 * Everything here is rebuilt after a restart.  Everything that must survive is in tables.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "base/outbox.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/*
 * The number of databases with the extension that one server can serve.  Another
 * database is not served, and outbox.status says so.
 */
#define OUTBOX_MAX_DATABASES 256

/* The number of workers that one database can have. */
#define OUTBOX_MAX_WORKERS 16

/*
 * The number of shares of a database.  Its workers divide them among themselves: the
 * work of the database itself, and its endpoints by their ids (shares.h).
 */
#define OUTBOX_SHARES 256

/*
 * Counters that never go down.  Arrays in outbox.positions have these numbers, so a new
 * one comes at the end.  The names are in tally.c.
 */
typedef enum OutboxCounter
{
	OUTBOX_COUNT_DELIVERED,

	/* attempts that failed, by class */
	OUTBOX_COUNT_TIMEOUT,
	OUTBOX_COUNT_CONNECT,
	OUTBOX_COUNT_DNS,
	OUTBOX_COUNT_TLS,
	OUTBOX_COUNT_ADDRESS,
	OUTBOX_COUNT_CLOSED,
	OUTBOX_COUNT_PROTOCOL,
	OUTBOX_COUNT_INTERNAL,
	OUTBOX_COUNT_HTTP_3XX,
	OUTBOX_COUNT_HTTP_4XX,
	OUTBOX_COUNT_HTTP_5XX,
	OUTBOX_COUNT_ANSWER, /* the answer to a batch names it, or cannot be understood */

	/* deliveries that died, by reason */
	OUTBOX_COUNT_MAX_ATTEMPTS,
	OUTBOX_COUNT_MAX_AGE,
	OUTBOX_COUNT_EXPIRED,
	OUTBOX_COUNT_ABORTED,
	OUTBOX_COUNT_INVALID,
	OUTBOX_COUNT_FILTER,
	OUTBOX_COUNT_BACKLOG,
	OUTBOX_COUNT_GONE,
	OUTBOX_COUNT_UNREADABLE,

	OUTBOX_COUNT_OPENINGS, /* of the breaker */
	OUTBOX_COUNT_CANCELLED,

	/* of the database only */
	OUTBOX_COUNT_DEDUPLICATED,
	OUTBOX_COUNT_UNMATCHED,
	OUTBOX_COUNTERS
} OutboxCounter;

/* The state of a worker.  outbox.status and outbox.workers show it in words. */
typedef enum OutboxWorkerState
{
	OUTBOX_WORKER_NONE,		/* no process */
	OUTBOX_WORKER_STARTING, /* asked for, or starting */
	OUTBOX_WORKER_RUNNING,
	OUTBOX_WORKER_STUCK,	/* only as views show it: running, but not going round */
	OUTBOX_WORKER_DISABLED, /* outbox.enabled is off */
	OUTBOX_WORKER_HELD,		/* the log has another origin or instance name */
	OUTBOX_WORKER_VERSION_MISMATCH /* objects of a version that is not served */
} OutboxWorkerState;

/* Why a worker that should run does not, as far as the launcher knows. */
typedef enum OutboxAbsence
{
	OUTBOX_ABSENCE_NONE,	/* no reason */
	OUTBOX_ABSENCE_FAILED,	/* ended with an error, starts again at next_start_at */
	OUTBOX_ABSENCE_NO_ROOM, /* PostgreSQL has no process for it */
	OUTBOX_ABSENCE_WANTED	/* a command needs the database without connections */
} OutboxAbsence;

/* One worker of a database.  Written under outbox_shared->lock. */
typedef struct OutboxWorker
{
	OutboxWorkerState state;
	pid_t			  pid;	 /* 0: none */
	Latch			 *latch; /* NULL: none */
	/*
	 * Number of the start: an old process that ends late must not clear the slot of a
	 * new one.
	 */
	uint64		generation;
	TimestampTz started_at;
	int64		restarts; /* after abnormal exits, since server start */
	bool		serves;	  /* takes shares */
	bool		retiring; /* gives back its shares, and then ends */

	/* Published by the worker, read without a lock. */
	pg_atomic_uint64 last_loop_at; /* TimestampTz */
	pg_atomic_uint64 looked_at;	   /* outbox_head_looked_at() */
	pg_atomic_uint64 endpoints;
	pg_atomic_uint64 resting; /* 1: compares 'emitted' by itself soon, needs no wake */
	pg_atomic_uint64 in_flight;
	pg_atomic_uint64 memory;	/* bytes: outbox_memory_used */
	pg_atomic_uint64 resident;	/* bytes: outbox_memory_resident() */
	pg_atomic_uint64 bound;		/* bytes: outbox_memory_bound() then */
	pg_atomic_uint64 delivered; /* since this worker started */
	/*
	 * Every transaction below has ended in the worker's last look at
	 * outbox.endpoint_changes.  0: it needs no rows.
	 */
	pg_atomic_uint64 seen_changes;
	/*
	 * The newest call of outbox.forget() of whose events this process has no copy left:
	 * its forget_id.
	 */
	pg_atomic_uint64 forgot;
	bool			 waits_for_lock; /* while it starts, for the views */

	/* Used by the launcher only. */
	TimestampTz	  next_start_at; /* not before this time, after it ended */
	int			  failures;		 /* in a row */
	int			  delay;		 /* seconds, after the last failure */
	OutboxAbsence absence;

	/*
	 * Its last process has ended because it had nothing to do in this state (NONE: it had).
	 * The next one starts when the database has another 'changed' than 'rested_at', or at
	 * 'rests_until', to look again.  Views show this state meanwhile.
	 */
	OutboxWorkerState rests;
	uint64			  rested_at;
	TimestampTz		  rests_until;

	/* The report of the last process to the launcher. */
	bool exited;		 /* it has ended, and the launcher has not noted it */
	bool exited_cleanly; /* with exit code 0, or because it had to end */
	bool found_none;	 /* it saw that the extension is not there */
	int32
		stuck_for; /* the endpoint for which a call did not return (-1: not known for which,
					  * 0: all did) */
} OutboxWorker;

/* The numbers of events.  Written by event_number.c. */
typedef struct OutboxNumbers
{
	pg_atomic_uint64 highest;  /* that was drawn, or that a tick has */
	pg_atomic_uint32 sequence; /* its oid, if 'highest' is known */
} OutboxNumbers;

/*
 * One database.  A slot is claimed (under outbox_shared->lock, exclusive) when it is
 * first needed.  It keeps its database until that is dropped.  Backends cache the
 * pointer, and compare the oid at every use.
 */
typedef struct OutboxDatabase
{
	Oid dboid; /* InvalidOid: free */

	/*
	 * Raised at each commit that emitted, before the latches are set.  A worker
	 * compares it with the value from before its last snapshot.  The latch alone is
	 * not enough, because any wait inside a transaction can reset it.
	 */
	pg_atomic_uint64 emitted;

	/* Raised at each commit that changed endpoints or gave a command. */
	pg_atomic_uint64 changed;

	/*
	 * TimestampTz: when the next event of outbox.scheduled is due, as far as is known.
	 * Lowered at each commit that scheduled an earlier one.
	 */
	pg_atomic_uint64 due_at;

	/*
	 * The tables to which new events, attempts and positions are appended.  A stale
	 * value is harmless: it only delays when a table can be emptied.
	 */
	pg_atomic_uint32 piece;
	pg_atomic_uint32 attempts_piece;
	pg_atomic_uint32 positions_piece;
	pg_atomic_uint32 position_rows; /* about how many rows that table has */

	/*
	 * Not 0 while events of the piece after 'piece' are copied.  A transaction that
	 * parks a delivery of an event with a number up to this one then copies the event,
	 * too.  Written under a lock that excludes such transactions.
	 */
	pg_atomic_uint64 keep_upto;

	/*
	 * Not 0 while the piece after 'piece' is due to be emptied, and an endpoint has not
	 * passed it.  Each worker then moves its endpoints on up to this number, if they lack
	 * little (backlog_limit.c).
	 */
	pg_atomic_uint64 due_upto;

	/*
	 * 1: rows of deliveries were deleted, or a piece of the log was emptied.  The worker
	 * that serves the database then looks for copies of events that no delivery needs any
	 * more.
	 */
	pg_atomic_uint32 released;

	/*
	 * The highest numbers in use: of ticks, in the order of their snapshots (tick_lock),
	 * of positions, and of positions that idle endpoints share.  Each worker raises them
	 * to the numbers in the tables when it starts.
	 */
	pg_atomic_uint64 last_tick;
	pg_atomic_uint64 last_position;
	pg_atomic_uint64 last_shared;

	/*
	 * Of the tick that was stored last: its time, and how often that was earlier than the
	 * one before (under tick_lock).
	 */
	TimestampTz clock_time;
	int32		clock;

	OutboxNumbers numbers;

	/* Events that no endpoint subscribes to, since the database has had a worker. */
	pg_atomic_uint64 unmatched;

	/*
	 * The counters since the extension was created, and the part of them that no crash
	 * can take back (totals.c).  The first is counted before 'totals_known', too, and
	 * then lacks the stored part.
	 */
	pg_atomic_uint64 totals[OUTBOX_COUNTERS];
	pg_atomic_uint64 durable_totals[OUTBOX_COUNTERS];
	bool			 totals_known; /* under outbox_shared->lock */

	char reason[256]; /* why no worker runs, as a worker reported it */

	/* Used by the launcher only. */
	bool has_extension; /* a worker has seen it there */
	bool probe;			/* find out (again) whether it has the extension */

	/*
	 * Number of sessions that need the database without connections (DROP DATABASE,
	 * CREATE DATABASE … TEMPLATE and others).  No worker runs unless it is 0.
	 */
	int holds;

	/* The workers.  The entries from 'nworkers' on were never used. */
	int			 nworkers;
	OutboxWorker workers[OUTBOX_MAX_WORKERS];

	/*
	 * The worker that should have each share, and the worker that has it: its index +
	 * 1, or 0 for none.  Written under outbox_shared->lock, by the rules of shares.h.
	 */
	pg_atomic_uint64 shares_changed;
	uint8			 wanted[OUTBOX_SHARES];
	uint8			 owner[OUTBOX_SHARES];
	uint16			 weight[OUTBOX_SHARES]; /* endpoints in it, as last counted */
} OutboxDatabase;

/* The steps of a worker (step.h).  The names are in step.c. */
typedef enum OutboxStep
{
	OUTBOX_STEP_SCHEDULE,		 /* events that are due are moved into the log */
	OUTBOX_STEP_READ,			 /* the log and retries that are due are read */
	OUTBOX_STEP_SETTLE,			 /* outcomes are stored */
	OUTBOX_STEP_PARKED,			 /* outbox.parked is read and written */
	OUTBOX_STEP_FOLLOWERS,		 /* parked followers of a key are read */
	OUTBOX_STEP_RETENTION,		 /* a piece of the log is emptied */
	OUTBOX_STEP_FORGET_ATTEMPTS, /* a piece of outbox.attempts is emptied */
	OUTBOX_STEP_TIDY,			 /* copies of events that are not needed are removed */
	OUTBOX_STEP_DEDUP,			 /* old deduplication keys are removed */
	OUTBOX_STEP_REPLAY,
	OUTBOX_STEP_COMMAND,   /* an operator's command is carried out */
	OUTBOX_STEP_BACKLOG,   /* outbox.max_backlog_size */
	OUTBOX_STEP_NOTICE,	   /* events about outbox itself */
	OUTBOX_STEP_ATTEMPTS,  /* rows of outbox.attempts are written */
	OUTBOX_STEP_POSITIONS, /* positions change tables */
	OUTBOX_STEP_RELOAD,	   /* endpoints are read */
	OUTBOX_STEP_DATABASE,  /* the share of the database is taken */
	OUTBOX_STEP_FORGET,	   /* the content of a tenant's events is removed */
	OUTBOX_STEP_SEEK, /* rows that an endpoint's new place makes needless are removed */
	OUTBOX_STEP_LEFTOVERS, /* rows that dropped endpoints have left are removed */
	OUTBOX_STEP_FIGURES,   /* figures of endpoints are written to outbox.figures */
	OUTBOX_STEP_SEND,	   /* requests of an endpoint, by a library */
	OUTBOX_STEPS
} OutboxStep;

/* The number of sources of which events that are taken are counted. */
#define OUTBOX_MAX_SOURCES 256

/* Events that were taken from a source.  Under outbox_shared->lock. */
typedef struct OutboxTaken
{
	Oid	   subscription; /* InvalidOid: free */
	uint64 events;
} OutboxTaken;

#define OUTBOX_MAX_HOLDS 512
#define OUTBOX_HOLD_MESSAGE 200

/* Why an endpoint is held for which the process had to end. */
#define OUTBOX_STUCK "a library crashed for this endpoint, or did not return within 2 s"
#define OUTBOX_STUCK_TENANT \
	"a library crashed for this endpoint or others of its tenant, or did not return within 2 s"

/* A step that failed, as outbox.held_steps shows it. */
typedef struct OutboxHold
{
	Oid			dboid;	/* InvalidOid: free */
	int32		worker; /* its index */
	OutboxStep	step;
	int32		endpoint_id; /* 0: the whole step */
	uint64		tenant;		 /* a number for its tenant, of OUTBOX_STEP_SEND; 0: none */
	bool		all;		 /* all endpoints of the tenant are held */
	bool		locked;		 /* another transaction has a lock */
	int			sqlerrcode;
	int			failures; /* in a row */
	TimestampTz since;
	TimestampTz next_try_at;
	char		error[OUTBOX_HOLD_MESSAGE];
} OutboxHold;

typedef struct OutboxShared
{
	LWLock *lock;	   /* the slots */
	LWLock *tick_lock; /* orders ticks with their snapshots */
	pid_t	launcher_pid;
	Latch  *launcher_latch;
	bool	rescan; /* the list of databases has changed */
	/*
	 * The extension was made in a database without a slot: probe every database again.
	 */
	bool		   reprobe;
	OutboxDatabase databases[OUTBOX_MAX_DATABASES];
	OutboxTaken	   taken[OUTBOX_MAX_SOURCES];
	OutboxHold	   holds[OUTBOX_MAX_HOLDS]; /* of all databases; under 'lock' */
	bool		   any_stuck; /* 'holds' has, or had, some of OUTBOX_STEP_SEND */
} OutboxShared;

/* NULL if the library was not preloaded. */
extern OutboxShared *outbox_shared;

extern void outbox_shmem_init(void); /* called from _PG_init: sets hooks */

/* The slot of this worker, of its database, and the number of the worker there, from 0. */
extern OutboxWorker	  *outbox_self;
extern OutboxDatabase *outbox_db;
#define outbox_worker_number ((int) (outbox_self - outbox_db->workers))

/*
 * The slot of a database.  Claims a free one if 'create'.  NULL if there is none, or
 * no shared memory.  The result for MyDatabaseId is cached.
 */
extern OutboxDatabase *outbox_database_slot(Oid dboid, bool create);

/*
 * Wakes the workers of the database.  A worker without endpoints, and a worker that
 * rests, is woken only if 'all'.
 */
extern void outbox_workers_wake(OutboxDatabase *db, bool all);

/* Raises a number to 'value' unless it is already higher. */
extern void outbox_raise(pg_atomic_uint64 *number, uint64 value);

/* Adds to a total of this process's database. */
extern void outbox_count_total(OutboxCounter counter, int64 n);

/* Lowers db->due_at.  Returns false if it was not later than 'due'. */
extern bool outbox_lower_due_at(OutboxDatabase *db, TimestampTz due);

/*
 * Makes the launcher find out whether the database has the extension, regardless of its
 * earlier finding and of how often a worker failed there.
 */
extern void outbox_launcher_probe(Oid dboid);

/* Removes the held steps of a database's workers. */
extern void outbox_holds_forget(Oid dboid);

/* Makes the launcher read pg_database again. */
extern void outbox_launcher_rescan(void);

/* Wakes the launcher, because something in a slot concerns it. */
extern void outbox_launcher_wake(void);

/*
 * Statistics of one endpoint, for outbox.stats.  The worker that owns the endpoint
 * writes them, and any session reads them.  They are in a dshash, so any number of
 * endpoints fits.  Counters that must survive a restart are in the position rows, too.
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
	OUTBOX_ENDPOINT_HELD,
	OUTBOX_ENDPOINT_UNVERIFIED
} OutboxEndpointState;

#define OUTBOX_ENDPOINT_STATES (OUTBOX_ENDPOINT_UNVERIFIED + 1)

/* Deliveries of an endpoint, or of several. */
typedef struct OutboxWaiting
{
	int64		pending;	/* matched, not yet in a request */
	int64		processing; /* in flight */
	int64		retrying;	/* -1: rows are being counted, as in the next two */
	int64		blocked;
	int64		dead;
	TimestampTz oldest_pending_at; /* 0: nothing pending */
} OutboxWaiting;

typedef struct OutboxStats
{
	OutboxStatsKey		key;
	OutboxEndpointState state;
	TimestampTz			state_since;
	OutboxWaiting		waiting;
	bool				pending_exact;
	int					pid;	   /* of the worker that says this */
	int64				delivered; /* since the endpoint's creation */
	int64				failed_attempts;
	TimestampTz			next_attempt_at; /* 0: none is scheduled */
	TimestampTz			last_success_at; /* 0: never since the worker started */
	int64				recent_second;	 /* the newest second of the next two */

	/*
	 * Deliveries, and attempts that failed, in each of 60 seconds.  The worker that owns
	 * the endpoint next goes on with them.
	 */
	uint32 recent[60];
	uint32 recent_failed[60];

	/* From emit to 2xx, first attempts, last 5 min; -1: none. */
	double latency_p50_ms;
	double latency_p95_ms;
	double latency_p99_ms;
	char   reason[128];
	char   last_error[256];
	int64  counters[OUTBOX_COUNTERS]; /* the part that no crash can take back */
} OutboxStats;

/*
 * Publishing never fails: without memory the statistics stay as they were.  The caller
 * must hold no LWLock.
 */
extern void outbox_stats_publish(const OutboxStats *stats);

/* Copies the statistics of an endpoint.  Returns false if there are none. */
extern bool outbox_stats_fetch(Oid dboid, int32 endpoint_id, OutboxStats *stats);

/* When the oldest event was emitted that waits at an endpoint of a database (0: none waits). */
extern TimestampTz outbox_stats_oldest_pending(Oid dboid);

/* Removes the statistics of an endpoint. */
extern void outbox_stats_forget(Oid dboid, int32 endpoint_id);

/* Removes the statistics of all endpoints of a database. */
extern void outbox_stats_forget_all(Oid dboid);

#endif /* OUTBOX_SHMEM_H */
