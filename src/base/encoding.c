/*
 * encoding.c
 *	  Owns how text is encoded for sending: UTF-8, JSON strings, times,
 *	  percent-encoding, and W3C trace context.
 *
 * Everything that is sent is UTF-8.  In a database of another encoding, the worker
 * converts strings here, outside a transaction.  PostgreSQL looks up the conversion
 * function and keeps it when client_encoding is set inside a transaction.  So the worker
 * must have set client_encoding to UTF8 in one.
 */
#include "base/outbox.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "base/encoding.h"
#include "base/names.h"

char *
outbox_to_utf8(char *s, size_t *len)
{
	MemoryContext cxt = CurrentMemoryContext;
	char *volatile utf8 = NULL;

	if (GetDatabaseEncoding() == PG_UTF8)
		return s;

	PG_TRY();
	{
		utf8 = pg_server_to_any(s, (int) *len, PG_UTF8);
	}
	PG_CATCH();
	{
		int code = geterrcode();

		if (code != ERRCODE_UNTRANSLATABLE_CHARACTER &&
			code != ERRCODE_CHARACTER_NOT_IN_REPERTOIRE)
			PG_RE_THROW();
		MemoryContextSwitchTo(cxt);
		FlushErrorState();
		utf8 = NULL;
	}
	PG_END_TRY();

	if (utf8 != NULL && utf8 != s)
		*len = strlen(utf8);
	return utf8;
}

const char *
outbox_text_problem(char *s, size_t len)
{
	const char *problem;
	char	   *utf8 = outbox_to_utf8(s, &len);

	if (utf8 == NULL || utf8 == s)
		return outbox_header_value_problem(s, len);
	problem = outbox_header_value_problem(utf8, len);
	pfree(utf8);
	return problem;
}

/*
 * Copies to 'to', which may be 's' itself: no character gets longer.  A byte that begins
 * no valid character becomes a question mark.  With SQL_ASCII, which takes all bytes, that
 * is a character of UTF-8, because a client could not read the others.
 */
static void
copy_foreign(char *to, const char *s, size_t len, bool keep_controls)
{
	int encoding = GetDatabaseEncoding() == PG_SQL_ASCII ? PG_UTF8 :
														   GetDatabaseEncoding();

	for (size_t i = 0; i < len;)
	{
		int	 l = pg_encoding_verifymbchar(encoding, s + i, (int) (len - i));
		bool good = s[i] != '\0' && l > 0 &&
			(keep_controls || ((unsigned char) s[i] >= 0x20 && s[i] != 0x7f));

		l = good ? l : 1;
		if (good)
			memmove(to, s + i, l);
		else
			*to = '?';
		to += l;
		i += l;
	}
	*to = '\0';
}

/* Marks all that is not ASCII, if some of it has no place in UTF-8. */
static void
mark_untranslatable(char *s)
{
	size_t len = strlen(s);
	char  *utf8 = outbox_to_utf8(s, &len);

	if (utf8 == NULL)
	{
		for (; *s; s++)
			if (IS_HIGHBIT_SET(*s))
				*s = '?';
	}
	else if (utf8 != s)
		pfree(utf8);
}

char *
outbox_foreign_text(const char *s, size_t len)
{
	char *copy = palloc(len + 1);

	copy_foreign(copy, s, len, true);
	mark_untranslatable(copy);
	return copy;
}

void
outbox_foreign_words(char *s)
{
	copy_foreign(s, s, strlen(s), false);
	mark_untranslatable(s);
}

/*
 * True if no character has to be escaped.  The compiler makes vector instructions of this
 * loop (see the Makefile), because all of it is done with bytes and without a branch.
 */
static bool
is_plain(const char *s, size_t len)
{
	const uint8 *c = (const uint8 *) s;
	uint8		 special = 0;

	for (size_t i = 0; i < len; i++)
		special |= (uint8) ((c[i] < 0x20) | (c[i] == '"') | (c[i] == '\\'));
	return special == 0;
}

static char *
put_plain(char *p, const char *s, size_t len)
{
	*p++ = '"';
	p = outbox_put(p, s, len);
	*p++ = '"';
	return p;
}

static void
append_escaped(StringInfo text, const char *s, size_t len)
{
	char *terminated = pnstrdup(s, len);

	escape_json(text, terminated);
	pfree(terminated);
}

/* Strings without characters to escape are copied.  Almost all strings are such. */
char *
outbox_put_json_string(char *p, const char *s, size_t len)
{
	StringInfoData escaped;

	if (is_plain(s, len))
		return put_plain(p, s, len);
	initStringInfo(&escaped);
	append_escaped(&escaped, s, len);
	p = outbox_put(p, escaped.data, escaped.len);
	pfree(escaped.data);
	return p;
}

void
outbox_append_json_string(StringInfo text, const char *s, int len)
{
	if (!is_plain(s, len))
	{
		append_escaped(text, s, len);
		return;
	}
	enlargeStringInfo(text, len + 2);
	text->len = (int) (put_plain(text->data + text->len, s, len) - text->data);
	text->data[text->len] = '\0';
}

static char *
put_second(char *p, TimestampTz t)
{
	struct pg_tm tm;
	fsec_t		 fsec;

	if (TIMESTAMP_NOT_FINITE(t) || timestamp2tm(t, NULL, &tm, &fsec, NULL, NULL) != 0)
		memset(&tm, 0, sizeof(tm));
	p = pg_ultostr_zeropad(p, (uint32) Max(tm.tm_year, 0), 4);
	*p++ = '-';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_mon, 2);
	*p++ = '-';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_mday, 2);
	*p++ = 'T';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_hour, 2);
	*p++ = ':';
	p = pg_ultostr_zeropad(p, (uint32) tm.tm_min, 2);
	*p++ = ':';
	return pg_ultostr_zeropad(p, (uint32) tm.tm_sec, 2);
}

/* Times of events that are sent together are mostly in the same second. */
char *
outbox_put_timestamp(char *p, TimestampTz t)
{
	static TimestampTz second = DT_NOBEGIN;
	static char		   text[OUTBOX_TIMESTAMP_SIZE];
	static size_t	   len;
	int64			   fsec = TIMESTAMP_NOT_FINITE(t) ? 0 : t % USECS_PER_SEC;

	if (fsec < 0)
		fsec += USECS_PER_SEC;
	if (len == 0 || t - fsec != second)
	{
		second = t - fsec;
		len = put_second(text, t) - text;
	}
	p = outbox_put(p, text, len);
	*p++ = '.';
	p = pg_ultostr_zeropad(p, (uint32) fsec, 6);
	*p++ = 'Z';
	return p;
}

static inline size_t
percent_encode(const char *s, size_t len, char *out, bool header)
{
	static const char hex[] = "0123456789ABCDEF";
	char			 *p = out;

	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) s[i];

		if (header ? c > ' ' && c < 0x7f && c != '"' && c != '%' :
					 (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
					(c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
					c == '~')
		{
			*p++ = (char) c;
			continue;
		}
		*p++ = '%';
		*p++ = hex[c >> 4];
		*p++ = hex[c & 15];
	}
	return p - out;
}

size_t
outbox_percent_encode(const char *s, size_t len, char *out)
{
	return percent_encode(s, len, out, false);
}

/* CloudEvents 1.0.2, HTTP Protocol Binding, section 3.1.3.2 */
size_t
outbox_percent_encode_header(const char *s, size_t len, char *out)
{
	return percent_encode(s, len, out, true);
}

/* ---------------------------------------------------------------------
 * Trace context (W3C Trace Context, level 1 and 2)
 * ---------------------------------------------------------------------
 */

static bool
is_lower_hex(const char *s, int len)
{
	for (int i = 0; i < len; i++)
		if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
			return false;
	return true;
}

static bool
is_all_zero(const char *s, int len)
{
	for (int i = 0; i < len; i++)
		if (s[i] != '0')
			return false;
	return true;
}

/* version "-" trace-id "-" parent-id "-" flags.  Later versions may have more fields. */
bool
outbox_traceparent_valid(const char *s, size_t len)
{
	if (len < OUTBOX_TRACEPARENT_LEN || s[2] != '-' || s[35] != '-' || s[52] != '-' ||
		!is_lower_hex(s, 2) || !is_lower_hex(s + 3, 32) || !is_lower_hex(s + 36, 16) ||
		!is_lower_hex(s + 53, 2) || is_all_zero(s + 3, 32) || is_all_zero(s + 36, 16) ||
		memcmp(s, "ff", 2) == 0)
		return false;
	if (len > OUTBOX_TRACEPARENT_LEN &&
		(memcmp(s, "00", 2) == 0 || s[OUTBOX_TRACEPARENT_LEN] != '-'))
		return false;
	for (size_t i = OUTBOX_TRACEPARENT_LEN; i < len; i++)
		if (s[i] <= ' ' || s[i] > 0x7e)
			return false;
	return true;
}

/* Printable ASCII, and members of the form key=value. */
bool
outbox_tracestate_valid(const char *s, size_t len)
{
	bool equals = false;
	bool content = false;
	bool any = false;

	for (size_t i = 0; i <= len; i++)
	{
		if (i == len || s[i] == ',')
		{
			if (content && !equals)
				return false;
			any |= content;
			equals = content = false;
		}
		else if (s[i] < 0x20 || s[i] > 0x7e)
			return false;
		else if (s[i] == '=' && content)
			equals = true;
		else if (s[i] != ' ')
			content = true;
	}
	return any;
}
