/*
 * changes.h
 *	  Which endpoints' settings have changed, and are to be read.
 */
#ifndef OUTBOX_CHANGES_H
#define OUTBOX_CHANGES_H

#include "nodes/pg_list.h"

/*
 * Finds the endpoints that have changed since the snapshot 'seen' (NULL: none was taken), and
 * the ones that are to be loaded again.  Of endpoints that are not 'known' it returns some.
 * False: the settings of all have to be read.  Inside a transaction.
 */
extern bool outbox_changes_find(const char *seen, bool (*known)(int32 id), List **ids);

/* The endpoints that were found, or all, were read.  The next call returns the others. */
extern void outbox_changes_found(bool all);

#endif /* OUTBOX_CHANGES_H */
