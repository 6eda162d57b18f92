#ifndef OUTBOX_AWS_TEXT_H
#define OUTBOX_AWS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Zero at first.  After a lack of memory nothing more is added. */
typedef struct AwsText
{
	char  *data; /* not terminated */
	size_t len;
	size_t size;
	bool   failed;
} AwsText;

extern void aws_add(AwsText *t, const char *data, size_t len);
extern void aws_add_text(AwsText *t, const char *text);
extern void aws_add_number(AwsText *t, long long number);

/* With the quotation marks around it. */
extern void aws_add_json(AwsText *t, const char *data, size_t len);
extern void aws_add_percent(AwsText *t, const char *data, size_t len);
extern void aws_add_base64(AwsText *t, const char *data, size_t len);
extern void aws_text_free(AwsText *t);

/* True if it is UTF-8 of characters that XML has. */
extern bool aws_is_xml_text(const char *data, size_t len);

/*
 * True if the words have the secret in them, or so much of it in a row that it would be
 * given away.  Words are cut, and tokens are longer than words.
 */
extern bool aws_gives_away(const char *words, const char *secret);

#endif /* OUTBOX_AWS_TEXT_H */
