#ifndef OUTBOX_PAGE_H
#define OUTBOX_PAGE_H

#include "log/log.h"

/*
 * The memory for turning a jsonb into text, as a multiple of its size: the jsonb, a
 * string, the text.
 */
#define OUTBOX_JSON_READING 3

/* A row that is being examined. */
struct OutboxRow
{
	Datum *values;
	bool  *nulls;
	uint64 xid;
	Jsonb *payload; /* NULL: not unpacked yet */
	bool   unreadable;
	bool   forgotten;
};

/* Called before any other function here.  Pages are not used after 'parent' is freed. */
extern void outbox_page_init(MemoryContext parent);

/*
 * Makes an empty page for events between these ticks; NULL: for events that are looked
 * up by their numbers.
 */
extern OutboxPage *outbox_page_create(OutboxTick *read, OutboxTick *reading);

/*
 * Copies a row, in the order of the columns of outbox.events, into the page.  A
 * payload that is not small and does not fit into the memory for reading ahead is left
 * in the log: event->payload is then NULL.  'whole': the payload is always read.
 */
extern OutboxEvent *outbox_page_add(OutboxPage *page, const OutboxRow *row, bool whole);

/*
 * The xid at which the row lies among the snapshots of this log; 0: it is not part of
 * it.  A row of another log may have the number, and the id, of an event of this one.
 * Only the epoch distinguishes them.  So every look-up by seq must call this.
 */
extern uint64 outbox_row_xid(const Datum *values);

/*
 * Makes a row of its columns and of the xid that outbox_row_xid() returned.
 *
 * After reading has failed, the row is checked in a subtransaction.  If it is damaged,
 * or has data that this server cannot read any more, its headers and payload are set to
 * NULL, and it is 'unreadable'.  Any other error is thrown.  Reading is then tried
 * again.  Headers and payload of a forgotten row are not read.
 */
extern OutboxRow outbox_row_make(Datum *values, bool *nulls, uint64 xid);

#endif /* OUTBOX_PAGE_H */
