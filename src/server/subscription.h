#ifndef OUTBOX_SUBSCRIPTION_H
#define OUTBOX_SUBSCRIPTION_H

/* Removes the tables of outbox from a subscription that a command has made or changed. */
extern void outbox_leave_subscription(const char *name);

/* Empties a table, locked ACCESS EXCLUSIVE, without a record for subscriptions. */
extern void outbox_empty_table(Oid relid);

#endif /* OUTBOX_SUBSCRIPTION_H */
