/*
 * batch_answer.h
 *	  The meaning of the body of a 2xx answer to a batch.  Pure: it depends on its
 *	  arguments alone, and is tested without a server.
 */
#ifndef OUTBOX_BATCH_ANSWER_H
#define OUTBOX_BATCH_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

typedef enum OutboxBatchAnswer
{
	OUTBOX_ANSWER_ALL,		/* acknowledges the whole batch */
	OUTBOX_ANSWER_SOME,		/* acknowledges all but the named events */
	OUTBOX_ANSWER_MALFORMED /* unknown which events it acknowledges */
} OutboxBatchAnswer;

/*
 * Called for each "itemIdentifier", in their order, perhaps more than once for the
 * same one.  Returns false if the batch has no such event: the answer is then
 * malformed.
 */
typedef bool (*OutboxBatchNamed)(void *arg, const char *id, size_t len);

/* Reads the answer.  Allocates nothing, does not throw. */
extern OutboxBatchAnswer outbox_batch_answer(const char *body, size_t len,
											 OutboxBatchNamed named, void *arg);

/*
 * Writes a string or number of that name, of the object that an answer is, into 'text'.
 * False: there is none, or it does not fit into 'size' bytes with its NUL.
 */
extern bool outbox_answer_member(const char *body, size_t len, const char *name,
								 char *text, size_t size);

#endif /* OUTBOX_BATCH_ANSWER_H */
