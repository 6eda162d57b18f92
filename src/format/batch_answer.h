/*
 * batch_answer.h
 *	  What the body of a 2xx answer to a batch says.  Pure: foreign bytes in, a
 *	  judgement out.
 */
#ifndef OUTBOX_BATCH_ANSWER_H
#define OUTBOX_BATCH_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

typedef enum OutboxBatchAnswer
{
	OUTBOX_ANSWER_ALL,		/* acknowledges the whole batch */
	OUTBOX_ANSWER_SOME,		/* all but those that were named */
	OUTBOX_ANSWER_MALFORMED /* nobody knows what it acknowledges */
} OutboxBatchAnswer;

/*
 * Called for each "itemIdentifier", in its order, perhaps more than once for the
 * same one.  False: there is none such, and the answer is malformed.
 */
typedef bool (*OutboxBatchNamed)(void *arg, const char *id, size_t len);

extern OutboxBatchAnswer outbox_batch_answer(const char *body, size_t len,
											 OutboxBatchNamed named, void *arg);

#endif /* OUTBOX_BATCH_ANSWER_H */
