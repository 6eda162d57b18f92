/*
 * page.h
 *	  Rows of the log as events in memory, for what reads the log.
 */
#ifndef OUTBOX_PAGE_H
#define OUTBOX_PAGE_H

#include "log/log.h"

/* A jsonb that becomes text takes so many times its size: itself, a string, the text. */
#define OUTBOX_JSON_READING 3

/* A row that is being looked at. */
struct OutboxRow
{
	Datum *values;
	bool  *nulls;
	Jsonb *payload; /* NULL: not asked for yet */
	bool   unreadable;
};

extern void outbox_page_init(void);

/* An empty page of what is read between these ticks; NULL: by its numbers. */
extern OutboxPage *outbox_page_create(OutboxTick *done, OutboxTick *under);

/*
 * Copies a row, in the order of the columns of outbox.events, into the page.  A
 * payload that is not small and does not fit into what may be read ahead is left
 * in the log: event->payload is NULL then.  'whole': it is read in any case.
 */
extern OutboxEvent *outbox_page_add(OutboxPage *page, Datum *values, bool *nulls,
									bool whole);

/*
 * Where the row lies among the snapshots of this log; 0: nowhere.  A row of another
 * log may have the number, and the id, of an event of this one: only the epoch
 * tells the two apart.  Whatever is looked up by seq asks here.
 */
extern uint64 outbox_row_xid(const Datum *values);

/*
 * Asked after reading has failed, of each row, in a subtransaction: is it damaged,
 * or does it hold what this server cannot read any more?  Then what may be at fault
 * is left out of it, and this is true.  Any other error is thrown on.
 */
extern bool outbox_row_check(OutboxRow *row);

#endif /* OUTBOX_PAGE_H */
