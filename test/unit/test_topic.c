/*
 * test_topic.c
 *	  Topics, patterns and header rules accept and match what is documented (TAP).
 *
 * links: src/base/names.c
 */
#include <stdio.h>
#include <string.h>

#include "tap.h"
#include "base/names.h"

static void
topic(const char *text, bool valid)
{
	ok((outbox_topic_problem(text, strlen(text)) == NULL) == valid,
	   valid ? "topic" : "no topic", text, "");
}

static void
pattern(const char *text, bool valid)
{
	ok((outbox_pattern_problem(text, strlen(text)) == NULL) == valid,
	   valid ? "pattern" : "no pattern", text, "");
}

static void
match(const char *text, const char *pat, bool expected)
{
	ok(outbox_topic_matches(text, strlen(text), pat, strlen(pat)) == expected,
	   expected ? "matches" : "does not match", text, pat);
}

static void
name(const char *text, bool from_event, bool valid)
{
	ok((outbox_header_name_problem(text, strlen(text), from_event) == NULL) == valid,
	   valid ? "header name" : "no header name", text, from_event ? "event" : "endpoint");
}

static void
value(const char *text, size_t len, bool valid)
{
	ok((outbox_header_value_problem(text, len) == NULL) == valid,
	   valid ? "header value" : "no header value", "", "");
}

int
main(void)
{
	char *names[] = {"x-ab", "x-A"};
	char  text[300];

	topic("order", true);
	topic("order.created", true);
	topic("A-Z_0-9.x", true);
	topic("", false);
	topic(".", false);
	topic(".order", false);
	topic("order.", false);
	topic("order..created", false);
	topic("order created", false);
	topic("order.*", false);
	topic("stra\xc3\x9f"
		  "e",
		  false);
	memset(text, 'a', sizeof(text));
	ok(outbox_topic_problem(text, 255) == NULL, "topic of 255 bytes", "", "");
	ok(outbox_topic_problem(text, 256) != NULL, "topic of 256 bytes", "", "");
	ok(outbox_topic_problem("order\n", 6) != NULL, "topic with a newline", "", "");
	ok(outbox_topic_problem("a\0b", 3) != NULL, "topic with a zero byte", "", "");

	pattern("*", true);
	pattern("order.*", true);
	pattern("*.created", true);
	pattern("a.*.c", true);
	pattern("outbox.*", true);
	pattern("a*", false);
	pattern("*a", false);
	pattern("a.*b", false);
	pattern("**", false);
	pattern("", false);
	pattern("a..*", false);
	pattern("*.", false);

	match("order", "*", true);
	match("order.created", "*", true);
	match("order.created", "order.created", true);
	match("order.created", "Order.created", false);
	match("order.created", "order.*", true);
	match("order.item.created", "order.*", true);
	match("order", "order.*", false);
	match("orders.created", "order.*", false);
	match("order.created", "order", false);
	match("order", "order.created", false);
	match("order.created", "*.created", true);
	match("order.item.created", "*.created", false);
	match("order.created", "*.deleted", false);
	match("created", "*.created", false);
	match("a.b.c", "a.*.c", true);
	match("a.b.b.c", "a.*.c", false);
	match("a.b.c.d", "a.*.c", false);
	match("a.b", "a.*.c", false);
	match("a.b", "*.*", true);
	match("a.b.c", "*.*", true);
	match("a", "*.*", false);
	match("outbox.test", "*", false);
	match("outbox.test", "*.test", false);
	match("outbox.test", "*.*", false);
	match("outbox.test", "outbox.*", true);
	match("outbox.test", "outbox.test", true);
	match("outbox.a.b", "outbox.*", true);
	match("outbox", "*", true);
	match("outbox", "outbox.*", false);
	match("outboxes.x", "*", true);
	match("Outbox.test", "*", true);
	match("order.created", "outbox.*", false);

	ok(outbox_topic_reserved("outbox.", 7), "reserved", "outbox.", "");
	ok(outbox_topic_reserved("outbox.test", 11), "reserved", "outbox.test", "");
	ok(!outbox_topic_reserved("outbox", 6), "not reserved", "outbox", "");
	ok(!outbox_topic_reserved("outboxes.a", 10), "not reserved", "outboxes.a", "");

	name("X-Tenant", true, true);
	name("traceparent", true, true);
	name("x!#$%&'*+-.^_`|~9", true, true);
	name("", true, false);
	name("x y", true, false);
	name("x:y", true, false);
	name("n\xc3\xa4me", true, false);
	ok(outbox_header_name_problem("Webhook_Id", 10, false) != NULL &&
		   outbox_header_name_problem("content_length", 14, false) != NULL &&
		   outbox_header_name_problem("PROXY_AUTHORIZATION", 19, true) != NULL &&
		   outbox_header_name_problem("X_Tenant", 8, true) == NULL,
	   "header names as CGI sees them", "", "");
	ok(outbox_header_name_among("X_a", 3, names, 2) &&
		   !outbox_header_name_among("X_a", 3, names, 1) &&
		   !outbox_header_name_among("x-b", 3, names, 2),
	   "one of several names is the same", "", "");
	ok(outbox_header_name_is("X_a", 3, "x-A") && !outbox_header_name_is("X_a", 3, "x-ab"),
	   "the same header", "", "");
	ok(outbox_header_name_problem("x\r\ny", 4, true) != NULL,
	   "header name with a line break", "", "");
	name("Host", false, false);
	name("host", false, false);
	name("CONTENT-LENGTH", false, false);
	name("transfer-encoding", false, false);
	name("TRANSFER-ENCODING", false, false);
	name("Connection", false, false);
	name("Expect", false, false);
	name("TE", false, false);
	name("Upgrade", true, false);
	name("webhook-id", false, false);
	name("Webhook-Anything", false, false);
	name("outbox-x", false, false);
	name("ce-type", false, false);
	name("CE-type", true, false);
	name("certificate", true, true);
	name("content-type", true, false);
	name("User-Agent", true, false);
	name("idempotency-key", true, false);
	name("Authorization", true, false);
	name("authorization", false, true);
	name("Cookie", true, false);
	name("Cookie", false, true);

	value("", 0, true);
	value("plain value", 11, true);
	value("gr\xc3\xbc\xc3\x9f", 6, true);
	value("a\r\nb", 4, false);
	value("a\tb", 3, false);
	value("a\0b", 3, false);
	value("\x7f", 1, false);
	value("a\xc2\x80", 3, false);
	value("\xc2\x9f"
		  "b",
		  3, false);
	value("\xc2\xa0", 2, true);
	value("\xc3\x80", 2, true);
	value("\xc2", 1, true);

	return done_testing();
}
