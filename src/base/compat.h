/*
 * compat.h
 *	  Owns every difference between PostgreSQL 15 and 19.  No other file tests the
 *	  version.
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "commands/tablecmds.h"
#include "common/base64.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* From 19 on a statement that only reads sets bits in the visibility map of a table. */
#define OUTBOX_READS_SET_BITS (PG_VERSION_NUM >= 190000)

/* dshash needs a function that copies keys since 17. */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_DSHASH_COPY_FUNCTION .copy_function = dshash_memcpy,
#else
#define OUTBOX_DSHASH_COPY_FUNCTION
#endif

static inline bool
outbox_database_owned(Oid dboid, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, dboid, role);
#else
	return pg_database_ownercheck(dboid, role);
#endif
}

static inline bool
outbox_schema_usable(Oid schema, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(NamespaceRelationId, schema, role, ACL_USAGE) == ACLCHECK_OK;
#else
	return pg_namespace_aclcheck(schema, role, ACL_USAGE) == ACLCHECK_OK;
#endif
}

static inline bool
outbox_function_callable(Oid function, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) ==
		ACLCHECK_OK;
#else
	return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

/* 18 takes uint8 for the bytes. */
static inline int
outbox_b64_encode(const uint8 *src, int len, char *dst, int dstlen)
{
#if PG_VERSION_NUM >= 180000
	return pg_b64_encode(src, len, dst, dstlen);
#else
	return pg_b64_encode((const char *) src, len, dst, dstlen);
#endif
}

static inline int
outbox_b64_decode(const char *src, int len, uint8 *dst, int dstlen)
{
#if PG_VERSION_NUM >= 180000
	return pg_b64_decode(src, len, dst, dstlen);
#else
	return pg_b64_decode(src, len, (char *) dst, dstlen);
#endif
}

/*
 * 16 added the argument "onlySummarizing", which only an UPDATE can set.  19 made
 * flags of these arguments.
 */
static inline void
outbox_insert_index_tuples(ResultRelInfo *info, TupleTableSlot *slot, EState *estate)
{
#if PG_VERSION_NUM >= 190000
	(void) ExecInsertIndexTuples(info, estate, 0, slot, NIL, NULL);
#elif PG_VERSION_NUM >= 160000
	(void) ExecInsertIndexTuples(info, slot, estate, false, false, NULL, NIL, false);
#else
	(void) ExecInsertIndexTuples(info, slot, estate, false, false, NULL, NIL);
#endif
}

/*
 * 18 added an argument for counting index searches.  NULL: they are not counted.  19
 * added flags.
 */
static inline IndexScanDesc
outbox_index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 190000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0, SO_NONE);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/* The oldest xid whose state is still in the commit log. */
static inline TransactionId
outbox_oldest_clog_xid(void)
{
#if PG_VERSION_NUM >= 170000
	return TransamVariables->oldestClogXid;
#else
	return ShmemVariableCache->oldestClogXid;
#endif
}

/*
 * Empties a table without a WAL record for logical decoding.  16 added an argument:
 * whether to run as the table's owner.
 */
static inline void
outbox_truncate_unpublished(Relation rel)
{
	List *rels = list_make1(rel);
	List *oids = list_make1_oid(RelationGetRelid(rel));

#if PG_VERSION_NUM >= 160000
	ExecuteTruncateGuts(rels, oids, NIL, DROP_RESTRICT, false, false);
#else
	ExecuteTruncateGuts(rels, oids, NIL, DROP_RESTRICT, false);
#endif
}

/* A set that lives as long as the process.  17 ties sets to resource owners. */
static inline WaitEventSet *
outbox_create_wait_event_set(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

/* True for a virtual generated column, which 18 added.  It is stored in no tuple. */
static inline bool
outbox_column_is_virtual(const FormData_pg_attribute *att)
{
#if PG_VERSION_NUM >= 180000
	return att->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL;
#else
	(void) att;
	return false;
#endif
}

/* The status of the n-th process in the statistics, from 1.  16 renamed the function. */
#if PG_VERSION_NUM >= 160000
#define outbox_backend_status(n) (&pgstat_get_local_beentry_by_index(n)->backendStatus)
#else
#define outbox_backend_status(n) (&pgstat_fetch_stat_local_beentry(n)->backendStatus)
#endif

/*
 * Memory that a setting's check hook passes to its assign hook, or NULL if there is
 * none left.  16 added a memory context for it.
 */
static inline void *
outbox_guc_alloc(size_t size)
{
#if PG_VERSION_NUM >= 160000
	return guc_malloc(LOG, size);
#else
	return malloc(size);
#endif
}

static inline void
outbox_guc_free(void *extra)
{
#if PG_VERSION_NUM >= 160000
	guc_free(extra);
#else
	free(extra);
#endif
}

/*
 * Completes a row type, so that rows of it can be made.  Since 19 a descriptor whose
 * columns were entered one by one has to be finished first.
 */
static inline TupleDesc
outbox_bless_row_type(TupleDesc desc)
{
#if PG_VERSION_NUM >= 190000
	TupleDescFinalize(desc);
#endif
	return BlessTupleDesc(desc);
}

/* A jsonb value that is being made.  19 keeps its result in the state. */
#if PG_VERSION_NUM >= 190000
typedef JsonbInState OutboxJsonbInState;
#else
typedef struct OutboxJsonbInState
{
	JsonbParseState *parseState;
	JsonbValue *result;
} OutboxJsonbInState;
#endif

static inline void
outbox_push_jsonb_value(OutboxJsonbInState *state, JsonbIteratorToken token,
						JsonbValue *value)
{
#if PG_VERSION_NUM >= 190000
	pushJsonbValue(state, token, value);
#else
	state->result = pushJsonbValue(&state->parseState, token, value);
#endif
}

/* The rights that a statement needs, for a hook.  16 has a list of its own for them. */
#if PG_VERSION_NUM >= 160000
typedef RTEPermissionInfo OutboxWanted;
#define OUTBOX_WANTED_PARAMETERS List *tables, List *wanted, bool report
#define OUTBOX_WANTED_ARGUMENTS tables, wanted, report
#else
typedef RangeTblEntry OutboxWanted;
#define OUTBOX_WANTED_PARAMETERS List *wanted, bool report
#define OUTBOX_WANTED_ARGUMENTS wanted, report
#endif

/* A connection for logical replication; 16 and 17 each gave it another argument. */
#if PG_VERSION_NUM >= 170000
#define outbox_logical_connect(conninfo, name, problem) \
	walrcv_connect(conninfo, true, true, false, name, problem)
#elif PG_VERSION_NUM >= 160000
#define outbox_logical_connect(conninfo, name, problem) \
	walrcv_connect(conninfo, true, false, name, problem)
#else
#define outbox_logical_connect(conninfo, name, problem) \
	walrcv_connect(conninfo, true, name, problem)
#endif

#endif /* OUTBOX_COMPAT_H */
