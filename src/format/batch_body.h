#ifndef OUTBOX_BATCH_BODY_H
#define OUTBOX_BATCH_BODY_H

#include "log/log.h"

/* The most bytes of a body, unless a single event has more. */
#define OUTBOX_BATCH_BYTES (1024 * 1024)

/* One event in the body. */
typedef struct OutboxBatchElement
{
	int64	  seq; /* the first, for outbox_compare_int8() */
	pg_uuid_t id;
	size_t	  start; /* where its bytes begin in the body */
	size_t	  len;
} OutboxBatchElement;

typedef struct OutboxBatchBody
{
	MemoryContext		cxt;	 /* has the bytes and the elements */
	MemoryContext		scratch; /* memory for one event */
	OutboxFormat		format;
	int					n;
	OutboxBatchElement *elements; /* in the order of seq, once complete */
	char			   *bytes;
	size_t				len;
	size_t				size; /* of its memory: its account, see memory.h */
} OutboxBatchBody;

/* Makes an empty body for at most 'max' events, in memory of 'cxt'. */
extern void outbox_batch_body_init(OutboxBatchBody *b, MemoryContext cxt,
								   OutboxFormat format, int max);

/* Ends the body's account.  Its memory is freed with its context. */
extern void outbox_batch_body_forget(OutboxBatchBody *b);

/*
 * Appends an event, which has its payload.  Returns NULL, or the reason why the event
 * can never be sent.  Sets '*full' to true if the event does not fit any more: nothing
 * is then appended.
 */
extern const char *outbox_batch_body_append(OutboxBatchBody *b, OutboxEvent *event,
											bool *full);

/*
 * Completes the body: puts the events in order.  Writes the id of the batch,
 * OUTBOX_ID_SIZE bytes.
 */
extern void outbox_batch_body_complete(OutboxBatchBody *b, char *id);

#endif /* OUTBOX_BATCH_BODY_H */
