/*
 * reserve.c
 *	  Owns outbox.reserve: pages that outbox gives up when the disk is full.
 *
 * Emptying a table gives back its space, but needs a few new pages first: TRUNCATE makes
 * new files, and the catalogs get new rows.  So do the statements that let go of a part of
 * the log.  The reserve lies in the same tablespace as the tables, and has the pages for
 * that.
 *
 * It is a materialized view: such views are in no publication, need no key, and are not
 * dumped.  Its rows mean nothing, and no other session looks for them.  So its end can
 * be cut off as VACUUM does it, with a lock that is released at once.  That needs no space,
 * and gives back the space at once, whether the transaction commits or not.
 */
#include "base/outbox.h"

#include <sys/statvfs.h>

#include "access/table.h"
#include "access/visibilitymap.h"
#include "catalog/namespace.h"
#include "catalog/storage.h"
#include "common/relpath.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/query.h"
#include "base/table_rows.h"
#include "base/version.h"
#include "log/reserve.h"
#include "log/transaction.h"

/* Pages of the whole reserve.  Each has one row, of so many bytes. */
#define RESERVE_PAGES 256
#define ROW_SIZE 8000

/* Pages that are given up at a time.  To empty a piece takes fewer. */
#define SLICE 32

/*
 * It is filled again when so many times its size is free.  With less, the WAL of that could
 * take the last space of a disk that both are on.
 */
#define FREE_TIMES 8

/* Returns NULL if there is none, or if its lock is not free. */
static Relation
open_reserve(LOCKMODE mode)
{
	Oid schema = get_namespace_oid(OUTBOX_SCHEMA, true);
	Oid oid = OidIsValid(schema) ? get_relname_relid("reserve", schema) : InvalidOid;

	if (!OidIsValid(oid) || !ConditionalLockRelationOid(oid, mode))
		return NULL;
	return try_table_open(oid, NoLock);
}

/* True if the disk of the reserve has so much space left.  Also true if it is not known. */
static bool
has_space(Relation reserve, uint64 bytes)
{
	Oid			   space = reserve->rd_rel->reltablespace;
	struct statvfs fs;

	if (statvfs(GetDatabasePath(MyDatabaseId,
								OidIsValid(space) ? space : MyDatabaseTableSpace),
				&fs) != 0)
		return true;
	return (uint64) fs.f_bavail * fs.f_frsize >= bytes;
}

bool
outbox_reserve_give_up(OutboxReserveNeed need)
{
	Relation	reserve = open_reserve(AccessShareLock);
	BlockNumber pages = reserve ? RelationGetNumberOfBlocks(reserve) : 0;
	bool		gives = pages > need &&
		!has_space(reserve, (uint64) RESERVE_PAGES / 2 * BLCKSZ) &&
		ConditionalLockRelation(reserve, AccessExclusiveLock);

	if (gives)
	{
		RelationTruncate(reserve, Max(need, pages - Min(pages, SLICE)));
		UnlockRelation(reserve, AccessExclusiveLock);
	}
	if (reserve)
		table_close(reserve, AccessShareLock);
	return gives;
}

void
outbox_reserve_give_up_alone(void *given)
{
	outbox_txn_begin_step();
	*(bool *) given = outbox_reserve_give_up(OUTBOX_RESERVE_TO_WRITE);
	outbox_txn_commit();
}

/* The first statement that reads makes the map of a table, so on a full disk it would fail. */
static void
make_maps(void)
{
	uint64 n = outbox_query(
		"SELECT c.oid::pg_catalog.int8 FROM pg_catalog.pg_class c WHERE c.relkind = 'r'"
		" AND c.relnamespace = '" OUTBOX_SCHEMA "'::pg_catalog.regnamespace");

	for (uint64 i = 0; i < n; i++)
	{
		Buffer	 map = InvalidBuffer;
		Relation rel;
		int64	 oid;

		outbox_read_row(i, into_int8(&oid));
		rel = ConditionalLockRelationOid((Oid) oid, AccessShareLock) ?
			try_table_open((Oid) oid, NoLock) :
			NULL;
		if (rel == NULL)
			continue;
		visibilitymap_pin(rel, 0, &map);
		ReleaseBuffer(map);
		table_close(rel, NoLock);
	}
}

void
outbox_reserve_fill(void *unused)
{
	Relation reserve;
	int		 missing;

	if (!outbox_txn_begin(true))
		return;
	reserve = open_reserve(ShareUpdateExclusiveLock);
	missing = reserve ? RESERVE_PAGES - (int) RelationGetNumberOfBlocks(reserve) : 0;
	if (missing > 0 && has_space(reserve, (uint64) FREE_TIMES * RESERVE_PAGES * BLCKSZ))
	{
		OutboxRows rows = {0};
		char	  *row = palloc(ROW_SIZE);

		memset(row, 'x', ROW_SIZE);
		for (int i = 0; i < missing; i++)
			put_value(&rows, PointerGetDatum(cstring_to_text_with_len(row, ROW_SIZE)));
		outbox_append_rows(RelationGetRelid(reserve), 1, &rows);
	}
	if (reserve)
		table_close(reserve, NoLock);
	if (OUTBOX_READS_SET_BITS)
		make_maps();
	outbox_txn_commit();
}

/* True if the caller's role may read outbox.endpoints.  A role for the portal may not. */
static bool
is_operator(void)
{
	Oid endpoints = get_relname_relid("endpoints",
									  get_namespace_oid(OUTBOX_SCHEMA, false));

	return OidIsValid(endpoints) &&
		pg_class_aclcheck(endpoints, GetOuterUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/*
 * make_room(): gives up a slice of the reserve if the disk is full.  A session calls it
 * before it writes something that can give back space.  Calls of customers, which may be many,
 * leave the reserve to operators.  SECURITY DEFINER does not change the outer user.
 */
OUTBOX_FUNCTION(outbox_make_room_1_0, 0)
{
	if (is_operator())
		(void) outbox_reserve_give_up(OUTBOX_RESERVE_TO_CHANGE);
	PG_RETURN_VOID();
}
