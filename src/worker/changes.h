#ifndef OUTBOX_CHANGES_H
#define OUTBOX_CHANGES_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/*
 * Finds the endpoints that have changed since the snapshot 'seen' (NULL: none was taken), the
 * ones that are to be loaded again, and the ones that were left before.  'ids' are read now,
 * and 'left' later.  False: the settings of all have to be read.  Inside a transaction.
 */
extern bool outbox_changes_find(const char *seen, bool (*known)(int32 id), List **ids,
								List **left);

/* 'ids', or all, were read, and these are left. */
extern void outbox_changes_leave(const List *left);

/*
 * The endpoint's settings are to be read at this time (DT_NOEND: at none), although nothing
 * changes them.  _timed_at returns a time before which no endpoint's time comes.  _take_due
 * adds the endpoints that are due to 'ids', some at a time, and forgets their time, or that
 * of all.  They are read in this transaction, or all are after an error.  _hurry makes it
 * 'now' for each that has a time.
 */
extern void		   outbox_changes_read_at(int32 id, TimestampTz at);
extern TimestampTz outbox_changes_timed_at(void);
extern void		   outbox_changes_hurry(TimestampTz now);
extern void		   outbox_changes_take_due(bool all, List **ids);

#endif /* OUTBOX_CHANGES_H */
