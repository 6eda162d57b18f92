#ifndef OUTBOX_BATCH_H
#define OUTBOX_BATCH_H

#include "endpoint/endpoint.h"
#include "format/batch_body.h"

/* Attempts of each member after which a batch that failed as a whole is split. */
#define OUTBOX_BATCH_TRIES 3

typedef enum OutboxMemberResult
{
	OUTBOX_MEMBER_DELIVERED,
	OUTBOX_MEMBER_FAILED,
	OUTBOX_MEMBER_HELD /* an earlier member of its lane failed */
} OutboxMemberResult;

typedef struct OutboxMember
{
	OutboxDelivery	  *delivery;
	OutboxMemberResult judgement;
} OutboxMember;

typedef struct OutboxBatch
{
	OutboxEndpoint		  *endpoint;
	MemoryContext		   cxt; /* of the batch and everything in it */
	MemoryContextCallback  end;
	size_t				   request_bytes; /* memory of the request besides its body */
	int					   n;
	int					   max;
	OutboxMember		  *members; /* in the order of the body */
	OutboxBatchBody		   body;
	bool				   held_up; /* true if it cannot be sent now: a payload cannot be
									* read yet, or memory is short */
	char				   id[OUTBOX_ID_SIZE];
	int					   attempt;	  /* number of the next attempt of the member that has
									* most */
	const OutboxTransport *transport; /* of the transfer */
	OutboxTransfer		  *transfer;
	bool				   whole_failed; /* true if the request failed, not single
										 * members */
	const char			  *error;		 /* of the members that failed */
} OutboxBatch;

/*
 * Puts the next batch that may be sent now in flight and returns it.  NULL:
 * '*nothing' is true if there is nothing to send now, false if memory or a payload
 * is missing.  'request_bytes' is the memory of the request besides its body.  Must
 * be called outside of a transaction.
 */
extern OutboxBatch *outbox_batch_next(OutboxEndpoint *ep, size_t request_bytes,
									  TimestampTz now, bool *nothing);

/*
 * Returns until when the first ready delivery waits for others of its batch.
 * DT_NOEND: it does not wait.
 */
extern TimestampTz outbox_batch_due(OutboxEndpoint *ep, TimestampTz now);

/*
 * The request was not made, or was cancelled: puts the members back to where they
 * were, and frees the batch.
 */
extern void outbox_batch_put_back(OutboxBatch *b);

/* Ends the flight of a batch: its members are on no list then. */
extern void outbox_batch_land(OutboxBatch *b);

/*
 * In batch_outcome.c.  The batch can never be sent: makes its members dead and
 * frees it.
 */
extern void outbox_batch_dead(OutboxBatch *b, const char *reason, const char *error);

/*
 * An answer has come.  outbox_batch_judge() notes the result of each member.
 * outbox_batch_error() returns that in words.  NULL: the member was delivered.
 * outbox_batch_done() acts on it and frees the batch.
 */
extern void		   outbox_batch_judge(OutboxBatch *b, const OutboxOutcome *o);
extern const char *outbox_batch_error(const OutboxBatch *b, int i);
extern void outbox_batch_done(OutboxBatch *b, const OutboxOutcome *o, TimestampTz now);

#endif /* OUTBOX_BATCH_H */
