/*
 * test_batch_answer.c
 *	  An answer to a batch acknowledges the events that it says, and no others (TAP).
 *
 * links: src/base/json_read.c src/format/batch_answer.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "format/batch_answer.h"

static int tests;
static int failures;

static char names[200];

static bool
named(void *arg, const char *id, size_t len)
{
	(void) arg;
	if (len == 4 && memcmp(id, "none", 4) == 0)
		return false;
	if (names[0])
		strcat(names, " ");
	strncat(names, id, len);
	return true;
}

static void
ok(bool pass, const char *what)
{
	tests++;
	if (!pass)
		failures++;
	printf("%sok %d - ", pass ? "" : "not ", tests);
	for (; *what; what++)
		putchar(*what < ' ' && *what > 0 ? '.' : *what);
	putchar('\n');
}

/*
 * The memory of each body ends with it, so that a checker notices a read beyond it.
 */
static OutboxBatchAnswer
judge(const char *body, size_t len)
{
	char			 *copy = malloc(len ? len : 1);
	OutboxBatchAnswer answer;

	memcpy(copy, body, len);
	names[0] = '\0';
	answer = outbox_batch_answer(copy, len, named, NULL);
	free(copy);
	return answer;
}

static void
all(const char *body)
{
	ok(judge(body, strlen(body)) == OUTBOX_ANSWER_ALL, body);
}

static void
malformed(const char *body)
{
	ok(judge(body, strlen(body)) == OUTBOX_ANSWER_MALFORMED, body);
}

static void
some(const char *body, const char *expected)
{
	ok(judge(body, strlen(body)) == OUTBOX_ANSWER_SOME && strcmp(names, expected) == 0,
	   body);
}

#define LIST(items) "{\"batchItemFailures\":[" items "]}"

int
main(void)
{
	char			  deep[2 * OUTBOX_JSON_DEPTH + 100];
	char			 *long_name;
	static const char whole[] =
		" { \"a\" : [ 1 , { \"b\" : -0.5e+3 } , [ ] , { } ] , \"batchItemFailures\" : "
		"[ { \"x\" : null , \"itemIdentifier\" : \"a\\u002Db\" } ] , \"c\" : \"\\\"}\" } ";

	/* An answer that is no list acknowledges all events. */
	all("");
	all(" \r\n");
	all("OK");
	all("<html>");
	all("ok {\"batchItemFailures\":[{}]}");
	all("null");
	all("true");
	all("[]");
	all("\"batchItemFailures\"");
	all("{}");
	all("{ }");
	all("{\"status\":\"ok\"}");
	all("{\"result\":{\"batchItemFailures\":[{\"itemIdentifier\":\"a\"}]}}");
	all("{\"batchitemfailures\":[{\"itemIdentifier\":\"a\"}]}");
	all(LIST(""));
	all("{\"batchItemFailures\":[ ]}");
	all("{\"batchItemFailures\":null}");
	all("\xef\xbb\xbf" LIST(""));
	all("\xc3\x9c"
		"berall");

	/* Lists */
	some(LIST("{\"itemIdentifier\":\"a\"}"), "a");
	some(LIST("{\"itemIdentifier\":\"a\"},{\"itemIdentifier\":\"b\"}"), "a b");
	some(LIST("{\"itemIdentifier\":\"a\"},{\"itemIdentifier\":\"a\"}"), "a a");
	some(LIST("{\"itemIdentifier\":\"a\",\"reason\":[{\"x\":[1,2]},null]}"), "a");
	some(LIST("{\"itemIdentifier\":\"\\u0061\\/\\\"\"}"), "a/\"");
	some("{\"batchItem\\u0046ailures\":[{\"itemIdentifier\":\"a\"}]}", "a");
	some("\xef\xbb\xbf" LIST("{\"itemIdentifier\":\"a\"}"), "a");
	some("{\"batchItemFailures\":[],\"batchItemFailures\":[{\"itemIdentifier\":\"a\"}]}",
		 "a");
	some(whole, "a-b");
	for (size_t i = 2; i < sizeof(whole) - 2; i++)
		if (judge(whole, i) != OUTBOX_ANSWER_MALFORMED)
			ok(false, "cut off");
	ok(true, "the same, cut off anywhere, is malformed");

	/* Malformed answers, which may have meant a failure */
	malformed("{");
	malformed("{\"");
	malformed("{\"a\"}");
	malformed("{\"a\":}");
	malformed("{\"a\":1,}");
	malformed("{\"a\":1}x");
	malformed("{\"a\":1}{}");
	malformed("{\"a\":01}");
	malformed("{\"a\":1.}");
	malformed("{\"a\":1e}");
	malformed("{\"a\":-}");
	malformed("{\"a\":tru}");
	malformed("{\"a\":nulls}");
	malformed("{\"a\":[1,]}");
	malformed("{\"a\":[}");
	malformed("{\"a\":{]}");
	malformed("{\"a\":{\"b\"]}");
	malformed("{\"a\":\"\\x\"}");
	malformed("{\"a\":\"\\u12g4\"}");
	malformed("{\"a\":\"\n\"}");
	malformed("{a:1}");
	malformed("{'a':1}");
	malformed("{ok}");
	malformed("{\"batchItemFailures\":{}}");
	malformed("{\"batchItemFailures\":\"a\"}");
	malformed("{\"batchItemFailures\":\"null\"}");
	malformed("{\"batchItemFailures\":0}");
	malformed("{\"batchItemFailures\":false}");
	malformed("{\"batchItemFailures\":nil}");
	malformed(LIST("\"a\""));
	malformed(LIST("null"));
	malformed(LIST("{}"));
	malformed(LIST("[]"));
	malformed(LIST("{\"itemidentifier\":\"a\"}"));
	malformed(LIST("{\"itemIdentifier\":null}"));
	malformed(LIST("{\"itemIdentifier\":1}"));
	malformed(LIST("{\"itemIdentifier\":[\"a\"]}"));
	malformed(LIST("{\"itemIdentifier\":\"none\"}"));
	malformed(LIST("{\"itemIdentifier\":\"a\"},{\"itemIdentifier\":\"none\"}"));
	malformed(LIST("{\"itemIdentifier\":\"a\"},"));
	malformed(LIST("{\"itemIdentifier\":\"a\"} {\"itemIdentifier\":\"b\"}"));
	malformed(LIST("{\"itemIdentifier\":\"a\"") "x");
	ok(judge("\xff\xfe{\0", 4) == OUTBOX_ANSWER_MALFORMED, "UTF-16, little end first");
	ok(judge("\0{", 2) == OUTBOX_ANSWER_MALFORMED, "UTF-16, big end first");
	ok(judge("{\0}", 3) == OUTBOX_ANSWER_MALFORMED, "a zero byte");
	ok(judge("{}\0", 3) == OUTBOX_ANSWER_MALFORMED, "a zero byte at the end");

	/* Names of the greatest length, and longer ones */
	memset(deep, 'a', sizeof(deep));
	memcpy(deep, "{\"batchItemFailures\":[{\"itemIdentifier\":\"", 41);
	memcpy(deep + 41 + 64, "\"}]}", 5);
	ok(judge(deep, strlen(deep)) == OUTBOX_ANSWER_SOME && strlen(names) == 64,
	   "a name of 64 bytes");
	long_name = calloc(1, OUTBOX_JSON_VALUE + 100);
	memset(long_name, 'a', OUTBOX_JSON_VALUE + 50);
	memcpy(long_name, "{\"batchItemFailures\":[{\"itemIdentifier\":\"", 41);
	strcat(long_name, "\"}]}");
	ok(judge(long_name, strlen(long_name)) == OUTBOX_ANSWER_MALFORMED && !names[0],
	   "a name of which only a part is kept");
	free(long_name);

	/* Depth is bounded. */
	for (int levels = OUTBOX_JSON_DEPTH; levels <= OUTBOX_JSON_DEPTH + 1; levels++)
	{
		memcpy(deep, "{\"a\":", 5);
		memset(deep + 5, '[', levels - 1);
		memset(deep + 5 + levels - 1, ']', levels - 1);
		memcpy(deep + 5 + 2 * (levels - 1), "}", 2);
		ok(judge(deep, strlen(deep)) ==
			   (levels == OUTBOX_JSON_DEPTH ? OUTBOX_ANSWER_ALL :
											  OUTBOX_ANSWER_MALFORMED),
		   levels == OUTBOX_JSON_DEPTH ? "deep" : "too deep");
	}

	printf("1..%d\n", tests);
	return failures != 0;
}
