/*
 * fuzz.h
 *	  What the fuzz targets share.  A target defines LLVMFuzzerTestOneInput().  It
 *	  is linked with libFuzzer ("make fuzz"), or with driver.c.
 *
 * A target names what it is linked with in a comment, "links: src/…".  Inputs are
 * copied into blocks of exactly their size, so that AddressSanitizer notices every
 * byte that is read beyond them.
 */
#ifndef OUTBOX_FUZZ_H
#define OUTBOX_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Aborts if the condition is false, which must hold for every input. */
#define MUST(condition) \
	do \
	{ \
		if (!(condition)) \
		{ \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, \
					#condition); \
			abort(); \
		} \
	} while (0)

/* Returns a copy in a block of exactly this size, not terminated. */
static inline char *
fuzz_copy(const void *data, size_t size)
{
	char *copy = malloc(size ? size : 1);

	memcpy(copy, data, size);
	return copy;
}

/* Returns a terminated copy, up to the first zero byte. */
static inline char *
fuzz_string(const void *data, size_t size)
{
	size_t len = strnlen(data, size);
	char  *copy = malloc(len + 1);

	memcpy(copy, data, len);
	copy[len] = '\0';
	return copy;
}

#endif /* OUTBOX_FUZZ_H */
