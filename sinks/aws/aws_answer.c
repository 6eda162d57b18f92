/*
 * aws_answer.c
 *	  Owns the parsing of answers, and the meaning of error codes.
 *
 * An entry is stored only if the answer says so of this entry.  Where only its place
 * identifies an entry, the answer must have an entry for each that was sent.
 */
#include "aws_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aws_xml.h"
#include "base/json_read.h"

/* The list that the reader is in, by the meaning of its entries */
typedef enum List
{
	NO_LIST,
	SUCCESSFUL,
	FAILED_LIST,
	BY_PLACE /* each entry of the request, in its order */
} List;

typedef struct Reader
{
	const AwsTarget *target;
	AwsAnswer		*answer;
	List			 list;
	int				 place;
	long			 nfailed; /* that the answer counts itself (-1: it does not) */
	bool			 any_list;

	/* The entry that is being read */
	int			   id; /* -1: none */
	bool		   has_receipt;
	AwsEntryAnswer entry;
} Reader;

/*
 * Copies printable ASCII characters of the first line.  The text behind it may be the
 * canonical request, with a session token in it.
 */
static void
copy_words(char *out, size_t size, const char *from)
{
	size_t n = 0;

	for (; *from && *from != '\n' && *from != '\r' && n + 1 < size; from++)
		out[n++] = *from >= 0x20 && *from < 0x7f ? *from : '?';
	out[n] = '\0';
}

/* "com.amazonaws.sqs#QueueDoesNotExist:http://…" is QueueDoesNotExist. */
static void
copy_code(char *out, const char *from)
{
	const char *hash = strchr(from, '#');

	if (hash)
		from = hash + 1;
	copy_words(out, AWS_CODE, from);
	out[strcspn(out, ": ")] = '\0';
}

static int
read_id(const char *text)
{
	return text[0] != '\0' && strlen(text) <= 3 &&
			text[strspn(text, "0123456789")] == '\0' ?
		atoi(text) :
		-1;
}

static void
begin_entry(Reader *r)
{
	memset(&r->entry, 0, sizeof(r->entry));
	r->id = -1;
	r->has_receipt = false;
}

static void
end_entry(Reader *r)
{
	AwsEntryAnswer *to;

	if (r->list == BY_PLACE)
		r->id = r->place++;
	if (r->id < 0 || r->id >= r->answer->n)
	{
		r->answer->contradicts = true;
		return;
	}
	to = &r->answer->entries[r->id];
	if (to->seen)
		r->answer->contradicts = true;
	r->entry.seen = true;
	r->entry.stored = r->list == SUCCESSFUL ||
		(r->list == BY_PLACE && r->has_receipt && r->entry.code[0] == '\0');
	*to = r->entry;
}

/* A text of an entry, by its name in JSON and XML */
static void
take_member(Reader *r, const char *name, const char *value)
{
	if (strcmp(name, "Id") == 0)
		r->id = read_id(value);
	else if (strcmp(name, "Code") == 0 || strcmp(name, "ErrorCode") == 0)
		copy_code(r->entry.code, value);
	else if (strcmp(name, "Message") == 0 || strcmp(name, "ErrorMessage") == 0)
		copy_words(r->entry.words, AWS_WORDS, value);
	else if (strcmp(name, "SenderFault") == 0)
		r->entry.sender_fault = strcmp(value, "true") == 0;
	else if (strcmp(name, "SequenceNumber") == 0 || strcmp(name, "EventId") == 0)
		r->has_receipt = value[0] != '\0';
}

/* ----------------------------------------------------------------- JSON */

static List
list_named(const Reader *r, const char *name)
{
	switch (r->target->service)
	{
		case AWS_SQS:
		case AWS_SNS:
			return strcmp(name, "Successful") == 0 ? SUCCESSFUL :
				strcmp(name, "Failed") == 0		   ? FAILED_LIST :
													 NO_LIST;
		case AWS_EVENTS:
			return strcmp(name, "Entries") == 0 ? BY_PLACE : NO_LIST;
		case AWS_KINESIS:
			return strcmp(name, "Records") == 0 ? BY_PLACE : NO_LIST;
	}
	return NO_LIST;
}

static void
take_json(void *arg, const OutboxJsonItem *item)
{
	Reader	   *r = arg;
	const char *name = item->name;
	bool		number = item->kind == OUTBOX_JSON_NUMBER;
	bool		string = item->kind == OUTBOX_JSON_STRING;

	if (item->depth == 1 && item->kind == OUTBOX_JSON_BEGIN_ARRAY)
	{
		r->list = list_named(r, name);
		if (r->list == BY_PLACE && r->any_list)
			r->answer->contradicts = true;
		r->any_list = r->any_list || r->list != NO_LIST;
	}
	else if (item->depth == 1 && item->kind == OUTBOX_JSON_END_ARRAY)
		r->list = NO_LIST;
	else if (item->depth == 1 && string)
	{
		if (strcmp(name, "__type") == 0)
			copy_code(r->answer->code, item->value);
		else if (strcmp(name, "message") == 0 || strcmp(name, "Message") == 0)
			copy_words(r->answer->words, AWS_WORDS, item->value);
	}
	else if (item->depth == 1 && number &&
			 (strcmp(name, "FailedRecordCount") == 0 ||
			  strcmp(name, "FailedEntryCount") == 0))
		r->nfailed = strtol(item->value, NULL, 10);
	else if (r->list == NO_LIST)
		return;
	else if (item->depth == 2 && item->kind == OUTBOX_JSON_BEGIN_OBJECT)
		begin_entry(r);
	else if (item->depth == 2 && item->kind == OUTBOX_JSON_END_OBJECT)
		end_entry(r);
	else if (item->depth == 2)
		r->answer->contradicts = true;
	else if (item->depth == 3 && (string || number || item->kind == OUTBOX_JSON_WORD))
		take_member(r, name, strcmp(item->value, "null") == 0 ? "" : item->value);
}

/* ------------------------------------------------------------------ XML */

static void
take_xml(void *arg, char path[][AWS_XML_NAME], int depth, bool begins, const char *text)
{
	Reader	   *r = arg;
	const char *name = path[depth - 1];
	const char *parent = depth > 1 ? path[depth - 2] : "";

	if (depth == 1)
		r->any_list = strcmp(name, "PublishBatchResponse") == 0;
	else if (depth == 3 && strcmp(parent, "Error") == 0 && !begins)
	{
		if (strcmp(name, "Code") == 0)
			copy_code(r->answer->code, text);
		else if (strcmp(name, "Message") == 0)
			copy_words(r->answer->words, AWS_WORDS, text);
	}
	else if (depth == 3)
		r->list = begins ? list_named(r, name) : NO_LIST;
	else if (r->list == NO_LIST)
		return;
	else if (depth == 4 && strcmp(name, "member") == 0)
		begins ? begin_entry(r) : end_entry(r);
	else if (depth == 5 && !begins)
		take_member(r, name, text);
}

/* True if each entry has a place, and as many failed as the answer counts. */
static bool
places_are_certain(const Reader *r)
{
	int n = 0;

	if (r->target->service != AWS_EVENTS && r->target->service != AWS_KINESIS)
		return true;
	for (int i = 0; i < r->answer->n; i++)
		n += !r->answer->entries[i].stored;
	return r->place == r->answer->n && (r->nfailed < 0 || r->nfailed == n);
}

void
aws_answer_read(const AwsTarget *t, int status, const char *data, size_t len, int n,
				AwsAnswer *answer)
{
	Reader r = {.target = t, .answer = answer, .id = -1, .nfailed = -1};
	bool   good = status >= 200 && status <= 299;
	bool   well_formed;

	answer->n = n;
	answer->contradicts = false;
	answer->code[0] = answer->words[0] = '\0';
	memset(answer->entries, 0, n * sizeof(answer->entries[0]));
	well_formed = t->service == AWS_SNS ? aws_xml_read(data, len, take_xml, &r) :
										  outbox_json_read(data, len, take_json, &r);
	answer->contradicts = good && well_formed && r.any_list &&
		(answer->contradicts || !places_are_certain(&r));
	answer->ok = good && well_formed && r.any_list && !answer->contradicts &&
		answer->code[0] == '\0';
}

/* ---------------------------------------------------------------- codes */

/* Each begins a code.  Codes of KMS begin with Kms or KMS. */
static const char *const refused[] = {"AccessDenied",
									  "NotAuthorized",
									  "AuthFailure",
									  "AuthorizationError",
									  "InvalidClientTokenId",
									  "UnrecognizedClient",
									  "ExpiredToken",
									  "InvalidToken",
									  "SignatureDoesNotMatch",
									  "InvalidSignature",
									  "IncompleteSignature",
									  "MissingAuthenticationToken",
									  "InvalidAccessKeyId",
									  "InvalidSecurity",
									  "RequestExpired",
									  "RequestTimeTooSkewed",
									  "OptInRequired",
									  "SubscriptionRequired",
									  "QueueDoesNotExist",
									  "QueueDeletedRecently",
									  "AWS.SimpleQueueService.NonExistentQueue",
									  "AWS.SimpleQueueService.QueueDeletedRecently",
									  "InvalidAddress",
									  "NotFound",
									  "ResourceNotFound",
									  "UnsupportedOperation",
									  "AWS.SimpleQueueService.UnsupportedOperation",
									  "UnknownOperation",
									  "InvalidAction",
									  "KmsAccessDenied",
									  "KmsDisabled",
									  "KmsInvalidState",
									  "KmsInvalidKeyUsage",
									  "KmsNotFound",
									  "KmsOptInRequired",
									  "KMS.",
									  NULL};

/* KMS throttles, too, and that has another meaning than the other codes of KMS. */
static const char *const busy[] = {"Throttl",
								   "RequestThrottled",
								   "TooManyRequests",
								   "KmsThrottl",
								   "KMS.Throttl",
								   "ProvisionedThroughputExceeded",
								   "OverLimit",
								   "LimitExceeded",
								   "RequestLimitExceeded",
								   "BandwidthLimitExceeded",
								   "SlowDown",
								   "PriorRequestNotComplete",
								   NULL};

static const char *const bad_event[] = {"InvalidMessageContents",
										"BatchRequestTooLong",
										"AWS.SimpleQueueService.BatchRequestTooLong",
										"BatchTooLong",
										"MalformedDetail",
										NULL};

static bool
is_one_of(const char *code, const char *const *list)
{
	for (; *list; list++)
		if (strncasecmp(code, *list, strlen(*list)) == 0)
			return true;
	return false;
}

AwsMeaning
aws_request_meaning(int status, const char *code)
{
	if (status == 429 || is_one_of(code, busy))
		return AWS_BUSY;
	if (is_one_of(code, bad_event))
		return AWS_BAD_EVENT;
	if (is_one_of(code, refused))
		return AWS_REFUSED;
	if (status >= 500)
		return AWS_TROUBLE;
	if (status == 413)
		return AWS_BAD_EVENT;
	/* 3xx too: a redirection is not followed */
	return status == 400 ? AWS_FAILED : AWS_REFUSED;
}

AwsMeaning
aws_entry_meaning(const AwsTarget *t, const AwsEntryAnswer *e)
{
	if (!e->seen)
		return AWS_FAILED;
	if (e->stored)
		return AWS_STORED;
	if (is_one_of(e->code, busy))
		return AWS_BUSY;
	if (is_one_of(e->code, bad_event))
		return AWS_BAD_EVENT;
	if (is_one_of(e->code, refused))
		return AWS_REFUSED;
	return (t->service == AWS_SQS || t->service == AWS_SNS) && e->sender_fault ?
		AWS_BAD_EVENT :
		AWS_FAILED;
}

void
aws_say(const char *code, const char *words, char out[AWS_SAYING])
{
	snprintf(out, AWS_SAYING, "%s%s%s", code, code[0] && words[0] ? ": " : "",
			 code[0] || words[0] ? words : "it gives no reason");
}
