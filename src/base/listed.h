/*
 * listed.h
 *	  List nodes that know whether they are on a list.  A node that is zero is on none.
 */
#ifndef OUTBOX_LISTED_H
#define OUTBOX_LISTED_H

#include "postgres.h"

#include "lib/ilist.h"

static inline bool
outbox_is_listed(const dlist_node *node)
{
	return node->next != NULL;
}

/* Adds it to the end.  Returns false if it is on the list already. */
static inline bool
outbox_list_add(dlist_head *list, dlist_node *node)
{
	if (outbox_is_listed(node))
		return false;
	dlist_push_tail(list, node);
	return true;
}

/* Returns false if it is on no list. */
static inline bool
outbox_list_remove(dlist_node *node)
{
	if (!outbox_is_listed(node))
		return false;
	dlist_delete(node);
	node->next = node->prev = NULL;
	return true;
}

#endif /* OUTBOX_LISTED_H */
