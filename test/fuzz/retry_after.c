/*
 * retry_after.c
 *	  Fuzz target: the value of Retry-After.
 *
 * links: src/transport/http/http_url.c src/base/names.c src/transport/host.c src/transport/address.c
 */
#include "transport/http/http.h"

#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const int64 now = 1800000000;
	char	   *value = fuzz_copy(data, size);
	char	   *padded = malloc(size + 3);
	int64		seconds = outbox_http_retry_after(value, size, now);
	bool		digits = size > 0;

	MUST(seconds >= -1 && seconds <= PG_INT32_MAX);

	/*
	 * Blanks around the value have no effect, and the current time has none on
	 * seconds.
	 */
	padded[0] = ' ';
	memcpy(padded + 1, value, size);
	memcpy(padded + 1 + size, "\r\n", 2);
	MUST(outbox_http_retry_after(padded, size + 3, now) == seconds);
	for (size_t i = 0; i < size; i++)
		digits = digits && value[i] >= '0' && value[i] <= '9';
	if (digits)
		MUST(seconds >= 0 && outbox_http_retry_after(value, size, 0) == seconds);
	else if (seconds > 0)
		/* For a date: a minute earlier, the wait is a minute longer. */
		MUST(outbox_http_retry_after(value, size, now - 60) >= seconds);

	free(padded);
	free(value);
	return 0;
}
