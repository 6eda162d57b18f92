/*
 * reader.h
 *	  Reads the log for endpoints: the head, which all that keep up share, and for
 *	  those that are catching up.
 */
#ifndef OUTBOX_READER_H
#define OUTBOX_READER_H

#include "endpoint/endpoint.h"

/* True if a cursor at this place has read all that the head has. */
extern bool outbox_reader_at_head(const OutboxCursor *c);

/* Called for each endpoint that has got something to do. */
typedef void (*OutboxGotWork)(OutboxEndpoint *ep);
extern void outbox_reader_init(OutboxGotWork got_work);

/*
 * One step, inside a read transaction.  With 'head' it reads the head, if there is
 * 'news' or the current tick is not read to its end.  Then it reads for catching-up
 * endpoints, counts backlogs, and loads from outbox.parked.  It is bounded in pages
 * and time, so that requests proceed.  '*lsn' is raised to where the WAL has to be
 * durable before what was read may be sent.  True: there is more to read at once.
 */
extern bool outbox_reader_step(dlist_head *busy, bool head, bool news, TimestampTz now,
							   XLogRecPtr *lsn);

/*
 * Reads a page for an endpoint that is not attached, and makes its events dead.
 * Returns how many.  Needs a transaction.
 */
extern int outbox_reader_overflow(OutboxEndpoint *ep);

/*
 * The next followers of lanes, from outbox.parked.  _wants is true if some are to
 * be loaded.  _bring loads them and needs a transaction.  _ended is called after
 * that.  'undone' is true if the transaction was rolled back.
 */
extern bool outbox_reader_wants_followers(dlist_head *busy);
extern void outbox_reader_bring_followers(dlist_head *busy);
extern void outbox_reader_followers_ended(dlist_head *busy, bool undone);

/*
 * True if a step has something to do.  The second: true if it has for this endpoint, as
 * long as that is busy.  Cheap, and needs no transaction.
 */
extern bool outbox_reader_has_work(dlist_head *busy, bool head, TimestampTz now);
extern bool outbox_reader_has_work_for(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_READER_H */
