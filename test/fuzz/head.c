/*
 * head.c
 *	  Fuzz target: the head of an answer, line by line.
 *
 * links: src/transport/http/http_head.c src/transport/http/http_url.c src/base/names.c src/transport/host.c src/transport/address.c
 */
#include "transport/http/http_internal.h"

#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	OutboxHead		head = {0};
	OutboxOutcome	outcome = {.retry_after = -1};
	OutboxOutcome	final = outcome;
	OutboxHead		last = {0};
	OutboxHeadState before = head.state;
	int				status = 0;

	while (size > 0)
	{
		const uint8_t  *end = memchr(data, '\n', size);
		size_t			len = end ? (size_t) (end - data) + 1 : size;
		char		   *line = fuzz_copy(data, len);
		OutboxHeadState state = outbox_head_line(&head, &outcome, line, len, 1800000000);

		/* A part of a line, which libcurl may pass on at the end, says nothing. */
		MUST(line[len - 1] == '\n' || state == before || state == OUTBOX_HEAD_OVERSIZED);
		free(line);
		data += len;
		size -= len;
		MUST(state == head.state);
		MUST(head.status >= 0 && head.status <= 1000);
		MUST(outcome.retry_after >= -1 && outcome.retry_after <= PG_INT32_MAX);
		if (state == OUTBOX_HEAD_OVERSIZED)
			break;
		MUST(head.bytes <= 64 * 1024 && head.lines <= 1000);
		if (state == OUTBOX_HEAD_STATUS)
			MUST(outcome.retry_after == -1 && !head.disable && !head.abort_message);
		if (state == OUTBOX_HEAD_COMPLETE)
		{
			MUST(head.status >= 200);
			if (before == OUTBOX_HEAD_COMPLETE)
				/* A trailer does not change the outcome. */
				MUST(status == head.status && final.retry_after == outcome.retry_after &&
					 last.disable == head.disable &&
					 last.abort_message == head.abort_message);
			status = head.status;
			final = outcome;
			last = head;
		}
		else
			MUST(before != OUTBOX_HEAD_COMPLETE);
		before = state;
	}
	return 0;
}
