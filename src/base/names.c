/*
 * names.c
 *	  Owns the rules for topics, patterns, header names and header values.
 *
 * Pure: it uses neither PostgreSQL nor libcurl, so each rule is tested without a
 * server.  The texts that are returned are static and complete "it …".
 */
#include "base/names.h"

#include <string.h>

#define MAX_TOPIC 255 /* OUTBOX_MAX_TOPIC; outbox.h includes postgres.h */

#define RESERVED_PREFIX "outbox."
#define RESERVED_PREFIX_LEN (sizeof(RESERVED_PREFIX) - 1)

static bool
is_segment_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '_' || c == '-';
}

/* Topics and patterns differ in one thing: in a pattern, a segment may be "*". */
static const char *
segments_problem(const char *text, size_t len, bool stars)
{
	size_t start = 0;

	if (len == 0)
		return "it is empty";
	if (len > MAX_TOPIC)
		return "it is longer than 255 bytes";

	for (size_t i = 0; i <= len; i++)
	{
		if (i == len || text[i] == '.')
		{
			if (i == start)
				return "it has an empty segment";
			start = i + 1;
		}
		else if (text[i] == '*' && stars)
		{
			if (i != start || (i + 1 < len && text[i + 1] != '.'))
				return "a \"*\" in it is not a whole segment";
		}
		else if (!is_segment_char(text[i]))
			return stars ?
				"it has a character other than ASCII letters, digits, \"_\", \"-\", \".\" and \"*\"" :
				"it has a character other than ASCII letters, digits, \"_\", \"-\" and \".\"";
	}
	return NULL;
}

const char *
outbox_topic_problem(const char *topic, size_t len)
{
	return segments_problem(topic, len, false);
}

const char *
outbox_pattern_problem(const char *pattern, size_t len)
{
	return segments_problem(pattern, len, true);
}

bool
outbox_topic_reserved(const char *topic, size_t len)
{
	return len >= RESERVED_PREFIX_LEN &&
		memcmp(topic, RESERVED_PREFIX, RESERVED_PREFIX_LEN) == 0;
}

/*
 * No backtracking is needed.  Only a "*" at the end stands for more than one segment,
 * and it matches all the rest of the topic.
 */
bool
outbox_topic_matches(const char *topic, size_t tlen, const char *pattern, size_t plen)
{
	size_t t = 0;
	size_t p = 0;

	if (outbox_topic_reserved(topic, tlen) && !outbox_topic_reserved(pattern, plen))
		return false;

	while (p < plen)
	{
		if (pattern[p] == '*')
		{
			if (t >= tlen)
				return false;
			if (p + 1 == plen)
				return true;
			while (t < tlen && topic[t] != '.')
				t++;
			p++;
		}
		else
		{
			if (t >= tlen || topic[t] != pattern[p])
				return false;
			t++;
			p++;
		}
	}
	return t == tlen;
}

/*
 * Ignores case in ASCII, whatever the locale.  In a Turkish locale, strcasecmp() would
 * accept "TRANSFER-ENCODING".  Receivers behind CGI see no difference between "_" and
 * "-" (RFC 3875, 4.1.18).
 */
static char
fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c + ('a' - 'A');
	return c == '_' ? '-' : c;
}

static bool
name_begins(const char *name, size_t len, const char *prefix)
{
	size_t plen = strlen(prefix);

	if (len < plen)
		return false;
	for (size_t i = 0; i < plen; i++)
		if (fold(name[i]) != fold(prefix[i]))
			return false;
	return true;
}

bool
outbox_header_name_is(const char *name, size_t len, const char *word)
{
	return strlen(word) == len && name_begins(name, len, word);
}

bool
outbox_header_name_among(const char *name, size_t len, char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (outbox_header_name_is(name, len, names[i]))
			return true;
	return false;
}

/* tchar of RFC 9110, section 5.6.2 */
static bool
is_token_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		(c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

const char *
outbox_header_name_problem(const char *name, size_t len, bool from_event)
{
	/* These frame the message or concern the next hop (RFC 9110, 7.6.1). */
	static const char *const framing[] = {"Host",
										  "Content-Length",
										  "Transfer-Encoding",
										  "Connection",
										  "Expect",
										  "Keep-Alive",
										  "Proxy-Connection",
										  "TE",
										  "Trailer",
										  "Upgrade",
										  NULL};

	/* Every request already has these, from the format and the event. */
	static const char *const ours[] = {"Content-Type", "User-Agent", "Idempotency-Key",
									   NULL};
	static const char *const prefixes[] = {"webhook-", "outbox-", "ce-", NULL};

	/* Credentials belong to the endpoint.  An emitter must not set them. */
	static const char *const credentials[] = {"Authorization", "Proxy-Authorization",
											  "Cookie", NULL};

	if (len == 0)
		return "it is empty";
	for (size_t i = 0; i < len; i++)
		if (!is_token_char(name[i]))
			return "it has a character that header names cannot have";

	for (int i = 0; framing[i]; i++)
		if (outbox_header_name_is(name, len, framing[i]))
			return "it belongs to the HTTP connection";
	for (int i = 0; ours[i]; i++)
		if (outbox_header_name_is(name, len, ours[i]))
			return "it is set by outbox itself";
	for (int i = 0; prefixes[i]; i++)
		if (name_begins(name, len, prefixes[i]))
			return "the prefixes \"webhook-\", \"outbox-\" and \"ce-\" belong to outbox itself";
	if (from_event)
		for (int i = 0; credentials[i]; i++)
			if (outbox_header_name_is(name, len, credentials[i]))
				return "credentials can be set on an endpoint only";
	return NULL;
}

const char *
outbox_header_value_problem(const char *value, size_t len)
{
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) value[i];

		if (c < 0x20 || c == 0x7f)
			return "it has a control character";

		/* U+0080 to U+009F: some parsers take one of them for the end of a line. */
		if (c == 0xc2 && i + 1 < len && (unsigned char) value[i + 1] >= 0x80 &&
			(unsigned char) value[i + 1] < 0xa0)
			return "it has a control character";
	}
	return NULL;
}

bool
outbox_topic_in_list(const char *topic, size_t len, char *const *patterns, int n)
{
	for (int i = 0; i < n; i++)
		if (outbox_topic_matches(topic, len, patterns[i], strlen(patterns[i])))
			return true;
	return false;
}
