/*
 * batch_answer.c
 *	  Fuzz target: the body of a 2xx answer to a batch.
 *
 * links: src/base/json_read.c src/format/batch_answer.c
 */
#include "format/batch_answer.h"
#include "fuzz.h"

typedef struct Named
{
	const char *body;
	size_t		len;
	int			n;
} Named;

/* Ids are as the receiver wrote them.  One that begins with "x" is unknown. */
static bool
named(void *arg, const char *id, size_t len)
{
	Named	*seen = arg;
	unsigned sum = 0;

	/* Reads all bytes, so that AddressSanitizer notices one too many. */
	for (size_t i = 0; i < len; i++)
		sum += (unsigned char) id[i];
	MUST(len <= seen->len && sum <= 255 * len);
	seen->n++;
	return len == 0 || id[0] != 'x';
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char			 *body = fuzz_copy(data, size);
	Named			  first = {body, size, 0};
	Named			  second = {body, size, 0};
	OutboxBatchAnswer answer = outbox_batch_answer(body, size, named, &first);

	MUST(answer == OUTBOX_ANSWER_ALL || answer == OUTBOX_ANSWER_SOME ||
		 answer == OUTBOX_ANSWER_MALFORMED);
	if (answer == OUTBOX_ANSWER_SOME)
		MUST(first.n > 0);
	if (answer == OUTBOX_ANSWER_ALL)
		MUST(first.n == 0);

	/* A second call gives the same result, because nothing is kept. */
	MUST(outbox_batch_answer(body, size, named, &second) == answer &&
		 second.n == first.n);
	free(body);
	return 0;
}
