/*
 * shmem.c
 *	  Owns the shared memory: the slots of databases, and the statistics of endpoints.
 */
#include "base/outbox.h"

#include "lib/dshash.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/dsa.h"

#include "base/compat.h"
#include "server/shmem.h"

/*
 * The first part of the statistics' memory is in the main segment.  There the hash table
 * can be made before any process exists that could own a dynamic segment.  Statistics
 * that do not fit go to dynamic segments.
 */
#define STATS_AREA_SIZE (1024 * 1024)

typedef struct StatsShared
{
	dshash_table_handle table;
	int					tranche;
	char				area[FLEXIBLE_ARRAY_MEMBER]; /* maximally aligned, see
												 * stats_area() */
} StatsShared;

OutboxShared   *outbox_shared = NULL;
OutboxWorker   *outbox_self;
OutboxDatabase *outbox_db;

static StatsShared *stats_shared = NULL;
static void (*previous_request)(void) = NULL;
static shmem_startup_hook_type previous_startup = NULL;

static char *
stats_area(void)
{
	return (char *) stats_shared + MAXALIGN(offsetof(StatsShared, area));
}

static Size
stats_shared_size(void)
{
	return add_size(MAXALIGN(offsetof(StatsShared, area)), STATS_AREA_SIZE);
}

static dshash_parameters
stats_parameters(void)
{
	dshash_parameters params =
		{.key_size = sizeof(OutboxStatsKey),
		 .entry_size = sizeof(OutboxStats),
		 .compare_function = dshash_memcmp,
		 .hash_function = dshash_memhash,
		 OUTBOX_DSHASH_COPY_FUNCTION.tranche_id = stats_shared->tranche};

	return params;
}

static void
request_shmem(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(
		add_size(MAXALIGN(sizeof(OutboxShared)), MAXALIGN(stats_shared_size())));
	RequestNamedLWLockTranche("outbox", 2);

	/* Only for its number and name.  The locks are inside the hash table. */
	RequestNamedLWLockTranche("outbox_stats", 1);
}

/* Atomics are initialized once. */
static void
set_u64(pg_atomic_uint64 *number, bool first, uint64 value)
{
	if (first)
		pg_atomic_init_u64(number, value);
	else
		pg_atomic_write_u64(number, value);
}

static void
set_u32(pg_atomic_uint32 *number, bool first, uint32 value)
{
	if (first)
		pg_atomic_init_u32(number, value);
	else
		pg_atomic_write_u32(number, value);
}

/*
 * The generation is kept and goes on counting.  So a process that was started for the
 * slot's former database sees that the slot is not its own.
 */
static void
clear_worker(OutboxWorker *worker, bool first)
{
	set_u64(&worker->last_loop_at, first, 0);
	set_u64(&worker->looked_at, first, 0);
	set_u64(&worker->endpoints, first, 0);
	set_u64(&worker->resting, first, 0);
	set_u64(&worker->in_flight, first, 0);
	set_u64(&worker->seen_changes, first, 0);
	set_u64(&worker->forgot, first, 0);
	set_u64(&worker->memory, first, 0);
	set_u64(&worker->resident, first, 0);
	set_u64(&worker->bound, first, 0);
	set_u64(&worker->delivered, first, 0);
	worker->state = OUTBOX_WORKER_NONE;
	worker->pid = 0;
	worker->latch = NULL;
	worker->started_at = 0;
	worker->restarts = 0;
	worker->serves = false;
	worker->retiring = false;
	worker->next_start_at = 0;
	worker->failures = 0;
	worker->delay = 0;
	worker->absence = OUTBOX_ABSENCE_NONE;
	worker->waits_for_lock = false;
	worker->rests = OUTBOX_WORKER_NONE;
	worker->rested_at = 0;
	worker->rests_until = 0;
	worker->stuck_for = 0;
	worker->exited = false;
	worker->exited_cleanly = false;
	worker->found_none = false;
}

/* 'first': memory was just made, and is zero.  Numbers of events only ever go up. */
static void
clear_slot(OutboxDatabase *db, bool first)
{
	set_u64(&db->emitted, first, 0);
	set_u64(&db->changed, first, 0);
	set_u64(&db->due_at, first, DT_NOEND);
	set_u32(&db->piece, first, 0);
	set_u32(&db->attempts_piece, first, 0);
	set_u32(&db->positions_piece, first, 0);
	set_u32(&db->position_rows, first, 0);
	set_u64(&db->keep_upto, first, 0);
	set_u64(&db->due_upto, first, 0);
	set_u32(&db->released, first, 0);
	set_u64(&db->last_tick, first, 0);
	set_u64(&db->last_position, first, 0);
	set_u64(&db->last_shared, first, 0);
	db->clock_time = 0;
	db->clock = 0;
	set_u32(&db->numbers.sequence, first, InvalidOid);
	set_u64(&db->unmatched, first, 0);
	for (int c = 0; c < OUTBOX_COUNTERS; c++)
	{
		set_u64(&db->totals[c], first, 0);
		set_u64(&db->durable_totals[c], first, 0);
	}
	if (first)
	{
		pg_atomic_init_u64(&db->numbers.highest, 0);
		pg_atomic_init_u64(&db->shares_changed, 0);
	}
	db->totals_known = false;
	db->reason[0] = '\0';
	db->has_extension = false;
	db->probe = false;
	db->holds = 0;
	db->nworkers = 0;
	for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		clear_worker(&db->workers[w], first);
	memset(db->wanted, 0, sizeof(db->wanted));
	memset(db->owner, 0, sizeof(db->owner));
	memset(db->weight, 0, sizeof(db->weight));
}

static void
init_slots(void)
{
	LWLockPadded *locks = GetNamedLWLockTranche("outbox");

	memset(outbox_shared, 0, sizeof(OutboxShared));
	outbox_shared->lock = &locks[0].lock;
	outbox_shared->tick_lock = &locks[1].lock;
	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
		clear_slot(&outbox_shared->databases[i], true);
}

static void
init_stats(void)
{
	dsa_area		 *area;
	dshash_table	 *table;
	dshash_parameters params;

	stats_shared->tranche = GetNamedLWLockTranche("outbox_stats")->lock.tranche;
	area = dsa_create_in_place(stats_area(), STATS_AREA_SIZE, stats_shared->tranche,
							   NULL);
	dsa_pin(area);

	/*
	 * The postmaster must not make dynamic segments, so the table itself must fit into
	 * the memory in place.
	 */
	dsa_set_size_limit(area, STATS_AREA_SIZE);
	params = stats_parameters();
	table = dshash_create(area, &params, NULL);
	dsa_set_size_limit(area, (size_t) -1);

	stats_shared->table = dshash_get_hash_table_handle(table);
	dshash_detach(table);
	dsa_detach(area);
}

/* Runs in the postmaster, and again after a crash, when shared memory is made anew. */
static void
startup_shmem(void)
{
	bool found;

	if (previous_startup != NULL)
		previous_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_shared = ShmemInitStruct("outbox", sizeof(OutboxShared), &found);
	if (!found)
		init_slots();
	stats_shared = ShmemInitStruct("outbox statistics", stats_shared_size(), &found);
	if (!found)
		init_stats();
	LWLockRelease(AddinShmemInitLock);
}

void
outbox_shmem_init(void)
{
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
	previous_request = shmem_request_hook;
	shmem_request_hook = request_shmem;
}

/*
 * The slot of a database, or NULL.  A lock must be held, the exclusive one if
 * 'create'.
 */
static OutboxDatabase *
find_slot(Oid dboid, bool create)
{
	OutboxDatabase *unused = NULL;

	for (int i = 0; i < OUTBOX_MAX_DATABASES; i++)
	{
		OutboxDatabase *db = &outbox_shared->databases[i];

		if (db->dboid == dboid)
			return db;
		if (unused == NULL && !OidIsValid(db->dboid))
			unused = db;
	}
	if (!create || unused == NULL)
		return NULL;

	clear_slot(unused, false);
	unused->dboid = dboid;
	return unused;
}

OutboxDatabase *
outbox_database_slot(Oid dboid, bool create)
{
	static OutboxDatabase *mine = NULL;
	OutboxDatabase		  *db;

	if (outbox_shared == NULL || !OidIsValid(dboid))
		return NULL;
	if (dboid == MyDatabaseId && mine != NULL && mine->dboid == dboid)
		return mine;

	LWLockAcquire(outbox_shared->lock, LW_SHARED);
	db = find_slot(dboid, false);
	LWLockRelease(outbox_shared->lock);
	if (db == NULL && create)
	{
		LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
		db = find_slot(dboid, true);
		LWLockRelease(outbox_shared->lock);
	}
	if (dboid == MyDatabaseId)
		mine = db;
	return db;
}

/*
 * Latches are read once, without a lock.  A worker may have ended meanwhile.  The
 * latch of a process outlives it, and setting it again is harmless.
 */
void
outbox_workers_wake(OutboxDatabase *db, bool all)
{
	int n = *(volatile int *) &db->nworkers;

	for (int w = 0; w < n; w++)
	{
		OutboxWorker *worker = &db->workers[w];
		Latch		 *latch = *(Latch *volatile *) &worker->latch;

		if (latch == NULL && all && worker->rests != OUTBOX_WORKER_NONE)
			outbox_launcher_wake();
		if (latch != NULL &&
			(all ||
			 (pg_atomic_read_u64(&worker->endpoints) > 0 &&
			  pg_atomic_read_u64(&worker->resting) == 0)))
			SetLatch(latch);
	}
}

void
outbox_raise(pg_atomic_uint64 *number, uint64 value)
{
	uint64 known = pg_atomic_read_u64(number);

	while (value > known)
		if (pg_atomic_compare_exchange_u64(number, &known, value))
			return;
}

void
outbox_count_total(OutboxCounter counter, int64 n)
{
	OutboxDatabase *db = outbox_database_slot(MyDatabaseId, false);

	if (db != NULL)
		pg_atomic_fetch_add_u64(&db->totals[counter], n);
}

bool
outbox_lower_due_at(OutboxDatabase *db, TimestampTz due)
{
	uint64 known = pg_atomic_read_u64(&db->due_at);

	while (due < (TimestampTz) known)
		if (pg_atomic_compare_exchange_u64(&db->due_at, &known, (uint64) due))
			return true;
	return false;
}

void
outbox_launcher_wake(void)
{
	/* Latches are never freed.  An old one wakes an unrelated process once. */
	Latch *latch = *(Latch *volatile *) &outbox_shared->launcher_latch;

	if (latch != NULL)
		SetLatch(latch);
}

void
outbox_launcher_probe(Oid dboid)
{
	OutboxDatabase *db;

	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	db = find_slot(dboid, true);
	if (db != NULL)
	{
		db->probe = true;
		for (int w = 0; w < OUTBOX_MAX_WORKERS; w++)
		{
			db->workers[w].failures = 0;
			db->workers[w].next_start_at = 0;
		}
	}
	else
		outbox_shared->reprobe = true;
	LWLockRelease(outbox_shared->lock);
	outbox_launcher_wake();
}

void
outbox_holds_forget(Oid dboid)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_HOLDS; i++)
		if (outbox_shared->holds[i].dboid == dboid)
			memset(&outbox_shared->holds[i], 0, sizeof(OutboxHold));
	LWLockRelease(outbox_shared->lock);
}

void
outbox_launcher_rescan(void)
{
	LWLockAcquire(outbox_shared->lock, LW_EXCLUSIVE);
	outbox_shared->rescan = true;
	LWLockRelease(outbox_shared->lock);
	outbox_launcher_wake();
}

/* This process's view of the statistics, made when it is first needed.  NULL: none. */
static dshash_table *
stats_table(void)
{
	static dshash_table *table = NULL;

	if (table == NULL && stats_shared != NULL)
	{
		MemoryContext	  old = MemoryContextSwitchTo(TopMemoryContext);
		dshash_parameters params = stats_parameters();
		dsa_area		 *area = dsa_attach_in_place(stats_area(), NULL);

		dsa_pin_mapping(area);
		on_shmem_exit(dsa_on_shmem_exit_release_in_place, PointerGetDatum(stats_area()));
		table = dshash_attach(area, &params, stats_shared->table, NULL);
		MemoryContextSwitchTo(old);
	}
	return table;
}

static void
publish(const OutboxStats *stats)
{
	dshash_table *table = stats_table();
	OutboxStats	 *entry;
	bool		  found;

	entry = dshash_find_or_insert(table, &stats->key, &found);
	memcpy(entry, stats, sizeof(OutboxStats));
	dshash_release_lock(table, entry);
}

void
outbox_stats_publish(const OutboxStats *stats)
{
	MemoryContext caller = CurrentMemoryContext;

	if (stats_shared == NULL || outbox_database_slot(stats->key.dboid, false) == NULL)
		return;

	/*
	 * A server without shared memory for statistics must still deliver.  Only the hash
	 * table's own locks are held here.
	 */
	PG_TRY();
	{
		publish(stats);
	}
	PG_CATCH();
	{
		static bool said = false;

		MemoryContextSwitchTo(caller);
		LWLockReleaseAll();
		if (!said)
		{
			ErrorData *error = CopyErrorData();

			ereport(LOG,
					(errcode(error->sqlerrcode),
					 errmsg("outbox statistics could not be published: %s",
							error->message)));
			FreeErrorData(error);
			said = true;
		}
		FlushErrorState();
	}
	PG_END_TRY();
}

bool
outbox_stats_fetch(Oid dboid, int32 endpoint_id, OutboxStats *stats)
{
	OutboxStatsKey key = {.dboid = dboid, .endpoint_id = endpoint_id};
	dshash_table  *table = stats_table();
	OutboxStats	  *entry;

	if (table == NULL)
		return false;
	entry = dshash_find(table, &key, false);
	if (entry == NULL)
		return false;
	memcpy(stats, entry, sizeof(OutboxStats));
	dshash_release_lock(table, entry);
	return true;
}

TimestampTz
outbox_stats_oldest_pending(Oid dboid)
{
	dshash_seq_status status;
	OutboxStats		 *entry;
	TimestampTz		  oldest = 0;

	if (stats_table() == NULL)
		return 0;
	dshash_seq_init(&status, stats_table(), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
		if (entry->key.dboid == dboid && entry->waiting.oldest_pending_at != 0 &&
			(oldest == 0 || entry->waiting.oldest_pending_at < oldest))
			oldest = entry->waiting.oldest_pending_at;
	dshash_seq_term(&status);
	return oldest;
}

void
outbox_stats_forget(Oid dboid, int32 endpoint_id)
{
	OutboxStatsKey key = {.dboid = dboid, .endpoint_id = endpoint_id};
	dshash_table  *table = stats_table();

	if (table != NULL)
		(void) dshash_delete_key(table, &key);
}

void
outbox_stats_forget_all(Oid dboid)
{
	dshash_seq_status status;
	OutboxStats		 *entry;

	if (stats_table() == NULL)
		return;
	dshash_seq_init(&status, stats_table(), true);
	while ((entry = dshash_seq_next(&status)) != NULL)
		if (entry->key.dboid == dboid)
			dshash_delete_current(&status);
	dshash_seq_term(&status);
}
