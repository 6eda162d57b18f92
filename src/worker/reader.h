#ifndef OUTBOX_READER_H
#define OUTBOX_READER_H

#include "endpoint/endpoint.h"

/*
 * One step, inside a read transaction.  With 'head' it reads the head, if there is 'news'
 * or the current tick is not read to its end.  Then it reads for catching-up endpoints,
 * counts backlogs, and loads from outbox.parked.  It is bounded in pages and time, so
 * that requests proceed.  '*lsn' is raised to where the WAL has to be durable before the
 * events may be sent.  True: there is more to read at once.
 */
extern bool outbox_reader_step(bool head, bool news, TimestampTz now, XLogRecPtr *lsn);

/*
 * The next followers of lanes, from outbox.parked.  _wants is true if some may be loaded
 * now.  _bring loads them and needs a transaction.  _ended is called after that.  'undone' is true if the
 * transaction was rolled back.
 */
extern bool outbox_reader_wants_followers(void);
extern void outbox_reader_bring_followers(void);
extern void outbox_reader_followers_ended(bool undone);

/*
 * True if a step has something to do.  The second: true if it has for this endpoint, as
 * long as that is busy.  Cheap, and needs no transaction.
 */
extern bool outbox_reader_has_work(bool head, TimestampTz now);
extern bool outbox_reader_has_work_for(OutboxEndpoint *ep, TimestampTz now);

#endif /* OUTBOX_READER_H */
