/*
 * subscription.h
 *	  Outbox and logical replication.
 */
#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

#include "nodes/nodes.h"

extern void outbox_leave_subscription(Node *parsetree);
extern void outbox_empty_table(Oid relid);

#endif /* OUTBOX_SUBSCRIPTION_H */
