/*
 * log.c
 *	  The only room that knows ticks, snapshots and pages: reads committed
 *	  events in an order that keeps the promise of README ("Order"), and says
 *	  how far the WAL has to be durable before they may be sent.
 *
 * Ids are handed out before commit, so "everything above the last id" loses
 * whoever commits late.  A position in the log is therefore a snapshot: what
 * it sees has been read, what it does not see has not.  Between two snapshots
 * S1 and S2, in this order of time, lie the events whose xid S2 sees and S1
 * does not.  Within such a tick the order is that of seq: an event whose emit
 * ran after another one's commit has the higher seq, and is in the same or in
 * a later tick.
 *
 * Two access paths lead to a tick's events.  The sequence is noted before S1
 * is taken (seq_low), and every transaction gets its xid before it draws a
 * seq: so an event with seq <= seq_low can be new in S2 only if its xid was in
 * progress in S1.  Those few are looked up by (xid, seq), and they come first;
 * all others are a walk along the seq index, bounded by the sequence as noted
 * after S2 was taken (seq_high).
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/xid8.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/memory.h"
#include "base/query.h"
#include "base/table_rows.h"
#include "log/event_stamp.h"
#include "log/log.h"
#include "log/log_scan.h"
#include "log/payload.h"
#include "log/standbys.h"
#include "log/step.h"

/* How many xids back the commit log is asked; beyond, the tick's LSN is used. */
#define FRESH_XIDS 100000

/* In the order of outbox.events; which piece it is does not matter. */
#define EVENT_COLUMNS \
	"id, seq, xid, epoch, created_at, NULL::pg_catalog.int2, topic, type, key, " \
	"expires_at, headers, payload, body, content_type"

#define COL(name) (Anum_events_##name - 1)

static MemoryContext page_cxt;
static int64 durable_tick;		/* all that this tick sees is durable */

XLogRecPtr	outbox_durable_lsn;
XLogRecPtr	outbox_fetched_lsn;


void
outbox_log_init(Oid sequence)
{
	page_cxt = AllocSetContextCreate(TopMemoryContext, "outbox pages",
									 ALLOCSET_SMALL_SIZES);
	outbox_tick_init(sequence);
}

/*
 * Numbers that a session keeps for later would turn the order of events upside
 * down.
 */
void
outbox_log_check_sequence(void)
{
	if (SPI_execute("SELECT 1 FROM pg_catalog.pg_sequence WHERE seqrelid"
					" OPERATOR(pg_catalog.=) 'outbox.events_seq'::pg_catalog.regclass"
					" AND seqcache OPERATOR(pg_catalog.=) 1"
					" AND seqincrement OPERATOR(pg_catalog.=) 1"
					" AND NOT seqcycle", false, 1) != SPI_OK_SELECT ||
		SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the sequence outbox.events_seq was altered: the order of events is not safe"),
				 errhint("ALTER SEQUENCE outbox.events_seq CACHE 1 INCREMENT 1 NO CYCLE;")));
	if (outbox_query("SELECT 1 FROM outbox.positions"
					 " WHERE GREATEST(done_seq_low, last_seq) OPERATOR(pg_catalog.>)"
					 " COALESCE(pg_catalog.pg_sequence_last_value('outbox.events_seq'), 0) LIMIT 1",
					 0, NULL, NULL, NULL) > 0)
		outbox_tick_sequence_went_back();
}

/* ---------------------------------------------------------------- pages */

void
outbox_page_unref(OutboxPage *page)
{
	if (--page->refs > 0)
		return;
	if (page->part)
		page->part->whole = NULL;
	outbox_memory_account(&page->bytes, 0);
	outbox_tick_unref(page->done);
	outbox_tick_unref(page->under);
	MemoryContextDelete(page->cxt);
}

void
outbox_page_account(OutboxPage *page)
{
	outbox_memory_account(&page->bytes, MemoryContextMemAllocated(page->cxt, true));
}

static OutboxPage *
page_create(OutboxTick *done, OutboxTick *under)
{
	MemoryContext cxt;
	OutboxPage *page;

	/* All of it goes at once, and lies close together. */
	cxt = GenerationContextCreate(page_cxt, "outbox page", ALLOCSET_DEFAULT_SIZES);
	page = MemoryContextAllocZero(cxt, sizeof(OutboxPage));
	page->cxt = cxt;
	page->refs = 1;
	page->done = outbox_tick_ref(done);
	page->under = outbox_tick_ref(under);
	return page;
}

/* The text of a uuid, as uuid_out prints it, without its allocation. */
void
outbox_uuid_text(const pg_uuid_t *uuid, char *out)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = hex[uuid->data[i] >> 4];
		*out++ = hex[uuid->data[i] & 15];
	}
	*out = '\0';
}

/*
 * Where it lies among the snapshots of this log; 0: nowhere.  A row of another
 * log may have the number, and the id, of an event of this one: only the epoch
 * tells the two apart.  Whatever is looked up by seq asks here.
 */
static uint64
row_xid(const Datum *values)
{
	return outbox_log_xid(DatumGetInt64(values[COL(epoch)]),
						  U64FromFullTransactionId(DatumGetFullTransactionId(values[COL(xid)])));
}

static char *
text_or_null(Datum value, bool isnull)
{
	return isnull ? NULL : TextDatumGetCString(value);
}

/* Copies a row into the page; 'whole': with its payload in any case. */
static OutboxEvent *
make_event(OutboxPage *page, Datum *values, bool *nulls, bool whole)
{
	MemoryContext old = MemoryContextSwitchTo(page->cxt);
	OutboxEvent *event = palloc0(sizeof(OutboxEvent));

	event->page = page;
	event->seq = DatumGetInt64(values[COL(seq)]);
	event->id = *DatumGetUUIDP(values[COL(id)]);
	outbox_uuid_text(&event->id, event->id_text);
	event->created_at = DatumGetTimestampTz(values[COL(created_at)]);
	event->expires_at = nulls[COL(expires_at)] ? DT_NOEND :
		DatumGetTimestampTz(values[COL(expires_at)]);
	event->topic = nulls[COL(topic)] ? pstrdup("") :
		TextDatumGetCString(values[COL(topic)]);
	event->type = text_or_null(values[COL(type)], nulls[COL(type)]);
	event->key = text_or_null(values[COL(key)], nulls[COL(key)]);
	if (event->key)
		event->key_hash = hash_bytes((unsigned char *) event->key,
									 strlen(event->key));
	if (!nulls[COL(headers)])
		event->headers = DatumGetJsonbPCopy(values[COL(headers)]);
	outbox_payload_read(event, values, nulls, whole);
	MemoryContextSwitchTo(old);
	outbox_page_account(page);
	return event;
}

/* Recent enough, and of this system, for the commit log to be asked. */
static bool
is_fresh(uint64 xid)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	return xid + FRESH_XIDS >= next && xid < next &&
		!TransactionIdPrecedes((TransactionId) xid, outbox_oldest_clog_xid());
}

/*
 * Where the WAL has to be durable so that a crash cannot take this xid back.
 * A transaction that flushed its own commit needs nothing; the commit log
 * knows which did not.
 */
static XLogRecPtr
commit_lsn(uint64 xid, const OutboxTick *tick)
{
	return is_fresh(xid) ? TransactionIdGetCommitLSN((TransactionId) xid) : tick->lsn;
}

/* A row that is being looked at. */
struct OutboxRow
{
	Datum	   *values;
	bool	   *nulls;
	Jsonb	   *payload;		/* NULL: not asked for yet */
	bool		unreadable;
};

/* All that make_event() would read. */
static void
probe_row(void *arg)
{
	OutboxPage *page = page_create(NULL, NULL);
	OutboxRow  *row = arg;

	PG_TRY();
	{
		(void) make_event(page, row->values, row->nulls, true);
	}
	PG_FINALLY();
	{
		outbox_page_unref(page);
	}
	PG_END_TRY();
}

/*
 * Asked after reading has failed, of each row, in a subtransaction.
 * Is the row damaged, or does it hold what this server cannot read any more?
 * Then what may be at fault is left out of it.  Any other error is thrown on:
 * reading is tried again.
 */
static bool
is_unreadable(OutboxRow *row)
{
	OutboxStepError failure;

	if (!outbox_step_reading_failed() || outbox_step_try_part(probe_row, row, &failure))
		return false;
	if (failure.sqlerrcode != ERRCODE_DATA_CORRUPTED &&
		ERRCODE_TO_CATEGORY(failure.sqlerrcode) != ERRCODE_DATA_EXCEPTION &&
		ERRCODE_TO_CATEGORY(failure.sqlerrcode) != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
		ereport(ERROR, (errcode(failure.sqlerrcode), errmsg_internal("%s", failure.message)));
	ereport(WARNING,
			(errcode(failure.sqlerrcode),
			 errmsg("outbox event with seq " INT64_FORMAT " cannot be read: %s",
					DatumGetInt64(row->values[COL(seq)]), failure.message),
			 errhint("Its deliveries are dead letters with the reason \"unreadable\". Once the row is repaired, outbox.retry() sends them.")));
	row->nulls[COL(headers)] = row->nulls[COL(payload)] = row->nulls[COL(body)] = true;
	row->unreadable = true;
	return true;
}

Jsonb *
outbox_row_payload(OutboxRow *row)
{
	if (row->payload == NULL && !row->nulls[COL(payload)])
		row->payload = DatumGetJsonbP(row->values[COL(payload)]);
	return row->payload;
}

bool
outbox_row_unreadable(const OutboxRow *row)
{
	return row->unreadable;
}

int64
outbox_row_seq(const OutboxRow *row)
{
	return DatumGetInt64(row->values[COL(seq)]);
}

TimestampTz
outbox_row_created_at(const OutboxRow *row)
{
	return DatumGetTimestampTz(row->values[COL(created_at)]);
}

typedef struct ReadState
{
	const OutboxReader *reader;
	OutboxCursor *cursor;
	OutboxPage *page;
	int			rows;
	size_t		bytes;
	bool		check;			/* are their commits on disk? */
	TimestampTz begun;
	bool		late;			/* filters took long */
	uint64		last_xid;
	XLogRecPtr	lsn;
	XLogRecPtr *hold;			/* of the caller: the highest of all */
} ReadState;

/*
 * A filter has looked at the payload of a row: what was unpacked for it goes, and
 * counts.
 */
static void
payload_was_judged(ReadState *st, OutboxRow *row)
{
	if ((Pointer) row->payload != DatumGetPointer(row->values[COL(payload)]))
	{
		st->bytes += VARSIZE(row->payload);
		pfree(row->payload);
	}
	row->payload = NULL;
	st->late = GetCurrentTimestamp() - st->begun >= OUTBOX_PAGE_TIME;
}

/* False: it is no row of this log. */
static bool
judge_row(ReadState *st, TupleTableSlot *slot)
{
	OutboxCursor *cursor = st->cursor;
	OutboxRow	row = {.values = slot->tts_values,.nulls = slot->tts_isnull};
	struct varlena *topic;
	uint64		xid;
	void	   *wanted;
	OutboxEvent *event;

	xid = row_xid(row.values);
	if (xid == 0)
		return false;
	if (!outbox_tick_sees(cursor->under, xid) ||
		outbox_tick_sees(cursor->done, xid))
		return true;
	(void) is_unreadable(&row);

	/*
	 * A topic that is NULL came past the checks; an empty one is refused where
	 * the request is made.
	 */
	topic = row.nulls[COL(topic)] ? cstring_to_text("") :
		PG_DETOAST_DATUM_PACKED(row.values[COL(topic)]);
	wanted = st->reader->want(st->reader->arg, VARDATA_ANY(topic),
							  VARSIZE_ANY_EXHDR(topic), &row);
	if (row.payload != NULL)
		payload_was_judged(st, &row);
	if (wanted == NULL)
		return true;

	if (st->check && xid != st->last_xid)
	{
		st->lsn = Max(st->lsn, commit_lsn(xid, cursor->under));
		st->last_xid = xid;
	}
	if (st->page == NULL)
		st->page = page_create(cursor->done, cursor->under);
	event = make_event(st->page, row.values, row.nulls, false);
	event->unreadable = row.unreadable;
	st->bytes += outbox_event_bytes(event);

	/* Before it is handed out: the rest of the page may fail. */
	st->page->lsn = st->lsn;
	*st->hold = Max(*st->hold, st->lsn);
	st->reader->take(st->reader->arg, wanted, event);
	return true;
}

/*
 * Looks at one row.  False, before it was looked at: the page is full, and the
 * cursor stands at the row before.  There it stands after an error, too.
 */
static bool
take_row(void *arg, TupleTableSlot *slot)
{
	ReadState  *st = arg;
	int64		seq;

	if (st->bytes >= st->reader->max_bytes || st->late)
		return false;
	slot_getallattrs(slot);
	st->rows++;
	seq = DatumGetInt64(slot->tts_values[COL(seq)]);

	/* Of another log: the page may end here, before ours of this number. */
	if (!judge_row(st, slot))
		seq--;
	st->cursor->last_seq = Max(st->cursor->last_seq, seq);
	return true;
}

/*
 * Those that the last tick did not see although they had begun, as far as this
 * one sees them.
 */
static bool
read_late(ReadState *st, Snapshot snapshot)
{
	OutboxCursor *cursor = st->cursor;
	const OutboxTick *done = cursor->done;
	uint64	   *late = palloc(sizeof(uint64) * Max(done->nxip, 1));
	int			n = 0;
	bool		complete;

	for (int i = 0; i < done->nxip; i++)
		if (outbox_tick_sees(cursor->under, done->xip[i]))
			late[n++] = done->xip[i];
	complete = n == 0 ||
		outbox_scan_xids(late, n, cursor->last_seq, done->seq_low,
						 st->reader->max_rows, snapshot, take_row, st);
	pfree(late);
	return complete;
}

/* False: the page was full before the tick was at its end. */
static bool
read_tick(ReadState *st)
{
	OutboxCursor *cursor = st->cursor;
	bool		complete = true;
	Snapshot	snapshot;

	/* Taken after the tick was, so that it sees all that the tick sees. */
	PushActiveSnapshot(GetTransactionSnapshot());
	snapshot = GetActiveSnapshot();
	if (cursor->last_seq < cursor->done->seq_low)
	{
		complete = read_late(st, snapshot);
		if (complete)
			cursor->last_seq = cursor->done->seq_low;
	}
	if (complete && cursor->last_seq < cursor->under->seq_high)
		complete = outbox_scan_seq(cursor->last_seq, cursor->under->seq_high,
								   st->reader->max_rows - st->rows, snapshot, take_row, st);
	PopActiveSnapshot();
	return complete;
}

int
outbox_log_read(OutboxCursor *cursor, OutboxTick *target,
				const OutboxReader *reader, XLogRecPtr *lsn)
{
	ReadState	st = {.reader = reader,.cursor = cursor,.begun = GetCurrentTimestamp(),.hold = lsn};

	if (cursor->under == NULL)
	{
		if (outbox_tick_same(cursor->done, target))
		{
			outbox_cursor_set(cursor, target, NULL, 0);
			return 0;
		}
		outbox_cursor_set(cursor, cursor->done, target, 0);
	}

	if (cursor->under->lsn <= GetFlushRecPtr(NULL))
		durable_tick = Max(durable_tick, cursor->under->number);
	st.check = cursor->under->number > durable_tick;

	/*
	 * Standbys do not follow single transactions: with them, the whole tick
	 * has to be out.
	 */
	if (outbox_standbys_required())
		st.lsn = cursor->under->lsn;

	PG_TRY();
	{
		if (read_tick(&st))
			outbox_cursor_set(cursor, cursor->under, NULL, 0);
	}
	PG_FINALLY();
	{
		if (st.page)
			outbox_page_unref(st.page);
	}
	PG_END_TRY();
	return st.rows;
}

/*
 * What is looked up by seq need not have been waited for: a test event was never
 * read, and a follower may have been parked while a standby was away.
 */
static XLogRecPtr
fetched_lsn(const Datum *values)
{
	uint64		xid = row_xid(values);

	if (outbox_standbys_required())
		return outbox_log_end();
	return is_fresh(xid) ? TransactionIdGetCommitLSN((TransactionId) xid) : InvalidXLogRecPtr;
}

typedef struct FetchState
{
	OutboxPage *page;
	OutboxTake	take;
	void	   *arg;
	bool		whole;
	int			wanted;
	int64	   *found;			/* the first of them */
	int			n;
} FetchState;

static void
fetch_one(FetchState *st, Datum *values, bool *nulls)
{
	OutboxRow	row = {.values = values,.nulls = nulls};
	bool		unreadable;
	OutboxEvent *event;

	if (row_xid(values) == 0)
		return;
	if (st->n < st->wanted)
		st->found[st->n] = DatumGetInt64(values[COL(seq)]);
	unreadable = is_unreadable(&row);
	event = make_event(st->page, values, nulls, st->whole);
	event->unreadable = unreadable;
	st->n++;
	st->page->lsn = Max(st->page->lsn, fetched_lsn(values));
	st->take(st->arg, NULL, event);
}

static bool
fetch_row_of_log(void *arg, TupleTableSlot *slot)
{
	slot_getallattrs(slot);
	fetch_one(arg, slot->tts_values, slot->tts_isnull);
	return true;
}

/* Those that have outlived their piece of the log. */
static void
fetch_kept(Datum array, FetchState *st)
{
	static SPIPlanPtr plan;
	uint64		n = outbox_plan_run(&plan,
									"SELECT " EVENT_COLUMNS " FROM outbox.kept_events"
									" WHERE seq OPERATOR(pg_catalog.=) ANY ($1)",
									1, (Oid[]) {INT8ARRAYOID}, &array, NULL);

	for (uint64 i = 0; i < n; i++)
	{
		Datum		values[Natts_events];
		bool		nulls[Natts_events];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, values, nulls);
		fetch_one(st, values, nulls);
	}
}

static int
compare_seqs(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/* Of an event that the log has, there may be a copy already: see kept.c. */
static void
fetch(const int64 *seqs, int n, FetchState *st)
{
	int64	   *missing = palloc(sizeof(int64) * Max(n, 1));
	int			nmissing = 0;
	int			nfound;

	st->wanted = n;
	st->found = palloc(sizeof(int64) * Max(n, 1));
	st->page = page_create(NULL, NULL);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		outbox_scan_these(outbox_int8_array(seqs, n), GetActiveSnapshot(), fetch_row_of_log, st);
		PopActiveSnapshot();
		nfound = st->n;
		if (nfound < n)
		{
			qsort(st->found, nfound, sizeof(int64), compare_seqs);
			for (int i = 0; i < n; i++)
				if (bsearch(&seqs[i], st->found, nfound, sizeof(int64), compare_seqs) == NULL)
					missing[nmissing++] = seqs[i];
			fetch_kept(outbox_int8_array(missing, nmissing), st);
		}
	}
	PG_CATCH();
	{
		outbox_page_unref(st->page);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

void
outbox_log_fetch(const int64 *seqs, int n, OutboxTake take, void *arg)
{
	FetchState	st = {.take = take,.arg = arg};

	fetch(seqs, n, &st);
	outbox_fetched_lsn = Max(outbox_fetched_lsn, st.page->lsn);
	outbox_page_unref(st.page);
}

/* Another server's event can have the same number. */
typedef struct Whole
{
	const OutboxEvent *part;
	OutboxEvent *event;
} Whole;

static void
take_whole(void *arg, void *wanted, OutboxEvent *event)
{
	Whole	   *w = arg;

	(void) wanted;
	if (memcmp(&event->id, &w->part->id, sizeof(event->id)) != 0)
		return;
	w->event = event;
}

OutboxEvent *
outbox_log_fetch_whole(const OutboxEvent *event)
{
	Whole		w = {.part = event};
	FetchState	st = {.take = take_whole,.arg = &w,.whole = true};

	fetch(&event->seq, 1, &st);
	if (w.event == NULL)
		outbox_page_unref(st.page);
	return w.event;
}

/* ----------------------------------------------------------- durability */

/*
 * The end of the WAL.  At a page boundary the insert position is already past
 * the header of a page that is not there yet, and XLogFlush() would complain:
 * go back to the page's start.
 */
XLogRecPtr
outbox_log_end(void)
{
	XLogRecPtr	lsn = GetXLogInsertRecPtr();
	uint32		header = XLogSegmentOffset(lsn, wal_segment_size) < XLOG_BLCKSZ ?
		SizeOfXLogLongPHD : SizeOfXLogShortPHD;

	if (lsn % XLOG_BLCKSZ <= header)
		lsn -= lsn % XLOG_BLCKSZ;
	return lsn;
}

bool
outbox_log_durable(XLogRecPtr lsn)
{
	if (lsn > GetFlushRecPtr(NULL))
		XLogFlush(lsn);
	return !outbox_standbys_required() || outbox_standbys_lsn() >= lsn;
}
