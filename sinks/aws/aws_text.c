/*
 * aws_text.c
 *	  Owns text that grows, and how it is written as JSON, as a form and as base64.
 */
#include "aws_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
aws_add(AwsText *t, const char *data, size_t len)
{
	if (t->failed || len == 0)
		return;
	if (len > t->size - t->len)
	{
		size_t size = t->size ? t->size : 512;
		char  *bigger;

		while (size - t->len < len)
			size *= 2;
		bigger = realloc(t->data, size);
		if (bigger == NULL)
		{
			t->failed = true;
			return;
		}
		t->data = bigger;
		t->size = size;
	}
	memcpy(t->data + t->len, data, len);
	t->len += len;
}

void
aws_add_text(AwsText *t, const char *text)
{
	aws_add(t, text, strlen(text));
}

void
aws_add_number(AwsText *t, long long number)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", number);
	aws_add_text(t, text);
}

void
aws_text_free(AwsText *t)
{
	free(t->data);
	memset(t, 0, sizeof(*t));
}

void
aws_add_json(AwsText *t, const char *data, size_t len)
{
	size_t done = 0;

	aws_add(t, "\"", 1);
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) data[i];
		char		  escape[8];

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		aws_add(t, data + done, i - done);
		done = i + 1;
		if (c >= 0x20)
			snprintf(escape, sizeof(escape), "\\%c", c);
		else
			snprintf(escape, sizeof(escape), "\\u%04x", c);
		aws_add_text(t, escape);
	}
	aws_add(t, data + done, len - done);
	aws_add(t, "\"", 1);
}

void
aws_add_percent(AwsText *t, const char *data, size_t len)
{
	static const char safe[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~";
	size_t done = 0;

	for (size_t i = 0; i < len; i++)
	{
		char escape[4];

		if (data[i] != '\0' && strchr(safe, data[i]))
			continue;
		aws_add(t, data + done, i - done);
		done = i + 1;
		snprintf(escape, sizeof(escape), "%%%02X", (unsigned char) data[i]);
		aws_add(t, escape, 3);
	}
	aws_add(t, data + done, len - done);
}

void
aws_add_base64(AwsText *t, const char *data, size_t len)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t i = 0; i < len; i += 3)
	{
		size_t	 n = len - i < 3 ? len - i : 3;
		uint32_t bits = 0;
		char	 out[4];

		for (size_t k = 0; k < 3; k++)
			bits = bits << 8 | (k < n ? (unsigned char) data[i + k] : 0);
		for (size_t k = 0; k < 4; k++)
			out[k] = k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=';
		aws_add(t, out, 4);
	}
}

/* Returns the bytes of the character.  0: it is none of UTF-8. */
static size_t
read_character(const unsigned char *p, size_t len, uint32_t *c)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t				  n = *p < 0x80	   ? 1 :
					   (*p & 0xe0) == 0xc0 ? 2 :
					   (*p & 0xf0) == 0xe0 ? 3 :
					   (*p & 0xf8) == 0xf0 ? 4 :
											 0;

	if (n == 0 || n > len)
		return 0;
	*c = n == 1 ? *p : *p & (0x7f >> n);
	for (size_t i = 1; i < n; i++)
	{
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		*c = *c << 6 | (p[i] & 0x3f);
	}
	return *c >= least[n] ? n : 0;
}

bool
aws_is_xml_text(const char *data, size_t len)
{
	for (size_t i = 0; i < len;)
	{
		uint32_t c = 0;
		size_t	 n = read_character((const unsigned char *) data + i, len - i, &c);

		if (n == 0)
			return false;
		if (!(c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c <= 0xd7ff) ||
			  (c >= 0xe000 && c <= 0xfffd) || (c >= 0x10000 && c <= 0x10ffff)))
			return false;
		i += n;
	}
	return true;
}

bool
aws_gives_away(const char *words, const char *secret)
{
	char   part[17];
	size_t len = strlen(secret);
	size_t part_len = len < sizeof(part) - 1 ? len : sizeof(part) - 1;

	if (len == 0)
		return false;
	part[part_len] = '\0';
	for (size_t left = strlen(words); left >= part_len; left--, words++)
	{
		memcpy(part, words, part_len);
		if (strstr(secret, part))
			return true;
	}
	return false;
}
