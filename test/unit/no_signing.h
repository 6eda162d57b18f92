/*
 * no_signing.h
 *	  Stands in for functions of the server that profile.c and signature.c call.
 */
#include "utils/builtins.h"
#include "utils/memutils.h"

MemoryContext TopMemoryContext = NULL;
MemoryContext CurrentMemoryContext = NULL;

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	(void) context;
	return calloc(1, size);
}

int
pg_lltoa(int64 value, char *a)
{
	return sprintf(a, "%lld", (long long) value);
}

/* Nothing in the queries of this test has to be encoded. */
size_t
outbox_percent_encode(const char *s, size_t len, char *out)
{
	memcpy(out, s, len);
	return len;
}

uint64
hex_encode(const char *src, size_t len, char *dst)
{
	for (size_t i = 0; i < len; i++)
	{
		static const char digits[] = "0123456789abcdef";

		*dst++ = digits[(unsigned char) src[i] >> 4];
		*dst++ = digits[(unsigned char) src[i] & 15];
	}
	return 2 * len;
}
