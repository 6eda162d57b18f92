/*
 * aws_xml.c
 *	  Owns reading the XML of SNS: elements and text.  Attributes are skipped.
 *
 * There are no other entities than the five that XML has, so a text cannot grow.
 */
#include "aws_xml.h"

#include <string.h>

typedef struct Reader
{
	const char	 *p;
	const char	 *end;
	AwsXmlElement element;
	void		 *arg;
	int			  depth;
	bool		  any; /* there was an element */
	char		  path[AWS_XML_DEPTH][AWS_XML_NAME];
	char		  text[AWS_XML_TEXT];
	size_t		  text_len;
} Reader;

static void
clear_text(Reader *r)
{
	r->text_len = 0;
	r->text[0] = '\0';
}

static void
put(Reader *r, char c)
{
	if (r->text_len + 1 >= AWS_XML_TEXT)
		return;
	r->text[r->text_len++] = c;
	r->text[r->text_len] = '\0';
}

static bool
begins_with(const Reader *r, const char *what)
{
	size_t len = strlen(what);

	return (size_t) (r->end - r->p) >= len && memcmp(r->p, what, len) == 0;
}

/* At an ampersand.  A number becomes a question mark. */
static bool
read_entity(Reader *r)
{
	static const char *const names[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&apos;"};
	size_t					 n = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (begins_with(r, names[i]))
		{
			put(r, "<>&\"'"[i]);
			r->p += strlen(names[i]);
			return true;
		}
	while (n < 12 && r->p + n < r->end && r->p[n] != ';')
		n++;
	if (n < 3 || n == 12 || r->p + n == r->end || r->p[1] != '#')
		return false;
	put(r, '?');
	r->p += n + 1;
	return true;
}

static bool
end_element(Reader *r)
{
	r->element(r->arg, r->path, r->depth, false, r->text);
	r->depth--;
	clear_text(r);
	return true;
}

/* Between '<' and '>', without them. */
static bool
read_tag(Reader *r, const char *tag, size_t len)
{
	bool   closes = len > 0 && tag[0] == '/';
	bool   is_empty = len > 0 && tag[len - 1] == '/';
	size_t name_len = 0;

	if (closes)
	{
		tag++;
		len--;
	}
	while (name_len < len && strchr(" \t\r\n/", tag[name_len]) == NULL)
		name_len++;
	if (name_len == 0 || name_len >= AWS_XML_NAME || memchr(tag, '\0', name_len))
		return false;
	if (closes)
	{
		const char *open = r->depth > 0 ? r->path[r->depth - 1] : "";

		return strlen(open) == name_len && memcmp(open, tag, name_len) == 0 &&
			end_element(r);
	}
	if (r->depth == AWS_XML_DEPTH || (r->depth == 0 && r->any))
		return false;
	r->any = true;
	memcpy(r->path[r->depth], tag, name_len);
	r->path[r->depth++][name_len] = '\0';
	clear_text(r);
	r->element(r->arg, r->path, r->depth, true, "");
	return !is_empty || end_element(r);
}

bool
aws_xml_read(const char *data, size_t len, AwsXmlElement element, void *arg)
{
	Reader r = {.p = data, .end = data + len, .element = element, .arg = arg};

	while (r.p < r.end)
	{
		const char *close;

		if (*r.p == '&')
		{
			if (!read_entity(&r))
				return false;
			continue;
		}
		if (*r.p != '<')
		{
			put(&r, *r.p++);
			continue;
		}
		close = memchr(r.p, '>', (size_t) (r.end - r.p));
		if (close == NULL || begins_with(&r, "<!"))
			return false;
		if (!begins_with(&r, "<?") && !read_tag(&r, r.p + 1, (size_t) (close - r.p - 1)))
			return false;
		r.p = close + 1;
	}
	return r.any && r.depth == 0;
}
