/*
 * batch_body.h
 *	  The body of a request that carries several events, while it grows.
 */
#ifndef OUTBOX_BATCH_BODY_H
#define OUTBOX_BATCH_BODY_H

#include "log/log.h"

/* A body has at most so many bytes, unless one event alone has more. */
#define OUTBOX_BATCH_BYTES (1024 * 1024)

/* One event in the body. */
typedef struct OutboxBatchElement
{
	int64	  seq;
	pg_uuid_t id;
	size_t	  start; /* of its bytes in the body */
	size_t	  len;
} OutboxBatchElement;

typedef struct OutboxBatchBody
{
	MemoryContext		cxt;	 /* of the bytes and the elements */
	MemoryContext		scratch; /* of what is needed for one event only */
	OutboxFormat		format;
	int					n;
	OutboxBatchElement *elements; /* by seq, once it is complete */
	char			   *bytes;
	size_t				len;
	size_t				size; /* of its memory: its account, see memory.h */
} OutboxBatchBody;

/* An empty one, for at most 'max' events, in memory of 'cxt'. */
extern void outbox_batch_body_init(OutboxBatchBody *b, MemoryContext cxt,
								   OutboxFormat format, int max);

/* Its memory is freed with its context: it is counted no more. */
extern void outbox_batch_body_forget(OutboxBatchBody *b);

/*
 * Appends an event, which has its payload, or says why that one can never be
 * sent.  '*full': it does not fit any more, and nothing was appended.
 */
extern const char *outbox_batch_body_append(OutboxBatchBody *b, OutboxEvent *event,
											bool *full);

/*
 * No event comes any more: puts them in order, and writes the id of the batch,
 * OUTBOX_ID_SIZE bytes.
 */
extern void outbox_batch_body_complete(OutboxBatchBody *b, char *id);

#endif /* OUTBOX_BATCH_BODY_H */
