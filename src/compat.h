/*
 * compat.h
 *	  Owns every difference between PostgreSQL 14 and 18: no other file asks for
 *	  the version.
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "common/base64.h"
#if PG_VERSION_NUM >= 150000
#include "common/pg_prng.h"
#endif
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

/* 15 forbids unknown settings of the prefix from then on; 14 warns once. */
#if PG_VERSION_NUM < 150000
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

/*
 * Shared memory is asked for in a hook since 15, and in _PG_init itself before.
 */
static inline void
outbox_on_shmem_request(void (*request) (void), void (**previous) (void))
{
#if PG_VERSION_NUM >= 150000
	*previous = shmem_request_hook;
	shmem_request_hook = request;
#else
	*previous = NULL;
	request();
#endif
}

/* Blocks have grown with the context since 15. */
static inline MemoryContext
outbox_generation_context(MemoryContext parent, const char *name)
{
#if PG_VERSION_NUM >= 150000
	return GenerationContextCreate(parent, name, ALLOCSET_DEFAULT_SIZES);
#else
	return GenerationContextCreate(parent, name, ALLOCSET_DEFAULT_INITSIZE);
#endif
}

/* dshash has wanted a function that copies keys since 17. */
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

/* Makes the tuplestore of a function that returns all its rows at once. */
static inline void
outbox_materialize(FunctionCallInfo fcinfo)
{
#if PG_VERSION_NUM >= 150000
	InitMaterializedSRF(fcinfo, 0);
#else
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext old;
	TupleDesc	desc;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("this function returns a set and cannot be called here"),
				 errhint("Call it in FROM.")));
	old = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult =
		tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0,
							  false, work_mem);
	rsinfo->setDesc = desc;
	MemoryContextSwitchTo(old);
#endif
}

/* 18 has uint8 where the bytes are. */
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

/* 16 added "onlySummarizing", which only an UPDATE can be. */
static inline void
outbox_insert_index_tuples(ResultRelInfo *info, TupleTableSlot *slot, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	(void) ExecInsertIndexTuples(info, slot, estate, false, false, NULL, NIL, false);
#else
	(void) ExecInsertIndexTuples(info, slot, estate, false, false, NULL, NIL);
#endif
}

/* 18 counts index searches where it is told to. */
static inline IndexScanDesc
outbox_index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/* The oldest xid that the commit log can be asked about. */
static inline TransactionId
outbox_oldest_clog_xid(void)
{
#if PG_VERSION_NUM >= 170000
	return TransamVariables->oldestClogXid;
#else
	return ShmemVariableCache->oldestClogXid;
#endif
}

/* How far the WAL is on disk; 15 added the timeline. */
static inline XLogRecPtr
outbox_flush_lsn(void)
{
#if PG_VERSION_NUM >= 150000
	return GetFlushRecPtr(NULL);
#else
	return GetFlushRecPtr();
#endif
}

/* A set that lives as long as the process; 17 ties sets to resource owners. */
static inline WaitEventSet *
outbox_create_wait_event_set(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

/* 18 has generated columns that are in no tuple. */
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

/* The n-th of the processes that the statistics know, from 1; 16 renamed it. */
#if PG_VERSION_NUM >= 160000
#define outbox_backend_status(n) (&pgstat_get_local_beentry_by_index(n)->backendStatus)
#else
#define outbox_backend_status(n) (&pgstat_fetch_stat_local_beentry(n)->backendStatus)
#endif

/* What a setting's check hook hands to its assign hook, or NULL; 16 gave it a context. */
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

static inline double
outbox_random_double(void)
{
#if PG_VERSION_NUM >= 150000
	return pg_prng_double(&pg_global_prng_state);
#else
	return (double) random() / ((double) MAX_RANDOM_VALUE + 1);
#endif
}

#endif							/* OUTBOX_COMPAT_H */
