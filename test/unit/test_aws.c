/*
 * test_aws.c
 *	  ARNs, entries, answers and codes of AWS are read and written as AWS has them (TAP).
 *
 * links: sinks/aws/aws_answer.c sinks/aws/aws_entry.c src/base/json_read.c sinks/aws/aws_target.c sinks/aws/aws_text.c sinks/aws/aws_xml.c
 */
#include <stdlib.h>
#include <string.h>

#include "../../sinks/aws/aws_answer.h"
#include "../../sinks/aws/aws_entry.h"
#include "base/json_read.h"
#include "tap.h"

#define ACCOUNT "123456789012"
#define QUEUE "arn:aws:sqs:eu-central-1:" ACCOUNT ":orders"

static void
goes_to(const char *arn, const char *endpoint_url, const char *expected)
{
	AwsTarget	t;
	const char *problem = aws_target_parse(arn, endpoint_url, &t);
	const char *got = problem ? problem : t.url;

	ok(strcmp(got, expected) == 0, expected, arn, endpoint_url ? endpoint_url : got);
}

static void
is_refused(const char *arn, const char *endpoint_url)
{
	AwsTarget t;

	ok(aws_target_parse(arn, endpoint_url, &t) != NULL, "refused",
	   endpoint_url ? endpoint_url : arn, "");
}

static void
test_targets(void)
{
	static const char *const bad[] = {"arn:aws:sqs:eu-central-1:12345678901:orders",
									  "arn:aws:sqs:eu-central-1:" ACCOUNT ":",
									  "arn:aws:sqs:eu-central-1:" ACCOUNT ":a/b",
									  "arn:aws:sqs:eu-central-1:" ACCOUNT ":a.b",
									  "arn:aws:sqs:eu-central-1:" ACCOUNT ":.fifo",
									  "arn:aws:sqs:eu.evil:" ACCOUNT ":a",
									  "arn:aws:sqs::" ACCOUNT ":a",
									  "arn:aws:s3:eu-central-1:" ACCOUNT ":a",
									  "arn:aws-x:sqs:x-1:" ACCOUNT ":a",
									  "arn:aws:events:eu-central-1:" ACCOUNT ":a",
									  "arn:aws:kinesis:eu-central-1:" ACCOUNT ":stream/",
									  "arn:aws",
									  "",
									  "https://h/"};
	static const char *const urls[] = {"http://h/path", "http://h?x",
									   "http://u@h",	"ftp://h",
									   "http://",		"h",
									   "http://h//",	"http://h h/",
									   "http://h\r\nx", "http://h:0",
									   "http://h:",		"http://h:65536",
									   "http://:80",	"http://h:1:2",
									   "http://[::1",	"http://::1",
									   "http://[]:1",	"http://h:000000000000000080"};

	goes_to(QUEUE, NULL, "https://sqs.eu-central-1.amazonaws.com/");
	goes_to("arn:aws-cn:sns:cn-north-1:" ACCOUNT ":t.fifo", NULL,
			"https://sns.cn-north-1.amazonaws.com.cn/");
	goes_to("arn:aws-us-gov:kinesis:us-gov-west-1:" ACCOUNT ":stream/a.b", NULL,
			"https://kinesis.us-gov-west-1.amazonaws.com/");
	goes_to("arn:aws-eusc:sqs:eusc-de-east-1:" ACCOUNT ":a", NULL,
			"https://sqs.eusc-de-east-1.amazonaws.eu/");
	goes_to("arn:aws-x:sqs:x-1:" ACCOUNT ":a", "https://h", "https://h/");
	goes_to("arn:aws:events:us-east-1:" ACCOUNT ":event-bus/a/b", NULL,
			"https://events.us-east-1.amazonaws.com/");
	goes_to(QUEUE, "http://127.0.0.1:4566", "http://127.0.0.1:4566/");
	goes_to(QUEUE, "https://[::1]:4566/", "https://[::1]:4566/");
	goes_to(QUEUE, "https://[::1]", "https://[::1]/");
	goes_to(QUEUE, "https://h:65535", "https://h:65535/");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		is_refused(bad[i], NULL);
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++)
		is_refused(QUEUE, urls[i]);
}

/* The body of a request with this event alone, or the problem */
static void
becomes(const char *arn, const OutboxMessage *m, const char *expected)
{
	AwsTarget	t;
	AwsText		entry = {0};
	AwsText		body = {0};
	size_t		bytes;
	const char *problem = aws_target_parse(arn, "http://h", &t);

	if (problem == NULL)
		problem = aws_entry_write(&t, "outbox", m, &entry, &bytes);
	if (problem)
		aws_add_text(&body, problem);
	else
	{
		aws_body_begin(&t, &body);
		aws_body_add(&t, &body, 0, &entry);
		aws_body_end(&t, &body);
	}
	aws_add(&body, "", 1);
	ok(strcmp(body.data, expected) == 0, "becomes", body.data, expected);
	aws_text_free(&entry);
	aws_text_free(&body);
}

static void
test_entries(void)
{
	OutboxHeader  headers[] = {{"outbox-attempt", 14, "1", 1},
							   {"a", 1, "x\"y", 3},
							   {"b", 1, "", 0},
							   {"outbox-redelivery", 17, "replay", 6}};
	OutboxMessage m = {.body = "{\"n\":\t1}",
					   .body_len = 8,
					   .id = "ID",
					   .topic = "t.x",
					   .key = "k k",
					   .key_len = 3,
					   .created_ms = 1700000000007,
					   .nheaders = 4,
					   .headers = headers};

	becomes(
		QUEUE, &m,
		"{\"QueueUrl\":\"http://h/" ACCOUNT
		"/orders\",\"Entries\":[{\"Id\":\"0\",\"MessageBody\":\"{\\\"n\\\":\\u00091}\",\"MessageAttributes\":{\"a\":{\"DataType\":\"String\",\"StringValue\":\"x\\\"y\"}}}]}");
	m.key = "k";
	m.key_len = 1;
	becomes(
		"arn:aws:sns:eu-west-1:" ACCOUNT ":t.fifo", &m,
		"Action=PublishBatch&Version=2010-03-31&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A" ACCOUNT
		"%3At.fifo"
		"&PublishBatchRequestEntries.member.1.Id=0"
		"&PublishBatchRequestEntries.member.1.Message=%7B%22n%22%3A%091%7D"
		"&PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Name=a"
		"&PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.DataType=String"
		"&PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.StringValue=x%22y"
		"&PublishBatchRequestEntries.member.1.MessageGroupId=k"
		"&PublishBatchRequestEntries.member.1.MessageDeduplicationId=ID");
	becomes(
		"arn:aws:events:eu-west-1:" ACCOUNT ":event-bus/b", &m,
		"{\"Entries\":[{\"Source\":\"outbox\",\"DetailType\":\"t.x\",\"Time\":1700000000.007,\"Resources\":[\"urn:uuid:ID\"],"
		"\"EventBusName\":\"arn:aws:events:eu-west-1:" ACCOUNT
		":event-bus/b\",\"Detail\":\"{\\\"n\\\":\\u00091}\"}]}");
	becomes(
		"arn:aws:kinesis:eu-west-1:" ACCOUNT ":stream/s", &m,
		"{\"StreamARN\":\"arn:aws:kinesis:eu-west-1:" ACCOUNT
		":stream/s\",\"Records\":[{\"PartitionKey\":\"k\",\"Data\":\"eyJuIjoJMX0=\"}]}");
	m.body = "{]";
	m.body_len = 2;
	becomes("arn:aws:events:eu-west-1:" ACCOUNT ":event-bus/b", &m,
			"its body is no JSON object");
	m.body = "\xed\xa0\x80";
	m.body_len = 3;
	becomes(
		QUEUE, &m,
		"its body has bytes that are no UTF-8, or a character that XML does not have");
	m.body = "x";
	m.body_len = 0;
	becomes(QUEUE, &m, "its body is empty");
	m.body_len = 1;
	headers[1].name = "a!";
	headers[1].name_len = 2;
	becomes(QUEUE, &m,
			"a name of a header has a character that a name of an attribute cannot have");
	headers[1].name = "a";
	headers[1].name_len = 1;
	headers[1].value = "\x01";
	headers[1].value_len = 1;
	becomes(
		QUEUE, &m,
		"a header has a character that XML does not have, so it cannot be an attribute");
}

static void
test_texts(void)
{
	static const struct
	{
		const char *text;
		bool		good;
	} texts[] = {{"", true},
				 {"\t\n\r ~", true},
				 {"\x0b", false},
				 {"\xc3\xa4", true},
				 {"\xc0\x80", false},
				 {"\xc3", false},
				 {"\xed\x9f\xbf", true},
				 {"\xed\xa0\x80", false},
				 {"\xef\xbf\xbd", true},
				 {"\xef\xbf\xbe", false},
				 {"\xf0\x90\x80\x80", true},
				 {"\xf4\x8f\xbf\xbf", true},
				 {"\xf4\x90\x80\x80", false},
				 {"\xf8\x88\x80\x80\x80", false}};
	static const char *const good[] = {"{}", " [ ] ", "1", "\"\\ud83d\\ude00\"",
									   "[1,{\"a\":[true,null]},-1.5e3]"};
	static const char *const bad[] = {"",		 "{",			"[1,]",		 "[,1]",
									  "{\"a\"}", "{\"a\":}",	"{1:2}",	 "[1 2]",
									  "nul",	 "\"\\x\"",		"\"\n\"",	 "{}x",
									  "[}",		 "\"\\u12g4\"", "{\"a\":1,}"};
	char					 deep[1200]; /* levels and their ends */

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		ok(aws_is_xml_text(texts[i].text, strlen(texts[i].text)) == texts[i].good,
		   "characters of XML", texts[i].good ? "yes" : "no", "");
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		ok(outbox_json_read(good[i], strlen(good[i]), NULL, NULL), "JSON", good[i], "");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(!outbox_json_read(bad[i], strlen(bad[i]), NULL, NULL), "no JSON", bad[i], "");
	memset(deep, '[', 600);
	memset(deep + 600, ']', 600);
	ok(outbox_json_read(deep + 600 - 513, 2 * 513, NULL, NULL), "a deep payload", "", "");
	ok(!outbox_json_read(deep, sizeof(deep), NULL, NULL), "too deep", "", "");
}

/* Each entry of the answer: "+" stored, "-" not, "!" the sender's fault, "?" not named; "x": no answer of the service */
static void
says(const char *arn, const char *text, int n, const char *expected)
{
	static AwsAnswer a;
	AwsTarget		 t;
	char			 got[200] = "x";

	(void) aws_target_parse(arn, NULL, &t);
	aws_answer_read(&t, 200, text, strlen(text), n, &a);
	for (int i = 0; a.ok && i < n; i++)
	{
		const AwsEntryAnswer *e = &a.entries[i];

		got[i] = !e->seen ? '?' : e->stored ? '+' : e->sender_fault ? '!' : '-';
		got[i + 1] = '\0';
	}
	ok(strcmp(got, expected) == 0, expected, text, got);
}

static void
test_answers(void)
{
	const char *sns = "arn:aws:sns:eu-west-1:" ACCOUNT ":t";
	const char *stream = "arn:aws:kinesis:eu-west-1:" ACCOUNT ":stream/s";
	const char *bus = "arn:aws:events:eu-west-1:" ACCOUNT ":event-bus/b";

	says(
		QUEUE,
		"{\"Successful\":[{\"Id\":\"0\",\"MessageId\":\"m\"}],\"Failed\":[{\"Id\":\"2\",\"SenderFault\":true,\"Code\":\"c\"},{\"Id\":\"1\",\"SenderFault\":false}]}",
		4, "+-!?");
	says(QUEUE, "{\"Successful\":[{\"Id\":\"0\"}],\"Failed\":[{\"Id\":\"0\"}]}", 1, "x");
	says(QUEUE, "{\"Successful\":[{\"Id\":\"1\"}]}", 1, "x");
	says(QUEUE, "{\"Successful\":[{\"Id\":\"-1\"}]}", 1, "x");
	says(QUEUE, "{\"Successful\":[{\"Id\":\"00000000000000000000000\"}]}", 1, "x");
	says(QUEUE, "{\"Successful\":[{}]}", 1, "x");
	says(QUEUE, "{\"x\":{\"Successful\":[{\"Id\":\"0\"}]}}", 1, "x");
	says(QUEUE, "{\"Records\":[{\"SequenceNumber\":\"1\"}]}", 1, "x");
	says(QUEUE, "{}", 1, "x");
	says(QUEUE, "{\"Successful\":[]}", 1, "?");
	says(QUEUE, "{\"Successful\":[{\"Id\":\"0\"}]", 1, "x");
	says(
		stream,
		"{\"FailedRecordCount\":2,\"Records\":[{\"SequenceNumber\":\"1\",\"ShardId\":\"s\"},{\"ErrorCode\":\"E\",\"ErrorMessage\":\"m\"},{}]}",
		3, "+--");
	says(
		stream,
		"{\"Records\":[{\"SequenceNumber\":\"1\",\"ErrorCode\":\"E\"},{\"SequenceNumber\":\"2\",\"ErrorCode\":null}]}",
		2, "-+");
	says(stream, "{\"Records\":[{\"SequenceNumber\":\"1\"},{\"SequenceNumber\":\"2\"}]}",
		 1, "x");
	says(bus, "{\"FailedEntryCount\":0,\"Entries\":[{\"EventId\":\"e\"}]}", 1, "+");

	/* What is told by its place is told of nothing if the places are not certain. */
	says(stream, "{\"Records\":[{\"SequenceNumber\":\"1\"}]}", 2, "x");
	says(stream, "{\"Records\":[null,{\"SequenceNumber\":\"1\"}]}", 1, "x");
	says(stream, "{\"Records\":[{\"SequenceNumber\":\"1\"},null]}", 2, "x");
	says(stream, "{\"Records\":[[{\"SequenceNumber\":\"1\"}]]}", 1, "x");
	says(bus, "{\"Entries\":[{\"EventId\":\"e\"}],\"Entries\":[{\"EventId\":\"e\"}]}", 2,
		 "x");
	says(stream, "{\"FailedRecordCount\":1,\"Records\":[{\"SequenceNumber\":\"1\"}]}", 1,
		 "x");
	says(bus, "{\"FailedEntryCount\":0,\"Entries\":[{\"ErrorCode\":\"E\"}]}", 1, "x");
	says(QUEUE, "{\"Successful\":[\"0\",{\"Id\":\"0\"}]}", 1, "x");

	/* An error is not a success with another status. */
	says(QUEUE, "{\"__type\":\"AccessDenied\",\"Successful\":[{\"Id\":\"0\"}]}", 1, "x");
	says(
		sns,
		"<?xml version=\"1.0\"?><PublishBatchResponse xmlns=\"u\"><PublishBatchResult><Failed><member><Id>1</Id><Code>c</Code><SenderFault>true</SenderFault></member></Failed><Successful><member><MessageId>m</MessageId><Id>0</Id></member></Successful></PublishBatchResult></PublishBatchResponse>",
		2, "+!");
	says(
		sns,
		"<PublishBatchResponse><PublishBatchResult><Failed/><Successful><member><Id>0</Id></member></Successful></PublishBatchResult></PublishBatchResponse>\n",
		2, "+?");
	says(
		sns,
		"<PublishBatchResponse><PublishBatchResult><Successful><member><Id>0</Id></member></PublishBatchResult></PublishBatchResponse>",
		1, "x");
	says(
		sns,
		"<html></html><PublishBatchResponse><PublishBatchResult><Successful><member><Id>0</Id></member></Successful></PublishBatchResult></PublishBatchResponse>",
		1, "x");
	says(
		sns,
		"<PublishBatchResponse><Error><Code>E</Code></Error><PublishBatchResult><Successful><member><Id>0</Id></member></Successful></PublishBatchResult></PublishBatchResponse>",
		1, "x");
	says(sns, "<!DOCTYPE a><PublishBatchResponse/>", 1, "x");
	says(sns, "<html>0</html>", 1, "x");
	says(sns, "<PublishBatchResponse>&lol;</PublishBatchResponse>", 1, "x");
}

static void
means(int status, const char *code, AwsMeaning expected)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", status);
	ok(aws_request_meaning(status, code) == expected, "means", number, code);
}

static void
test_errors(void)
{
	static AwsAnswer a;
	AwsTarget		 t;
	const char		*sqs =
		"{\"__type\":\"com.amazonaws.sqs#QueueDoesNotExist:http://x\",\"message\":\"No\\u0007 such.\\nsecret\"}";
	const char *sns =
		"<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code><Message>a &lt; b</Message></Error></ErrorResponse>";

	(void) aws_target_parse(QUEUE, NULL, &t);
	aws_answer_read(&t, 400, sqs, strlen(sqs), 1, &a);
	ok(!a.ok && strcmp(a.code, "QueueDoesNotExist") == 0, "code", a.code, "");
	ok(strcmp(a.words, "No? such.") == 0, "words, of the first line", a.words, "");
	(void) aws_target_parse("arn:aws:sns:eu-west-1:" ACCOUNT ":t", NULL, &t);
	aws_answer_read(&t, 404, sns, strlen(sns), 1, &a);
	ok(!a.ok && strcmp(a.code, "NotFound") == 0 && strcmp(a.words, "a < b") == 0,
	   "code and words", a.code, a.words);

	means(400, "QueueDoesNotExist", AWS_REFUSED);
	means(400, "AccessDeniedException", AWS_REFUSED);
	means(403, "", AWS_REFUSED);
	means(404, "", AWS_REFUSED);
	means(301, "", AWS_REFUSED);
	means(400, "ThrottlingException", AWS_BUSY);
	means(429, "", AWS_BUSY);
	means(400, "KMSThrottlingException", AWS_BUSY);
	means(400, "KMS.ThrottlingException", AWS_BUSY);
	means(400, "KMS.DisabledException", AWS_REFUSED);
	means(500, "InternalFailure", AWS_TROUBLE);
	means(503, "", AWS_TROUBLE);
	means(400, "BatchRequestTooLong", AWS_BAD_EVENT);
	means(413, "", AWS_BAD_EVENT);
	means(400, "InvalidParameterValue", AWS_FAILED);
	means(400, "", AWS_FAILED);
}

static void
gives_away(const char *words, const char *secret, bool expected)
{
	ok(aws_gives_away(words, secret) == expected, expected ? "gives away" : "does not",
	   words, secret);
}

static void
test_secrets(void)
{
	char token[600];
	char words[220];

	for (size_t i = 0; i < sizeof(token) - 1; i++)
		token[i] = (char) ('A' + (i * i + i / 7) % 26);
	token[sizeof(token) - 1] = '\0';
	snprintf(words, sizeof(words), "you sent %.200s", token + 100);
	gives_away(words, token, true); /* a part, because words are cut */
	gives_away("you sent", token, false);
	gives_away("", token, false);
	gives_away("you sent tok/en+=", "tok/en+=", true);
	gives_away("you sent tok/en", "tok/en+=", false);
	gives_away("you sent", "", false);
}

int
main(void)
{
	test_targets();
	test_entries();
	test_texts();
	test_answers();
	test_errors();
	test_secrets();
	return done_testing();
}
