#ifndef OUTBOX_ASKED_H
#define OUTBOX_ASKED_H

typedef struct OutboxAsked
{
	int64		id;
	const char *action;
	TimestampTz retry_at; /* of one that was set aside (0: it was not) */
} OutboxAsked;

typedef void (*OutboxAskedVisit)(void *arg, const OutboxAsked *command);

/* Calls 'visit' for each that is committed, or of this transaction, in any order. */
extern void outbox_asked_each(int32 endpoint_id, int64 seq, OutboxAskedVisit visit,
							  void *arg);

#endif /* OUTBOX_ASKED_H */
