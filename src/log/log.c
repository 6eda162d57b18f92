/*
 * log.c
 *	  Reads committed events, in an order that keeps the promise of doc/guarantees.md
 *	  ("Order").
 *
 * Numbers are drawn before commit, so reading "everything above the last number" would
 * lose the events of a transaction that commits late.  A position in the log is
 * therefore a snapshot: an event that it sees has been read, an event that it does not
 * see has not.  Between two snapshots S1 and S2, in this order of time, are the events
 * whose xid S2 sees and S1 does not.  Within such a tick the order is that of seq.  An
 * event whose emit ran after another one's commit has the higher seq, and is in the
 * same or in a later tick.
 *
 * The events of a tick are found in two ways.  The sequence is read before S1 is taken
 * (seq_low), and every transaction gets its xid before it draws a seq.  So an event
 * with seq <= seq_low can be new in S2 only if its xid was in progress in S1.  These
 * few events are looked up by (xid, seq), and come first.  All others are a scan of the
 * index on seq, up to the sequence's value after S2 was taken (seq_high).
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/sequence.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/query.h"
#include "log/durable.h"
#include "log/event_stamp.h"
#include "log/log.h"
#include "log/log_scan.h"
#include "log/page.h"
#include "log/standbys.h"
#include "log/step.h"

#define COL(name) (Anum_events_##name - 1)

#define LOOK_AT_CLOCK 64 /* rows */

static int64 durable_tick; /* this tick's events, and all before, are durable */

void
outbox_log_init(Oid sequence)
{
	outbox_page_init(TopMemoryContext);
	outbox_tick_init(sequence);
}

/* Numbers that a session caches for later use would change the order of events. */
void
outbox_log_check_sequence(void)
{
	if (SPI_execute("SELECT 1 FROM pg_catalog.pg_sequence WHERE seqrelid"
					" = 'outbox.events_seq'::pg_catalog.regclass AND seqcache = 1"
					" AND seqincrement = 1 AND NOT seqcycle",
					false, 1) != SPI_OK_SELECT ||
		SPI_processed != 1)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg(
				 "the sequence outbox.events_seq was altered: the order of events is not safe"),
			 errhint("ALTER SEQUENCE outbox.events_seq CACHE 1 INCREMENT 1 NO CYCLE;")));
}

typedef struct ReadState
{
	const OutboxLogQuery *reader;
	OutboxCursor		 *cursor;
	OutboxPage			 *page;
	int					  rows;
	size_t				  bytes;
	bool				  check; /* the WAL of their commits may not be durable */
	TimestampTz			  begun;
	bool				  late; /* the page took too long */
	uint64				  last_xid;
	XLogRecPtr			  lsn;
	XLogRecPtr			 *hold; /* the caller's: the highest LSN of all pages */
} ReadState;

static void
look_at_clock(ReadState *st)
{
	st->late = GetCurrentTimestamp() - st->begun >= OUTBOX_PAGE_TIME;
}

/*
 * A filter has read the payload of a row.  The unpacked copy is freed, and its size is
 * counted.
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
	look_at_clock(st);
}

/*
 * Passes the row's event to the reader if it is wanted.  Returns false if the row is
 * not of this log.
 */
static bool
judge_row(ReadState *st, TupleTableSlot *slot)
{
	OutboxCursor   *cursor = st->cursor;
	OutboxRow		row;
	struct varlena *topic;
	uint64			xid;
	void		   *wanted;
	OutboxEvent	   *event;

	xid = outbox_row_xid(slot->tts_values);
	if (xid == 0)
		return false;
	if (!outbox_tick_sees(cursor->reading, xid) || outbox_tick_sees(cursor->read, xid))
		return true;
	row = outbox_row_make(slot->tts_values, slot->tts_isnull, xid);

	/*
	 * A row with a NULL topic evaded the checks.  Its topic is then empty, and is
	 * refused where the request is made.
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
		st->lsn = Max(st->lsn, outbox_commit_lsn(xid, cursor->reading));
		st->last_xid = xid;
	}
	if (st->page == NULL)
		st->page = outbox_page_create(cursor->read, cursor->reading);
	event = outbox_page_add(st->page, &row, false);
	st->bytes += outbox_event_bytes(event);

	/* Set before the event is passed on, because the rest of the page may fail. */
	st->page->lsn = st->lsn;
	*st->hold = Max(*st->hold, st->lsn);
	st->reader->take(st->reader->arg, wanted, event);
	return true;
}

/*
 * Examines one row.  Returns false, before the row was examined, if the page is full:
 * the cursor then stays at the row before.  It does so after an error, too.
 */
static bool
take_row(void *arg, TupleTableSlot *slot)
{
	ReadState *st = arg;
	int64	   seq;

	if (st->bytes >= st->reader->max_bytes || st->late)
		return false;
	slot_getallattrs(slot);
	if (++st->rows % LOOK_AT_CLOCK == 0)
		look_at_clock(st);
	seq = DatumGetInt64(slot->tts_values[COL(seq)]);

	/*
	 * A row of another log.  The page may end here, before the row of this log that
	 * has the same number.
	 */
	if (!judge_row(st, slot))
		seq--;
	st->cursor->last_seq = Max(st->cursor->last_seq, seq);
	return true;
}

/*
 * Reads the events of transactions that the last tick did not see although they had
 * begun, and that this tick sees.
 *
 * Such a transaction may have a million events of other tenants.  And a tenant may have
 * had a million events while a small one was open.  So a reader of a tenant goes forward
 * along both in turn, half a page each.
 */
static bool
read_late(ReadState *st, Snapshot snapshot)
{
	OutboxCursor	 *cursor = st->cursor;
	const OutboxTick *read = cursor->read;
	const char		 *tenant = st->reader->tenant;
	uint64			 *late = palloc(sizeof(uint64) * Max(read->nxip, 1));
	int				  limit = st->reader->max_rows;
	int				  n = 0;
	bool			  complete;

	for (int i = 0; i < read->nxip; i++)
		if (outbox_tick_sees(cursor->reading, read->xip[i]))
			late[n++] = read->xip[i];
	complete = n == 0 ||
		outbox_scan_xids(late, n, cursor->last_seq, read->seq_low,
						 tenant ? (limit + 1) / 2 : limit, snapshot, take_row, st);
	if (!complete && tenant)
		complete = outbox_scan_seq(tenant, cursor->last_seq, read->seq_low,
								   limit - st->rows, snapshot, take_row, st);
	pfree(late);
	return complete;
}

/*
 * Reads on in the tick.  Returns false if the page was full before the end of the
 * tick.
 */
static bool
read_tick(ReadState *st)
{
	OutboxCursor *cursor = st->cursor;
	bool		  complete = true;
	Snapshot	  snapshot;

	/* Taken after the tick, so it sees all that the tick sees. */
	PushActiveSnapshot(GetTransactionSnapshot());
	snapshot = GetActiveSnapshot();
	if (cursor->last_seq < cursor->read->seq_low)
	{
		complete = read_late(st, snapshot);
		if (complete)
			cursor->last_seq = cursor->read->seq_low;
	}
	if (complete && cursor->last_seq < cursor->reading->seq_high)
		complete = outbox_scan_seq(st->reader->tenant, cursor->last_seq,
								   cursor->reading->seq_high,
								   st->reader->max_rows - st->rows, snapshot, take_row,
								   st);
	PopActiveSnapshot();
	return complete;
}

int
outbox_log_read(OutboxCursor *cursor, OutboxTick *target, const OutboxLogQuery *reader,
				XLogRecPtr *lsn)
{
	ReadState st = {.reader = reader,
					.cursor = cursor,
					.begun = GetCurrentTimestamp(),
					.hold = lsn};

	if (cursor->reading == NULL)
	{
		if (outbox_tick_same(cursor->read, target))
		{
			outbox_cursor_set(cursor, target, NULL, 0);
			return 0;
		}
		outbox_cursor_set(cursor, cursor->read, target, 0);
	}

	if (cursor->reading->lsn <= GetFlushRecPtr(NULL))
		durable_tick = Max(durable_tick, cursor->reading->number);
	st.check = cursor->reading->number > durable_tick;

	/*
	 * The position of standbys is not compared with single commits.  If standbys are
	 * required, the whole tick must be durable there.
	 */
	if (outbox_standbys_required())
		st.lsn = cursor->reading->lsn;

	PG_TRY();
	{
		if (read_tick(&st))
			outbox_cursor_set(cursor, cursor->reading, NULL, 0);
	}
	PG_FINALLY();
	{
		if (st.page)
			outbox_page_unref(st.page);
	}
	PG_END_TRY();
	return st.rows;
}
