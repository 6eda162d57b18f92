#ifndef OUTBOX_CHANGES_H
#define OUTBOX_CHANGES_H

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

#endif /* OUTBOX_CHANGES_H */
