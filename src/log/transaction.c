/*
 * transaction.c
 *	  Owns the worker's transactions: the settings that they may depend on, and that
 *	  they never wait for a lock that another session may hold for long.
 */
#include "base/outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"

#include "base/compat.h"
#include "base/settings.h"
#include "log/event_stamp.h"
#include "log/privileges.h"
#include "log/transaction.h"
#include "server/worker_slot.h"

/* The purpose of a transaction.  It decides which tables are locked. */
typedef enum Purpose
{
	PURPOSE_READ,
	PURPOSE_SETTLE,
	PURPOSE_STEP,
} Purpose;

static Oid					 extension_oid;
static char					*version;
static char					*database;
static int64				 log_epoch; /* 0: not known yet */
static Oid					 extension_owner;
static Oid					 role;		  /* as which this process runs */
static char					*role_misfit; /* why the role cannot serve; NULL: it can */
static volatile sig_atomic_t in_transaction;
static volatile sig_atomic_t stores_at_end;
static volatile sig_atomic_t is_over; /* the time that it has for that */
static TimeoutId			 end_timeout;

/* ms that a process has to store its outcomes, once it was asked to end. */
#define END_MS 5000

/* Current before the transaction, restored after it. */
static MemoryContext caller_cxt;

/*
 * Settings that a database or a role can have and that would change the meaning or the
 * rights of the worker's statements, or would end them.
 *
 * The list was made from pg_settings of PostgreSQL 15 to 19: every setting whose
 * context is "user", "superuser", "superuser-backend" or "backend".  Two that it does
 * not show were added: "role" and "session_authorization" (which outbox_session_init()
 * sets for good).  Not overridden are settings that concern utility commands that a
 * worker does not run, memory and I/O, the logging of errors, and the connection to a
 * client.  A setting that this server does not have is skipped.
 */
static const char *const overrides[][2] = {
	/* The role of the worker, and the rights of that role. */
	{"role", "none"},
	{"row_security", "on"},
	{"restrict_nonsystem_relation_kind", ""},
	{"session_replication_role", "origin"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},

	/* Settings that would end the transaction, or delay it. */
	{"statement_timeout", "0"},
	{"transaction_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
	{"lock_timeout", "0"},
	{"exit_on_error", "off"},
	{"temp_file_limit", "-1"},

	/* The meaning of names, literals and operators. */
	{"search_path", "pg_catalog, pg_temp"},
	{"standard_conforming_strings", "on"},
	{"backslash_quote", "safe_encoding"},
	{"escape_string_warning", "off"},
	{"array_nulls", "on"},
	{"transform_null_equals", "off"},
	{"quote_all_identifiers", "off"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "UTC"},
	{"timezone_abbreviations", "Default"},
	{"extra_float_digits", "1"},
	{"bytea_output", "hex"},
	{"xmlbinary", "base64"},
	{"xmloption", "content"},
	{"lc_monetary", "C"},
	{"lc_numeric", "C"},
	{"lc_time", "C"},

	/* Where and how tables are made. */
	{"default_table_access_method", "heap"},
	{"default_tablespace", ""},
	{"temp_tablespaces", ""},

	/* Autovacuum depends on these counts. */
	{"track_counts", "on"},

	/* Settings that would show secrets in the server log. */
	{"log_statement", "none"},
	{"log_min_duration_statement", "-1"},
	{"log_min_duration_sample", "-1"},
	{"log_transaction_sample_rate", "0"},
	{"log_parameter_max_length_on_error", "0"},
	{"debug_print_raw_parse", "off"},
	{"debug_print_parse", "off"},
	{"debug_print_rewritten", "off"},
	{"debug_print_plan", "off"},
};

/* The same, for a worker only. */
static const char *const worker_overrides[][2] = {
	{"synchronous_commit", "off"},
	{"lock_timeout", "200ms"},

	/*
	 * Plans.  The log is read by an index scan, even from a table that was never
	 * analyzed, and whatever the cost settings are.
	 */
	{"jit", "off"},
	{"plan_cache_mode", "force_generic_plan"},
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_indexscan", "on"},
	{"enable_indexonlyscan", "on"},
	{"enable_sort", "off"},
	{"enable_incremental_sort", "on"},
	{"enable_hashagg", "on"},
	{"enable_eager_aggregate", "off"},
	{"enable_hashjoin", "off"},
	{"enable_mergejoin", "off"},
	{"enable_nestloop", "on"},
	{"enable_material", "off"},
	{"enable_memoize", "on"},
	{"enable_partition_pruning", "on"},
	{"enable_tidscan", "on"},
	{"constraint_exclusion", "partition"},
	{"seq_page_cost", "1"},
	{"random_page_cost", "4"},
	{"cpu_tuple_cost", "0.01"},
	{"cpu_index_tuple_cost", "0.005"},
	{"cpu_operator_cost", "0.0025"},
	{"cursor_tuple_fraction", "0.1"},
	{"effective_cache_size", "4GB"},
	{"from_collapse_limit", "8"},
	{"join_collapse_limit", "8"},
	{"geqo", "off"},
	{"gin_fuzzy_search_limit", "0"},
	{"synchronize_seqscans", "off"},
	{"max_parallel_workers_per_gather", "0"},
};

/* Ends the process where it is. */
static void
time_is_over(void)
{
	is_over = true;
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

void
outbox_session_stores_at_end(void)
{
	end_timeout = RegisterTimeout(USER_TIMEOUT, time_is_over);
	stores_at_end = true;
}

void
outbox_session_ends(void)
{
	if (stores_at_end && !get_timeout_active(end_timeout) && !is_over)
		enable_timeout_after(end_timeout, END_MS);
}

/*
 * The worker's loop ends by itself, after it has stored outcomes and figures.  Inside a
 * transaction, its wait or its work is cancelled first.  Before there is a loop, the process
 * ends there.  To be asked again changes nothing: the postmaster sends each signal twice, to
 * the process and to its group.
 */
void
outbox_session_sigterm(SIGNAL_ARGS)
{
	int save_errno = errno;

	if (in_transaction && !(stores_at_end && ShutdownRequestPending))
	{
		InterruptPending = true;
		if (stores_at_end)
			QueryCancelPending = true;
		else
			ProcDiePending = true;
	}
	ShutdownRequestPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/*
 * The extension's oid, and its owner and version (palloc'd); InvalidOid: not
 * installed.
 */
static Oid
look_up_extension(Oid *owner, char **extversion)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			oid = InvalidOid;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum(OUTBOX_EXTENSION));
	/* Not by the index: the table is small, and an index scan allocates 27 kB. */
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_extension form = (Form_pg_extension) GETSTRUCT(tuple);
		bool			  isnull;
		Datum			  value;

		oid = form->oid;
		*owner = form->extowner;
		value = heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(rel),
							 &isnull);
		*extversion = isnull ? pstrdup("") : TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return oid;
}

/*
 * Why the role that outbox.worker_role names, or else the owner of the extension,
 * cannot serve.  NULL: it can.
 */
static const char *
role_problem(Oid owner, Oid *wanted)
{
	const char *missing;

	*wanted = outbox_worker_role[0] == '\0' ? owner :
											  get_role_oid(outbox_worker_role, true);
	if (!OidIsValid(*wanted))
		return psprintf("outbox.worker_role: role \"%s\" does not exist",
						outbox_worker_role);
	missing = outbox_missing_privilege(*wanted);
	return missing == NULL ?
		NULL :
		psprintf("the role of the worker, \"%s\", lacks a privilege: %s",
				 GetUserNameFromId(*wanted, false), missing);
}

static void
override(const char *const settings[][2], size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

bool
outbox_session_init_as_owner(void)
{
	char *extversion;

	override(overrides, lengthof(overrides));
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	extension_oid = look_up_extension(&extension_owner, &extversion);
	if (OidIsValid(extension_oid))
		SetSessionAuthorization(extension_owner, superuser_arg(extension_owner));
	CommitTransactionCommand();
	return OidIsValid(extension_oid);
}

bool
outbox_session_init(void)
{
	char	   *extversion;
	const char *problem;

	override(overrides, lengthof(overrides));
	override(worker_overrides, lengthof(worker_overrides));

	/* While it waits for a locked catalog, the worker must be able to end. */
	in_transaction = true;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	extension_oid = look_up_extension(&extension_owner, &extversion);
	if (OidIsValid(extension_oid))
	{
		version = MemoryContextStrdup(TopMemoryContext, extversion);
		database = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
		outbox_tables_look_up();
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (!OidIsValid(extension_oid))
	{
		in_transaction = false;
		return false;
	}

	/*
	 * The connection was made without a role, which means as a superuser.  From here
	 * on the worker is the extension's owner, or the role that outbox.worker_role
	 * names.
	 */
	StartTransactionCommand();
	problem = role_problem(extension_owner, &role);
	if (problem != NULL)
	{
		role_misfit = MemoryContextStrdup(TopMemoryContext, problem);
		role = extension_owner;
	}
	SetSessionAuthorization(role, superuser_arg(role));

	/*
	 * Bodies are UTF-8 whatever the database's encoding.  This must be set inside a
	 * transaction.
	 */
	SetConfigOption("client_encoding", "UTF8", PGC_SUSET, PGC_S_OVERRIDE);
	CommitTransactionCommand();
	in_transaction = false;
	return true;
}

const char *
outbox_session_role_misfit(void)
{
	return role_misfit;
}

const char *
outbox_session_version(void)
{
	return version;
}

const char *
outbox_session_database(void)
{
	return database;
}

void
outbox_session_set_epoch(int64 epoch)
{
	log_epoch = epoch;
}

void
outbox_session_fix_role(bool fixed)
{
	Oid user;
	int context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(user, fixed ? context | SECURITY_LOCAL_USERID_CHANGE : 0);
}

static void
leave_transaction(void)
{
	outbox_session_fix_role(false);
	MemoryContextSwitchTo(caller_cxt);
	in_transaction = false;
	/* A request to end that came too late for this transaction does not cancel the next one. */
	if (ShutdownRequestPending && !is_over)
		ProcDiePending = QueryCancelPending = false;
}

bool
outbox_lock_if_free(OutboxTable first, OutboxTable last, LOCKMODE mode)
{
	for (int i = first; i <= (int) last; i++)
		if (!ConditionalLockRelationOid(outbox_table_oid(i), mode))
			return false;
	return true;
}

void
outbox_throw_locked(OutboxTable table)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("\"" OUTBOX_SCHEMA ".%s\" is locked by another session",
					outbox_table_name(table))));
}

static bool
lock_for(Purpose purpose)
{
	if (!outbox_lock_if_free(OUTBOX_TABLE_ORIGINS, OUTBOX_TABLE_EVENTS_2,
							 AccessShareLock) ||
		!ConditionalLockRelationOid(outbox_sequence_oid(), RowExclusiveLock))
		return false;
	switch (purpose)
	{
		case PURPOSE_READ:
			break;
		case PURPOSE_SETTLE:
			return outbox_lock_if_free(OUTBOX_TABLE_ENDPOINT_SETTINGS,
									   OUTBOX_TABLE_POSITIONS_1, RowExclusiveLock);
		case PURPOSE_STEP:
			return outbox_lock_if_free(OUTBOX_TABLE_KEPT_EVENTS, OUTBOX_TABLE_PIECES,
									   RowExclusiveLock);
	}
	return true;
}

/* Ends the process.  The next one begins with what has changed. */
static _Noreturn void
end(const char *why)
{
	ereport(LOG, (errmsg("outbox worker ends: %s", why)));
	proc_exit(0);
}

/*
 * Begins a transaction.  It never waits for a lock.  DROP EXTENSION, VACUUM FULL or a LOCK
 * in another session must not stop the requests of all endpoints.  The locks are taken
 * before any snapshot.
 */
static bool
begin(Purpose purpose, bool throws)
{
	Oid	  owner;
	char *extversion;

	caller_cxt = CurrentMemoryContext;

	/* now() is the start of the statement, and this process receives no statements. */
	SetCurrentStatementStartTimestamp();
	in_transaction = true;
	if (ShutdownRequestPending)
		outbox_session_ends();
	StartTransactionCommand();
	outbox_session_fix_role(true);
	if (!lock_for(purpose))
	{
		if (throws)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("a table of outbox is locked by another session"),
					 errhint("The worker tries again until the lock is free.")));
		AbortCurrentTransaction();
		leave_transaction();
		return false;
	}

	/*
	 * With these locks held, the extension cannot be dropped any more.  A DROP that
	 * was rolled back, or is still open, changes nothing here.
	 */
	if (look_up_extension(&owner, &extversion) != extension_oid)
	{
		outbox_worker_slot_no_extension();
		end("the extension was dropped");
	}

	/*
	 * Nor can its tables change any more.  The next process checks whether it fits the
	 * new version.
	 */
	if (strcmp(extversion, version) != 0)
		end(psprintf("the extension was updated from version %s to %s", version,
					 extversion));

	/* The rights of a role that is gone are not known any more. */
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		end("its role was dropped");

	/* REASSIGN OWNED.  The former owner, as which this process runs, may be gone. */
	if (owner != extension_owner && outbox_worker_role[0] == '\0')
		end("the extension has another owner");

	/*
	 * A session that adopted the log waited for these locks.  The log may now belong
	 * to another epoch.
	 */
	if (log_epoch != 0 && outbox_current_epoch() != log_epoch)
		end(outbox_current_epoch() > 0 ?
				"the log was adopted" :
				"outbox.origins does not say any more that the log is that of this database");
	SPI_connect();

	/*
	 * Parsing needs a snapshot.  Each statement uses a newer one of its own, which it
	 * takes after its locks (read_only = false).
	 */
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

bool
outbox_txn_begin(bool write)
{
	return begin(write ? PURPOSE_STEP : PURPOSE_READ, false);
}

bool
outbox_txn_begin_settle(void)
{
	return begin(PURPOSE_SETTLE, false);
}

void
outbox_txn_begin_read(void)
{
	(void) begin(PURPOSE_READ, true);
}

void
outbox_txn_begin_step(void)
{
	(void) begin(PURPOSE_STEP, true);
}

bool
outbox_lock_log(void)
{
	return outbox_lock_if_free(OUTBOX_TABLE_EVENTS, OUTBOX_TABLE_EVENTS_2,
							   RowExclusiveLock);
}

bool
outbox_txn_begin_to_emit(void)
{
	if (!outbox_txn_begin(true))
		return false;
	if (outbox_lock_log())
		return true;
	outbox_txn_abort();
	return false;
}

void
outbox_lock_indexes(OutboxTable first, OutboxTable last)
{
	for (int i = first; i <= (int) last; i++)
	{
		bool	  locked = outbox_lock_if_free(i, i, AccessShareLock);
		Relation  rel = locked ? table_open(outbox_table_oid(i), NoLock) : NULL;
		List	 *indexes = locked ? RelationGetIndexList(rel) : NIL;
		ListCell *cell;

		foreach (cell, indexes)
			locked = locked &&
				ConditionalLockRelationOid(lfirst_oid(cell), AccessShareLock);
		if (!locked)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("\"%s.%s\" or an index of it is locked", OUTBOX_SCHEMA,
							outbox_table_name(i)),
					 errhint("The worker tries again until the lock is free.")));
		list_free(indexes);
		table_close(rel, NoLock);
	}
}

bool
outbox_txn_is_open(void)
{
	return in_transaction;
}

void
outbox_txn_abort_failed(void)
{
	AbortOutOfAnyTransaction();
	leave_transaction();
}

void
outbox_txn_abort(void)
{
	SPI_finish();
	AbortCurrentTransaction();
	leave_transaction();
}

void
outbox_txn_commit(void)
{
	PopActiveSnapshot();
	SPI_finish();
	CommitTransactionCommand();
	leave_transaction();
}
