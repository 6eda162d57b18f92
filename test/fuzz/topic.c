/*
 * topic.c
 *	  Fuzz target: topics, patterns, header names and values.
 *
 *	  A zero byte divides the topic (or name) from the pattern (or value).
 *
 * links: src/base/names.c
 */
#include <stdbool.h>

#include "fuzz.h"
#include "base/names.h"

/* The rules of the documents, written in another way: segment by segment. */
static bool
matches(const char *topic, size_t tlen, const char *pattern, size_t plen)
{
	while (true)
	{
		const char *tdot = memchr(topic, '.', tlen);
		const char *pdot = memchr(pattern, '.', plen);
		size_t		t = tdot ? (size_t) (tdot - topic) : tlen;
		size_t		p = pdot ? (size_t) (pdot - pattern) : plen;
		bool		star = p == 1 && pattern[0] == '*';

		if (star && !pdot)
			return true;
		if (!star && (t != p || memcmp(topic, pattern, t) != 0))
			return false;
		if (!tdot || !pdot)
			return !tdot && !pdot;
		topic += t + 1;
		tlen -= t + 1;
		pattern += p + 1;
		plen -= p + 1;
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *zero = size ? memchr(data, '\0', size) : NULL;
	size_t		   alen = zero ? (size_t) (zero - data) : size;
	size_t		   blen = zero ? size - alen - 1 : 0;
	char		  *a = fuzz_copy(data, alen);
	char		  *b = fuzz_copy(data + size - blen, blen);
	bool		   matched = outbox_topic_matches(a, alen, b, blen);

	if (outbox_topic_problem(a, alen) == NULL)
	{
		MUST(alen > 0 && alen <= 255);
		MUST(outbox_pattern_problem(a, alen) == NULL);
		MUST(outbox_topic_matches(a, alen, a, alen));
		MUST(outbox_topic_matches(a, alen, "*", 1) == !outbox_topic_reserved(a, alen));
		if (outbox_pattern_problem(b, blen) == NULL)
			MUST(matched ==
				 (matches(a, alen, b, blen) &&
				  (!outbox_topic_reserved(a, alen) || outbox_topic_reserved(b, blen))));
	}
	if (outbox_header_name_problem(a, alen, true) == NULL)
	{
		MUST(outbox_header_name_problem(a, alen, false) == NULL);
		for (size_t i = 0; i < alen; i++)
			MUST(a[i] > ' ' && a[i] < 0x7f &&
				 strchr("()<>@,;:\\\"/[]?={}", a[i]) == NULL);
	}
	if (outbox_header_value_problem(b, blen) == NULL)
		for (size_t i = 0; i < blen; i++)
		{
			MUST((unsigned char) b[i] >= ' ' && b[i] != 0x7f);
			MUST(i + 1 == blen || memcmp(b + i, "\xc2\x80", 2) < 0 ||
				 memcmp(b + i, "\xc2\x9f", 2) > 0);
		}
	free(a);
	free(b);
	return 0;
}
