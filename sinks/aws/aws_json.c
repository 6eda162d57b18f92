/*
 * aws_json.c
 *	  Owns reading JSON.
 *
 * The text comes from a stranger.  The stack is an array, and the kept part of a text
 * is bounded.
 */
#include "aws_json.h"

#include <stdint.h>
#include <string.h>

typedef struct Reader
{
	const char *p;
	const char *end;
	AwsJsonItem item;
	void	   *arg;
	int			depth;
	char		closers[AWS_JSON_DEPTH]; /* the character that ends each level */
	char		name[AWS_JSON_NAME];
	char		value[AWS_JSON_VALUE];
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
put(char *out, size_t size, size_t *n, uint32_t c)
{
	size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	if (*n + bytes >= size)
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
		put(out, size, n, (unsigned char) to[known - from]);
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
	put(out, size, n, c == 0 || (c >= 0xd800 && c <= 0xdfff) ? '?' : c);
	return true;
}

static bool
read_string(Reader *r, char *out, size_t size)
{
	size_t n = 0;

	out[0] = '\0';
	if (r->p == r->end || *r->p++ != '"')
		return false;
	while (r->p < r->end && *r->p != '"')
	{
		if ((unsigned char) *r->p < 0x20)
			return false;
		if (*r->p == '\\')
		{
			r->p++;
			if (!read_escape(r, out, size, &n))
				return false;
			continue;
		}
		if (n + 1 < size)
		{
			out[n++] = *r->p;
			out[n] = '\0';
		}
		r->p++;
	}
	if (r->p == r->end)
		return false;
	r->p++;
	return true;
}

/* A number, true, false or null.  Of a number only its characters are checked. */
static bool
read_other(Reader *r)
{
	static const char *const words[] = {"true", "false", "null"};
	size_t					 n = 0;
	bool					 is_number;

	while (r->p < r->end && *r->p != '\0' &&
		   strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *r->p))
	{
		if (n + 1 < AWS_JSON_VALUE)
			r->value[n++] = *r->p;
		r->p++;
	}
	r->value[n] = '\0';
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(r->value, words[i]) == 0)
			return true;
	is_number = n > 0 && r->value[strspn(r->value, "+-.0123456789eE")] == '\0';
	return is_number && strpbrk(r->value, "0123456789") != NULL;
}

static void
report(Reader *r, AwsJsonKind kind, const char *value)
{
	if (r->item)
		r->item(r->arg, r->depth, r->name, kind, value);
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
		report(r, AWS_JSON_STRING, r->value);
		return true;
	}
	is_object = *r->p == '{';
	if (!is_object && *r->p != '[')
	{
		if (!read_other(r))
			return false;
		report(r, AWS_JSON_OTHER, r->value);
		return true;
	}
	if (r->depth == AWS_JSON_DEPTH)
		return false;
	report(r, is_object ? AWS_JSON_BEGIN_OBJECT : AWS_JSON_BEGIN_ARRAY, "");
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
		report(r, closer == '}' ? AWS_JSON_END_OBJECT : AWS_JSON_END_ARRAY, "");
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
aws_json_read(const char *data, size_t len, AwsJsonItem item, void *arg)
{
	Reader r = {.p = data, .end = data + len, .item = item, .arg = arg};
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
