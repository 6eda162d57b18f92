#ifndef OUTBOX_HEAD_H
#define OUTBOX_HEAD_H

#include "endpoint/endpoint.h"

/*
 * Rows per page, and bytes of payload after which a page ends.  A page has a query
 * of its own, so each costs as much as some hundred rows.
 */
#define OUTBOX_PAGE_ROWS 512
#define OUTBOX_PAGE_BYTES (256 * 1024)

/* µs after which a step begins no further page. */
#define OUTBOX_STEP_TIME (2 * OUTBOX_PAGE_TIME)

extern void outbox_head_begin_step(void);
extern bool outbox_head_step_is_over(void);

/* Pages may be read for as long as the preparation took that began at 'since'. */
extern void outbox_head_step_extend(TimestampTz since);

/*
 * True if the head has a tick that it may not read yet: settings have changed and were
 * not read since the tick was taken.  outbox_head_may_read() ends that when the endpoints
 * whose settings have changed do not read with the head.
 */
extern bool outbox_head_waits(void);
extern void outbox_head_may_read(void);

/*
 * Reads some pages of the head, and with 'news' begins a new tick when the last one was
 * read to its end.  The head must not wait.  Raises '*lsn' as outbox_log_read() does.
 * False: settings are to be read before anything else.
 */
extern bool outbox_head_read(bool news, XLogRecPtr *lsn);

extern TimestampTz outbox_head_looked_at(void);

/* True if a cursor at this place has read all that the head has. */
extern bool outbox_head_reached(const OutboxCursor *c);

/* The same, also if no event was emitted between the two.  Needs a transaction. */
extern bool outbox_head_has_place(const OutboxCursor *c);

/* True if the head has read all that a reader at this place has. */
extern bool outbox_head_is_beyond(const OutboxCursor *c);

/*
 * Returns the tick up to which a cursor at this place may read: the newest tick that the
 * head has, or with 'ahead' a tick behind that (ahead.h).  NULL: there is nothing to
 * read.  A start position has no number and may be newer than the tick.  Then the result
 * is NULL, too, or events from before the start would be delivered.
 */
extern OutboxTick *outbox_head_target(const OutboxCursor *c, bool ahead);

/* Adds an event that was emitted at this time to the endpoint's backlog. */
extern void outbox_head_count(OutboxEndpoint *ep, TimestampTz created_at);

#endif /* OUTBOX_HEAD_H */
