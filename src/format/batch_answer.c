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
 */
#include "format/batch_answer.h"

#include <string.h>

#include "base/json_read.h"

typedef struct Answer
{
	OutboxBatchNamed named;
	void			*arg;
	bool			 list;	/* the item is in the list */
	bool			 id;	/* the present member of the list has one */
	bool			 some;	/* the list is not empty */
	bool			 wrong; /* the list has another form */
} Answer;

/* A member of the answer itself */
static void
take_member(Answer *a, const OutboxJsonItem *item)
{
	if (item->kind == OUTBOX_JSON_END_ARRAY)
		a->list = false;
	else if (strcmp(item->name, "batchItemFailures") == 0)
	{
		bool null = item->kind == OUTBOX_JSON_WORD && strcmp(item->value, "null") == 0;

		a->list = item->kind == OUTBOX_JSON_BEGIN_ARRAY;
		a->wrong |= !a->list && !null;
	}
}

/* {"itemIdentifier": "..."}.  Other members are ignored. */
static void
take_failure(Answer *a, const OutboxJsonItem *item)
{
	if (item->depth == 2)
	{
		a->some = true;
		a->wrong |= item->kind == OUTBOX_JSON_END_OBJECT ?
			!a->id :
			item->kind != OUTBOX_JSON_BEGIN_OBJECT;
		a->id = false;
	}
	else if (item->depth == 3 && strcmp(item->name, "itemIdentifier") == 0)
	{
		a->id = true;
		a->wrong |= item->kind != OUTBOX_JSON_STRING || item->cut ||
			!a->named(a->arg, item->value, strlen(item->value));
	}
}

static void
take(void *arg, const OutboxJsonItem *item)
{
	Answer *a = arg;

	if (item->depth == 1)
		take_member(a, item);
	else if (a->list)
		take_failure(a, item);
}

OutboxBatchAnswer
outbox_batch_answer(const char *body, size_t len, OutboxBatchNamed named, void *arg)
{
	Answer		a = {.named = named, .arg = arg};
	const char *end = body + len;

	if (len >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0)
		body += 3; /* a byte order mark */
	while (body < end && *body && strchr(" \t\r\n", *body))
		body++;
	if (body == end)
		return OUTBOX_ANSWER_ALL;

	/* 0, 0xfe or 0xff begin a text in UTF-16 or UTF-32, which may be an object. */
	if (*body != '{')
		return *body == 0 || (unsigned char) *body >= 0xfe ? OUTBOX_ANSWER_MALFORMED :
															 OUTBOX_ANSWER_ALL;
	if (!outbox_json_read(body, end - body, take, &a) || a.wrong)
		return OUTBOX_ANSWER_MALFORMED;
	return a.some ? OUTBOX_ANSWER_SOME : OUTBOX_ANSWER_ALL;
}

typedef struct Member
{
	const char *name;
	char	   *text;
	size_t		size;
	bool		seen; /* only the first one counts */
	bool		found;
} Member;

static void
take_text(void *arg, const OutboxJsonItem *item)
{
	Member *m = arg;

	if (m->seen || item->depth != 1 || strcmp(item->name, m->name) != 0)
		return;
	m->seen = true;
	m->found = !item->cut && strlen(item->value) < m->size &&
		(item->kind == OUTBOX_JSON_STRING || item->kind == OUTBOX_JSON_NUMBER);
	if (m->found)
		strcpy(m->text, item->value);
}

/* A long answer is cut, so the text behind the member need not be JSON. */
bool
outbox_answer_member(const char *body, size_t len, const char *name, char *text,
					 size_t size)
{
	Member m = {.name = name, .text = text, .size = size};

	(void) outbox_json_read(body, len, take_text, &m);
	return m.found;
}
