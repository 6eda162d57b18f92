/*
 * aws_answer.h
 *	  The result of each entry in an answer, as pure functions.
 */
#ifndef OUTBOX_AWS_ANSWER_H
#define OUTBOX_AWS_ANSWER_H

#include "aws_target.h"

#define AWS_BATCH_MAX 500
#define AWS_CODE 64
#define AWS_WORDS 200
#define AWS_SAYING (AWS_CODE + AWS_WORDS + 4)

/* The meaning of an error of a request or of an entry. */
typedef enum AwsMeaning
{
	AWS_STORED,
	AWS_REFUSED,   /* wrong credentials, rights or names: says nothing about the event */
	AWS_BUSY,	   /* too much is sent */
	AWS_TROUBLE,   /* the service has trouble */
	AWS_BAD_EVENT, /* it will never be taken */
	AWS_FAILED	   /* may be taken later */
} AwsMeaning;

typedef struct AwsEntryAnswer
{
	bool seen;
	bool stored;
	bool sender_fault;
	char code[AWS_CODE];
	char words[AWS_WORDS];
} AwsEntryAnswer;

typedef struct AwsAnswer
{
	int	 n; /* entries that were sent */
	bool ok;
	bool contradicts;	 /* it is of the service, but does not fit the request */
	char code[AWS_CODE]; /* of the request ("": none) */
	char words[AWS_WORDS];

	AwsEntryAnswer entries[AWS_BATCH_MAX];
} AwsAnswer;

/*
 * Reads the answer to a request of 'n' entries.  'ok' is false if a 2xx answer is not one
 * of the service, or contradicts.  An entry that the answer does not name is not 'seen'.
 */
extern void aws_answer_read(const AwsTarget *t, int status, const char *data, size_t len,
							int n, AwsAnswer *answer);

/* Returns the meaning of the error of a request. */
extern AwsMeaning aws_request_meaning(int status, const char *code);

extern AwsMeaning aws_entry_meaning(const AwsTarget *t, const AwsEntryAnswer *entry);

/* Writes code and words together, or that there are none. */
extern void aws_say(const char *code, const char *words, char out[AWS_SAYING]);

#endif /* OUTBOX_AWS_ANSWER_H */
