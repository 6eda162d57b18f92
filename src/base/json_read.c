/*
 * json_read.c
 *	  Owns reading JSON of a stranger.
 *
 * The text is read once, front to back, without recursion, allocation or any function of
 * the server.  The stack is an array, and the kept part of a text is bounded.
 */
#include "base/json_read.h"

#include <stdint.h>
#include <string.h>

typedef struct Reader
{
	const char	  *p;
	const char	  *end;
	OutboxJsonTake take;
	void		  *arg;
	int			   depth;
	bool		   cut;
	char		   closers[OUTBOX_JSON_DEPTH]; /* the character that ends each level */
	char		   name[OUTBOX_JSON_NAME];
	char		   value[OUTBOX_JSON_VALUE];
} Reader;

static void
skip_blanks(Reader *r)
{
	while (r->p < r->end &&
		   (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
		r->p++;
}

/* Appends as UTF-8, as far as there is room. */
static void
put(Reader *r, char *out, size_t size, size_t *n, uint32_t c)
{
	size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	r->cut = r->cut || *n + bytes >= size;
	if (r->cut)
		return;
	if (bytes == 1)
		out[(*n)++] = (char) c;
	else
	{
		out[(*n)++] = (char) (0xf00 >> bytes | c >> (6 * (bytes - 1)));
		for (size_t i = bytes - 1; i-- > 0;)
			out[(*n)++] = (char) (0x80 | (c >> (6 * i) & 0x3f));
	}
	out[*n] = '\0';
}

static bool
read_hex(Reader *r, uint32_t *c)
{
	*c = 0;
	if (r->end - r->p < 4)
		return false;
	for (int i = 0; i < 4; i++, r->p++)
	{
		int digit = *r->p >= '0' && *r->p <= '9' ? *r->p - '0' :
			*r->p >= 'a' && *r->p <= 'f'		 ? *r->p - 'a' + 10 :
			*r->p >= 'A' && *r->p <= 'F'		 ? *r->p - 'A' + 10 :
												   -1;

		if (digit < 0)
			return false;
		*c = *c << 4 | (uint32_t) digit;
	}
	return true;
}

/* Behind a backslash.  Half of a pair becomes a question mark. */
static bool
read_escape(Reader *r, char *out, size_t size, size_t *n)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char		 *known;
	uint32_t		  c;
	uint32_t		  low;

	if (r->p == r->end)
		return false;
	if (*r->p != 'u')
	{
		known = *r->p ? strchr(from, *r->p) : NULL;
		if (known == NULL)
			return false;
		put(r, out, size, n, (unsigned char) to[known - from]);
		r->p++;
		return true;
	}
	r->p++;
	if (!read_hex(r, &c))
		return false;
	if (c >= 0xd800 && c <= 0xdbff && r->end - r->p >= 6 && r->p[0] == '\\' &&
		r->p[1] == 'u')
	{
		r->p += 2;
		if (!read_hex(r, &low))
			return false;
		c = low >= 0xdc00 && low <= 0xdfff ?
			0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00) :
			'?';
	}
	put(r, out, size, n, c == 0 || (c >= 0xd800 && c <= 0xdfff) ? '?' : c);
	return true;
}

/* Keeps a byte as it is. */
static void
keep(Reader *r, char *out, size_t size, size_t *n, char c)
{
	r->cut = r->cut || *n + 1 >= size;
	if (r->cut)
		return;
	out[(*n)++] = c;
	out[*n] = '\0';
}

static bool
read_string(Reader *r, char *out, size_t size)
{
	size_t n = 0;

	out[0] = '\0';
	r->cut = false;
	if (r->p == r->end || *r->p++ != '"')
		return false;
	while (r->p < r->end && *r->p != '"')
	{
		if ((unsigned char) *r->p < 0x20)
			return false;
		if (*r->p != '\\')
			keep(r, out, size, &n, *r->p++);
		else
		{
			r->p++;
			if (!read_escape(r, out, size, &n))
				return false;
		}
	}
	if (r->p == r->end)
		return false;
	r->p++;
	return true;
}

static bool
skip_digits(Reader *r)
{
	const char *from = r->p;

	while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
		r->p++;
	return r->p > from;
}

static bool
skip_if(Reader *r, const char *one_of)
{
	if (r->p == r->end || *r->p == '\0' || strchr(one_of, *r->p) == NULL)
		return false;
	r->p++;
	return true;
}

static bool
skip_number(Reader *r)
{
	(void) skip_if(r, "-");
	if (!skip_if(r, "0") && !skip_digits(r))
		return false;
	if (skip_if(r, ".") && !skip_digits(r))
		return false;
	if (!skip_if(r, "eE"))
		return true;
	(void) skip_if(r, "+-");
	return skip_digits(r);
}

static bool
skip_word(Reader *r)
{
	static const char *const words[] = {"true", "false", "null"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
	{
		size_t len = strlen(words[i]);

		if ((size_t) (r->end - r->p) >= len && memcmp(r->p, words[i], len) == 0)
		{
			r->p += len;
			return true;
		}
	}
	return false;
}

static void
report(Reader *r, OutboxJsonKind kind)
{
	OutboxJsonItem item = {kind, r->depth, r->name, r->value, r->cut};

	if (r->take)
		r->take(r->arg, &item);
}

/* Reports an object or array. */
static void
report_level(Reader *r, OutboxJsonKind kind)
{
	r->value[0] = '\0';
	r->cut = false;
	report(r, kind);
}

static bool
read_number_or_word(Reader *r)
{
	const char *from = r->p;
	bool		word = skip_word(r);
	size_t		n = 0;

	if (!word && !skip_number(r))
		return false;
	r->cut = false;
	while (from < r->p)
		keep(r, r->value, sizeof(r->value), &n, *from++);
	report(r, word ? OUTBOX_JSON_WORD : OUTBOX_JSON_NUMBER);
	return true;
}

/* Begins a value.  An object or array stays open. */
static bool
read_value(Reader *r)
{
	bool is_object;

	if (r->p == r->end)
		return false;
	if (*r->p == '"')
	{
		if (!read_string(r, r->value, sizeof(r->value)))
			return false;
		report(r, OUTBOX_JSON_STRING);
		return true;
	}
	is_object = *r->p == '{';
	if (!is_object && *r->p != '[')
		return read_number_or_word(r);
	if (r->depth == OUTBOX_JSON_DEPTH)
		return false;
	report_level(r, is_object ? OUTBOX_JSON_BEGIN_OBJECT : OUTBOX_JSON_BEGIN_ARRAY);
	r->closers[r->depth++] = is_object ? '}' : ']';
	r->p++;
	return true;
}

/*
 * Reads on within the innermost object or array: its end, or one more value.  'first':
 * nothing is in it yet.
 */
static bool
read_next(Reader *r, bool *first)
{
	char closer = r->closers[r->depth - 1];

	skip_blanks(r);
	if (r->p == r->end)
		return false;
	if (*r->p == closer)
	{
		r->p++;
		r->depth--;
		r->name[0] = '\0';
		report_level(r, closer == '}' ? OUTBOX_JSON_END_OBJECT : OUTBOX_JSON_END_ARRAY);
		*first = false;
		return true;
	}
	if (!*first)
	{
		if (*r->p++ != ',')
			return false;
		skip_blanks(r);
	}
	r->name[0] = '\0';
	if (closer == '}')
	{
		if (!read_string(r, r->name, sizeof(r->name)))
			return false;
		skip_blanks(r);
		if (r->p == r->end || *r->p++ != ':')
			return false;
		skip_blanks(r);
	}
	*first = r->p < r->end && (*r->p == '{' || *r->p == '[');
	return read_value(r);
}

bool
outbox_json_read(const char *data, size_t len, OutboxJsonTake take, void *arg)
{
	Reader r = {.p = data, .end = data + len, .take = take, .arg = arg};
	bool   first = true;

	skip_blanks(&r);
	if (!read_value(&r))
		return false;
	while (r.depth > 0)
		if (!read_next(&r, &first))
			return false;
	skip_blanks(&r);
	return r.p == r.end;
}
