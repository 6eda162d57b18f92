/*
 * log_scan.c
 *	  Owns the scans of the log's pieces: along seq, for single numbers, and for the
 *	  events of single transactions.
 *
 * SQL statements could do the same.  But a worker that keeps up reads one or two
 * events at a time.  To set up an executor over all pieces then costs more than to
 * deliver the events.  And for a piece that VACUUM found empty, the planner takes any
 * index.
 */
#include "log/log_scan.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "base/compat.h"
#include "base/table_rows.h"
#include "log/event_stamp.h"
#include "log/transaction.h"

#define PIECES (OUTBOX_TABLE_EVENTS_2 - OUTBOX_TABLE_EVENTS_0 + 1)

/* A piece of the log, with an open scan of one of its indexes. */
typedef struct Piece
{
	Relation		heap;
	Relation		index;
	IndexScanDesc	scan;
	TupleTableSlot *slot; /* empty: there is no next row */
} Piece;

/* An event that was found by its xid. */
typedef struct Found
{
	int64			seq; /* the first, for outbox_compare_int8() */
	int				piece;
	ItemPointerData tid;
} Found;

/* By name, because REINDEX CONCURRENTLY replaces the index by another. */
static Relation
open_index(Relation heap, const char *what)
{
	char	 name[NAMEDATALEN];
	Oid		 oid;
	Relation index;

	snprintf(name, sizeof(name), "%s_%s", RelationGetRelationName(heap), what);
	oid = get_relname_relid(name, RelationGetNamespace(heap));
	if (!OidIsValid(oid))
		ereport(
			ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("index \"%s.%s\" does not exist", OUTBOX_SCHEMA, name),
			 errhint(
				 "The log is read with this index. If it was renamed, give it this name again.")));
	/* REINDEX holds its lock until it is done.  The worker does not wait for it. */
	if (!ConditionalLockRelationOid(oid, AccessShareLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("index \"%s.%s\" is locked", OUTBOX_SCHEMA, name),
				 errhint("The log is read again when the lock is free.")));
	index = index_open(oid, NoLock);

	/* An invalid index could be read, but the events that it lacks would be skipped. */
	if (!index->rd_index->indisvalid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s.%s\" is not valid: it may lack events", OUTBOX_SCHEMA,
						name),
				 errhint("REINDEX INDEX CONCURRENTLY %s.%s;", OUTBOX_SCHEMA, name)));
	return index;
}

/* The tables are locked (see outbox_txn_begin()). */
static void
open_pieces(Piece *pieces, const char *index, int nkeys, Snapshot snapshot)
{
	for (int i = 0; i < PIECES; i++)
	{
		Piece *p = &pieces[i];

		p->heap = table_open(outbox_table_oid(OUTBOX_TABLE_EVENTS_0 + i), NoLock);
		p->index = open_index(p->heap, index);
		p->scan = outbox_index_beginscan(p->heap, p->index, snapshot, nkeys);
		p->slot = table_slot_create(p->heap, NULL);
	}
}

static void
close_pieces(Piece *pieces)
{
	for (int i = 0; i < PIECES; i++)
	{
		ExecDropSingleTupleTableSlot(pieces[i].slot);
		index_endscan(pieces[i].scan);
		index_close(pieces[i].index, NoLock);
		table_close(pieces[i].heap, NoLock);
	}
}

static bool
next_row(Piece *p)
{
	if (index_getnext_slot(p->scan, ForwardScanDirection, p->slot))
		return true;
	ExecClearTuple(p->slot); /* at the end the scan leaves the last row in the slot */
	return false;
}

static int64
seq_of(TupleTableSlot *slot)
{
	bool isnull;

	return DatumGetInt64(slot_getattr(slot, Anum_events_seq, &isnull));
}

/* The piece whose next row has the lowest number; NULL: there is no row. */
static Piece *
lowest(Piece *pieces)
{
	Piece *found = NULL;

	for (int i = 0; i < PIECES; i++)
		if (!TTS_EMPTY(pieces[i].slot) &&
			(found == NULL || seq_of(pieces[i].slot) < seq_of(found->slot)))
			found = &pieces[i];
	return found;
}

bool
outbox_scan_seq(const char *tenant, int64 above, int64 upto, int limit, Snapshot snapshot,
				OutboxScanTake take, void *arg)
{
	Piece		pieces[PIECES];
	ScanKeyData keys[3];
	int			n = 0;
	AttrNumber	seq = tenant ? 2 : 1; /* its place in the index */
	Piece	   *p;

	if (tenant)
		ScanKeyEntryInitialize(&keys[n++], 0, 1, BTEqualStrategyNumber, InvalidOid,
							   C_COLLATION_OID, F_TEXTEQ, CStringGetTextDatum(tenant));
	ScanKeyInit(&keys[n++], seq, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(above));
	ScanKeyInit(&keys[n++], seq, BTLessEqualStrategyNumber, F_INT8LE,
				Int64GetDatum(upto));
	open_pieces(pieces, tenant ? "tenant_seq_idx" : "seq_idx", n, snapshot);
	for (int i = 0; i < PIECES; i++)
	{
		index_rescan(pieces[i].scan, keys, n, NULL, 0);
		next_row(&pieces[i]);
	}
	while ((p = lowest(pieces)) != NULL && limit-- > 0 && take(arg, p->slot))
	{
		CHECK_FOR_INTERRUPTS();
		next_row(p);
	}
	close_pieces(pieces);
	return p == NULL;
}

void
outbox_scan_these(Datum seqs, Snapshot snapshot, OutboxScanTake take, void *arg)
{
	Piece		pieces[PIECES];
	ScanKeyData key;

	ScanKeyEntryInitialize(&key, SK_SEARCHARRAY, 1, BTEqualStrategyNumber, INT8OID,
						   InvalidOid, F_INT8EQ, seqs);
	open_pieces(pieces, "seq_idx", 1, snapshot);
	for (int i = 0; i < PIECES; i++)
	{
		index_rescan(pieces[i].scan, &key, 1, NULL, 0);
		while (next_row(&pieces[i]))
		{
			CHECK_FOR_INTERRUPTS();
			(void) take(arg, pieces[i].slot);
		}
	}
	close_pieces(pieces);
}

/*
 * The numbers of these transactions are interleaved.  So the place of each event is
 * found first, and of each transaction at most one row more than the limit.  Then the
 * rows are fetched in the order of seq.
 */
bool
outbox_scan_xids(const uint64 *xids, int nxids, int64 above, int64 upto, int limit,
				 Snapshot snapshot, OutboxScanTake take, void *arg)
{
	Piece		pieces[PIECES];
	ScanKeyData keys[3];
	int			n = 0;
	int			size = 64;
	Found	   *found = palloc(sizeof(Found) * size);
	int			taken = 0;

	ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(above));
	ScanKeyInit(&keys[2], 2, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(upto));
	open_pieces(pieces, "xid_seq_idx", lengthof(keys), snapshot);
	for (int i = 0; i < PIECES; i++)
	{
		for (int x = 0; x < nxids; x++)
		{
			ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_XID8EQ,
						FullTransactionIdGetDatum(FullTransactionIdFromU64(xids[x])));
			index_rescan(pieces[i].scan, keys, lengthof(keys), NULL, 0);
			for (int left = limit + 1; left > 0 && next_row(&pieces[i]); left--)
			{
				CHECK_FOR_INTERRUPTS();
				outbox_room(found, n, size, CurrentMemoryContext);
				found[n].seq = seq_of(pieces[i].slot);
				found[n].piece = i;
				found[n++].tid = pieces[i].slot->tts_tid;
			}
		}
	}
	qsort(found, n, sizeof(Found), outbox_compare_int8);
	for (; taken < Min(n, limit); taken++)
	{
		Piece *p = &pieces[found[taken].piece];

		if (!table_tuple_fetch_row_version(p->heap, &found[taken].tid, snapshot, p->slot))
			elog(ERROR, "event " INT64_FORMAT " is gone while it is read",
				 found[taken].seq);
		if (!take(arg, p->slot))
			break;
	}
	close_pieces(pieces);
	pfree(found);
	return taken == n;
}

OutboxIdState
outbox_scan_id(const Oid *table, const pg_uuid_t *id)
{
	SnapshotData  dirty;
	ScanKeyData	  key;
	Piece		  p;
	OutboxIdState state = OUTBOX_ID_FREE;

	/*
	 * It also sees rows that are not committed yet, and sets xmin or xmax to their
	 * transaction.
	 */
	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	p.heap = outbox_log_table_open(table, RowExclusiveLock);
	p.index = open_index(p.heap, "pkey");
	p.scan = outbox_index_beginscan(p.heap, p.index, &dirty, 1);
	p.slot = table_slot_create(p.heap, NULL);
	index_rescan(p.scan, &key, 1, NULL, 0);
	while (state == OUTBOX_ID_FREE && next_row(&p))
		state = TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax) ?
			OUTBOX_ID_IN_DOUBT :
			OUTBOX_ID_TAKEN;
	ExecDropSingleTupleTableSlot(p.slot);
	index_endscan(p.scan);
	index_close(p.index, NoLock);
	table_close(p.heap, NoLock);
	return state;
}
