/*
 * wire.c
 *	  Fuzz target: percent-encoding, and trace context as emitters pass it in.
 *
 * links: src/base/encoding.c
 */
#include "base/outbox.h"

#include "fuzz.h"
#include "base/encoding.h"
#include "../unit/no_server.h"

static int
hex_digit(char c)
{
	MUST((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'));
	return c <= '9' ? c - '0' : c - 'A' + 10;
}

/* decode(encode(x)) = x, and nothing but printable ASCII in between. */
static void
round_trip(size_t (*encode)(const char *s, size_t len, char *out), const char *s,
		   size_t len, const char *forbidden)
{
	char  *out = malloc(3 * len + 1);
	size_t n = encode(s, len, out);
	size_t at = 0;

	MUST(n >= len && n <= 3 * len);
	for (size_t i = 0; i < len; i++)
	{
		MUST(at < n && out[at] > ' ' && out[at] < 0x7f);
		if (out[at] == '%')
		{
			MUST(at + 2 < n);
			MUST((unsigned char) s[i] ==
				 hex_digit(out[at + 1]) * 16 + hex_digit(out[at + 2]));
			at += 3;
		}
		else
		{
			MUST(out[at] == s[i] && strchr(forbidden, s[i]) == NULL);
			at++;
		}
	}
	MUST(at == n);
	free(out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *s = fuzz_copy(data, size);

	round_trip(outbox_percent_encode, s, size, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}");
	round_trip(outbox_percent_encode_header, s, size, "\"%");

	if (outbox_traceparent_valid(s, size))
		for (size_t i = 0; i < size; i++)
			MUST(s[i] > ' ' && s[i] < 0x7f);
	if (outbox_tracestate_valid(s, size))
		for (size_t i = 0; i < size; i++)
			MUST(s[i] >= ' ' && s[i] < 0x7f);
	free(s);
	return 0;
}
