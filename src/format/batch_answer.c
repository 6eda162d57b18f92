/*
 * batch_answer.c
 *	  Reads the answer of a receiver to a batch: which of its events failed.
 *
 *	  {"batchItemFailures": [{"itemIdentifier": "<event id>"}, ...]}
 *
 * is AWS Lambda's partial batch response.  As there, an empty or null list and an
 * object without one acknowledge everything.  So does any other text.  Three answers
 * acknowledge nothing, because the receiver may have meant a failure: one that begins
 * like an object and is not JSON, a list of another form, and an id that is not in the
 * batch.
 *
 * The bytes are not trusted.  They are read once, front to back, without recursion,
 * allocation or any function of the server.
 */
#include "format/batch_answer.h"

#include <string.h>

/* Deeper than any real answer.  Each level takes one bit. */
#define MAX_DEPTH 64

/* Longer than any name that is searched.  More of a string is not kept. */
#define MAX_NAME 64

typedef struct Scanner
{
	const unsigned char *p;
	const unsigned char *end;
	char				*name;	   /* the last string, without its escapes */
	size_t				 max;	   /* bytes of it that are kept */
	size_t				 name_len; /* max + 1: the string was too long to be kept */
} Scanner;

static void
skip_space(Scanner *s)
{
	while (s->p < s->end &&
		   (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
		s->p++;
}

/* The next byte that is not white space, without taking it.  0 at the end. */
static unsigned char
peek(Scanner *s)
{
	skip_space(s);
	return s->p < s->end ? *s->p : 0;
}

static bool
take(Scanner *s, unsigned char c)
{
	if (peek(s) != c || c == 0)
		return false;
	s->p++;
	return true;
}

static void
keep(Scanner *s, unsigned char c)
{
	if (s->name_len < s->max)
		s->name[s->name_len++] = (char) c;
	else
		s->name_len = s->max + 1;
}

static int
hex_digit(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/*
 * Takes the four digits of "\u".  A character outside ASCII is in no name that is
 * searched.
 */
static bool
take_unicode(Scanner *s)
{
	int code = 0;

	for (int i = 0; i < 4; i++)
	{
		int digit = s->p < s->end ? hex_digit(*s->p) : -1;

		if (digit < 0)
			return false;
		code = code * 16 + digit;
		s->p++;
	}
	keep(s, code < 0x80 ? (unsigned char) code : 0xff);
	return true;
}

static bool
take_escape(Scanner *s)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char		 *at;

	if (s->p == s->end)
		return false;
	if (*s->p == 'u')
	{
		s->p++;
		return take_unicode(s);
	}
	at = *s->p ? strchr(from, *s->p) : NULL;
	if (at == NULL)
		return false;
	keep(s, (unsigned char) to[at - from]);
	s->p++;
	return true;
}

static bool
take_string(Scanner *s)
{
	s->name_len = 0;
	if (!take(s, '"'))
		return false;
	while (s->p < s->end)
	{
		unsigned char c = *s->p++;

		if (c == '"')
			return true;
		if (c < 0x20)
			return false;
		if (c != '\\')
			keep(s, c);
		else if (!take_escape(s))
			return false;
	}
	return false;
}

static bool
name_is(const Scanner *s, const char *name)
{
	return s->name_len == strlen(name) && memcmp(s->name, name, s->name_len) == 0;
}

static bool
take_digits(Scanner *s)
{
	const unsigned char *from = s->p;

	while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
		s->p++;
	return s->p > from;
}

static bool
take_number(Scanner *s)
{
	if (s->p < s->end && *s->p == '-')
		s->p++;
	if (s->p < s->end && *s->p == '0')
		s->p++;
	else if (!take_digits(s))
		return false;
	if (s->p < s->end && *s->p == '.')
	{
		s->p++;
		if (!take_digits(s))
			return false;
	}
	if (s->p < s->end && (*s->p == 'e' || *s->p == 'E'))
	{
		s->p++;
		if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
			s->p++;
		if (!take_digits(s))
			return false;
	}
	return true;
}

static bool
take_word(Scanner *s, const char *word)
{
	size_t len = strlen(word);

	if ((size_t) (s->end - s->p) < len || memcmp(s->p, word, len) != 0)
		return false;
	s->p += len;
	return true;
}

static bool
take_scalar(Scanner *s)
{
	switch (peek(s))
	{
		case '"':
			return take_string(s);
		case 't':
			return take_word(s, "true");
		case 'f':
			return take_word(s, "false");
		case 'n':
			return take_word(s, "null");
		default:
			return take_number(s);
	}
}

/*
 * Skips any value.  'open' has one bit for each open container, which is set for an
 * object.  The innermost container has the lowest bit.
 */
static bool
skip_value(Scanner *s)
{
	unsigned long long open = 0;
	int				   depth = 0;

	for (;;)
	{
		bool object = take(s, '{');

		if (object || take(s, '['))
		{
			if (depth == MAX_DEPTH)
				return false;
			open = open << 1 | (object ? 1 : 0);
			depth++;
			if (!take(s, object ? '}' : ']'))
			{
				if (object && !(take_string(s) && take(s, ':')))
					return false;
				continue;
			}
			open >>= 1;
			depth--;
		}
		else if (!take_scalar(s))
			return false;

		/* A value has ended, and perhaps the containers around it. */
		while (depth > 0 && !take(s, ','))
		{
			if (!take(s, open & 1 ? '}' : ']'))
				return false;
			open >>= 1;
			depth--;
		}
		if (depth == 0)
			return true;
		if ((open & 1) && !(take_string(s) && take(s, ':')))
			return false;
	}
}

/* {"itemIdentifier": "..."}.  Other members are ignored. */
static bool
take_item(Scanner *s, OutboxBatchNamed named, void *arg)
{
	bool found = false;

	if (!take(s, '{'))
		return false;
	do
	{
		if (!take_string(s))
			return false;
		if (name_is(s, "itemIdentifier"))
		{
			if (!take(s, ':') || !take_string(s) || s->name_len > s->max ||
				!named(arg, s->name, s->name_len))
				return false;
			found = true;
		}
		else if (!take(s, ':') || !skip_value(s))
			return false;
	} while (take(s, ','));
	return take(s, '}') && found;
}

/* The list, or null.  Sets '*some' if the list is not empty. */
static bool
take_list(Scanner *s, OutboxBatchNamed named, void *arg, bool *some)
{
	if (peek(s) == 'n')
		return take_word(s, "null");
	if (!take(s, '['))
		return false;
	if (take(s, ']'))
		return true;
	*some = true;
	do
	{
		if (!take_item(s, named, arg))
			return false;
	} while (take(s, ','));
	return take(s, ']');
}

static bool
take_answer(Scanner *s, OutboxBatchNamed named, void *arg, bool *some)
{
	if (!take(s, '{'))
		return false;
	if (!take(s, '}'))
	{
		do
		{
			bool list;

			if (!take_string(s))
				return false;
			list = name_is(s, "batchItemFailures");
			if (!take(s, ':') || !(list ? take_list(s, named, arg, some) : skip_value(s)))
				return false;
		} while (take(s, ','));
		if (!take(s, '}'))
			return false;
	}
	skip_space(s);
	return s->p == s->end;
}

OutboxBatchAnswer
outbox_batch_answer(const char *body, size_t len, OutboxBatchNamed named, void *arg)
{
	char	name[MAX_NAME];
	Scanner s = {(const unsigned char *) body, (const unsigned char *) body + len, name,
				 MAX_NAME, 0};
	bool	some = false;

	if (len >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0)
		s.p += 3; /* a byte order mark */
	skip_space(&s);
	if (s.p == s.end)
		return OUTBOX_ANSWER_ALL;

	/* 0, 0xfe or 0xff begin a text in UTF-16 or UTF-32, which may be an object. */
	if (*s.p != '{')
		return *s.p == 0 || *s.p >= 0xfe ? OUTBOX_ANSWER_MALFORMED : OUTBOX_ANSWER_ALL;
	if (!take_answer(&s, named, arg, &some))
		return OUTBOX_ANSWER_MALFORMED;
	return some ? OUTBOX_ANSWER_SOME : OUTBOX_ANSWER_ALL;
}

/* A string, or the text of a number, becomes the last string. */
static bool
take_text(Scanner *s)
{
	const unsigned char *from;

	if (peek(s) == '"')
		return take_string(s);
	from = s->p;
	s->name_len = 0;
	if (!take_number(s))
		return false;
	while (from < s->p)
		keep(s, *from++);
	return true;
}

bool
outbox_answer_member(const char *body, size_t len, const char *name, char *text,
					 size_t size)
{
	Scanner s = {(const unsigned char *) body, (const unsigned char *) body + len, text,
				 size - 1, 0};

	if (!take(&s, '{'))
		return false;
	do
	{
		bool found;

		if (!take_string(&s))
			return false;
		found = name_is(&s, name);
		if (!take(&s, ':'))
			return false;
		if (found)
		{
			found = take_text(&s) && s.name_len <= s.max;
			text[found ? s.name_len : 0] = '\0';
			return found;
		}
		if (!skip_value(&s))
			return false;
	} while (take(&s, ','));
	return false;
}
