/*
 * batch.h
 *	  Deliveries that go in one request.
 */
#ifndef OUTBOX_BATCH_H
#define OUTBOX_BATCH_H

#include "endpoint/endpoint.h"
#include "format/batch_body.h"

/* Failures of a whole batch after which it is split. */
#define OUTBOX_BATCH_TRIES 3

typedef enum OutboxMemberResult
{
	OUTBOX_MEMBER_DELIVERED,
	OUTBOX_MEMBER_FAILED,
	OUTBOX_MEMBER_HELD /* behind a failed one of its lane */
} OutboxMemberResult;

typedef struct OutboxMember
{
	OutboxDelivery	  *delivery;
	OutboxMemberResult judgement;
} OutboxMember;

typedef struct OutboxBatch
{
	OutboxEndpoint		 *endpoint;
	MemoryContext		  cxt; /* of this and of everything below */
	MemoryContextCallback end;
	size_t				  request_bytes; /* what its request takes besides the body */
	int					  n;
	int					  max;
	OutboxMember		 *members; /* as they were collected */
	OutboxBatchBody		  body;
	bool				  held_up; /* a member cannot be read now: later */
	char				  id[OUTBOX_ID_SIZE];
	int					  attempt; /* of the member that was tried most */
	OutboxTransfer		 *transfer;
	bool				  whole_failed; /* the request, not single members */
	const char			 *error;		/* of those that failed */
} OutboxBatch;

/*
 * The next one to send now, taken in flight; NULL: none, '*nothing', or not now.
 * 'request_bytes': what the request takes besides its body.
 */
extern OutboxBatch *outbox_batch_next(OutboxEndpoint *ep, size_t request_bytes,
									  TimestampTz now, bool *nothing);

/* Until when the oldest ready delivery waits for others; DT_NOEND: for nothing. */
extern TimestampTz outbox_batch_due(OutboxEndpoint *ep, TimestampTz now);

/* Not sent, or cancelled: its members are where they were before. */
extern void outbox_batch_put_back(OutboxBatch *b);

/* In flight no more; its members are on no list. */
extern void outbox_batch_land(OutboxBatch *b);

/*
 * batch_outcome.c: it cannot be sent at all: its members are dead.
 */
extern void outbox_batch_dead(OutboxBatch *b, const char *reason, const char *error);

/*
 * An answer: first what it says of each member, then what follows from that,
 * which frees the batch.
 */
extern void		   outbox_batch_judge(OutboxBatch *b, const OutboxOutcome *o);
extern const char *outbox_batch_error(const OutboxBatch *b, int i); /* NULL: none */
extern void outbox_batch_done(OutboxBatch *b, const OutboxOutcome *o, TimestampTz now);

#endif /* OUTBOX_BATCH_H */
