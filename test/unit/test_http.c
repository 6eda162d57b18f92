/*
 * test_http.c
 *	  URLs, Retry-After and header lines are read as the standards say (TAP).
 *
 * links: src/transport/http/http_url.c src/transport/host.c src/transport/http/http_version.c src/transport/http/http_config.c src/format/profile.c src/format/signature.c src/base/names.c src/format/header_lines.c src/transport/address.c
 */
#include "format/header_lines.h"
#include "transport/address.h"
#include "transport/http/http.h"
#include "base/encoding.h"
#include "tap.h"

#include <curl/curl.h>

#include "no_signing.h"
#include "no_server.h"

#define LABEL_63 "a123456789b123456789c123456789d123456789e123456789f123456789xyz"

static void
good(const char *url)
{
	const char *hint;
	const char *complaint = outbox_http_check_url(url, &hint);

	ok(complaint == NULL, "good URL", url, complaint ? complaint : "");
}

static void
bad(const char *url, const char *part)
{
	const char *hint;
	const char *complaint = outbox_http_check_url(url, &hint);

	ok(complaint && strstr(complaint, part) && hint && hint[0], "bad URL", url,
	   complaint ? complaint : "");
}

/* Where a URL leads to.  If 'expected' is NULL, it leads nowhere. */
static void
leads_to(const char *url, int default_port, const char *expected, int expected_port)
{
	CURLU	   *parsed = curl_url();
	char		host[32];
	int			port = 0;
	const char *complaint = "no URL";

	if (curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK)
		complaint = outbox_http_split_url(parsed, default_port, host, sizeof(host),
										  &port);
	ok(expected == NULL ?
		   complaint != NULL :
		   complaint == NULL && strcmp(host, expected) == 0 && port == expected_port,
	   "leads to", url, complaint ? complaint : host);
	curl_url_cleanup(parsed);
}

/* If 'problem' is NULL, an endpoint may have this http_version. */
static void
version(const char *url, const char *value, const char *problem)
{
	OutboxOption option = {.name = "http_version", .value = value};
	OutboxTarget target = {.url = (char *) url, .nconfig = 1, .config = &option};
	OutboxAdvice advice = {NULL};
	const char	*complaint = outbox_http_check_target(&target, &advice);

	ok(problem ? complaint && strstr(complaint, problem) && advice.hint :
				 complaint == NULL,
	   "http_version", value, complaint ? complaint : "");
}

static void
refused(const char *text, bool expected)
{
	ok(outbox_http_refuses_version(text) == expected, "refuses HTTP/1.1", text, "");
}

static void
after(const char *value, int64 expected)
{
	/* 1994-11-06 08:49:07 UTC, half a minute before RFC 9110's example */
	ok(outbox_http_retry_after(value, strlen(value), 784111747) == expected,
	   "Retry-After", value, "");
}

static void
line(OutboxHeaders *h, const char *name, const char *value, const char *expected)
{
	bool added = outbox_headers_add(h, name, value, strlen(value));

	ok(added && strcmp(h->buf + h->start[h->n - 1], expected) == 0, "header line", name,
	   value);
}

static void
headers(void)
{
	OutboxHeaders h = {0};
	char		  value[3000];
	bool		  same = true;

	line(&h, "webhook-id", "1", "webhook-id: 1");
	line(&h, "outbox-topic", "a", "webhook-id: 1\r\noutbox-topic: a");
	line(&h, "Idempotency-Key", "k",
		 "webhook-id: 1\r\noutbox-topic: a\r\nIdempotency-Key: k");
	ok(h.n == 1, "our own headers share an entry", "", "");
	line(&h, "Accept", "b", "Accept: b");
	line(&h, "outbox-key", "c", "outbox-key: c");
	line(&h, "outbox-type", "", "outbox-type;");
	line(&h, "outbox-attempt", "1", "outbox-attempt: 1");
	line(&h, "x-blank", "", "x-blank;");
	line(&h, "x-blank", " \t", "x-blank;");
	line(&h, "x", "  y z", "x: y z");
	outbox_headers_reset(&h);
	ok(h.n == 0 && h.len == 0, "reset", "", "");

	memset(value, 'v', sizeof(value));
	for (int i = 0; i < 100; i++)
		same = same && outbox_headers_add(&h, "name", value, i * 30);
	for (int i = 1; i < 100; i++)
		same = same && strlen(h.buf + h.start[i]) == (size_t) (6 + i * 30) &&
			strncmp(h.buf + h.start[i], "name: v", 7) == 0;
	ok(same && h.n == 100, "many header lines", "", "");
	free(h.buf);
	free(h.start);
	free(h.lines);
}

static const char *const no_proxy[] = {"proxy.example:3128",
									   "http://-a.example:3128",
									   "http://u:p@a..example",
									   "http://1.2.3.4.5:3128",
									   "http:/proxy.example:3128",
									   "http:///proxy.example:3128",
									   "http://proxy.example:0",
									   "ftp://proxy.example",
									   "file:///etc/passwd",
									   " ",
									   "foo bar",
									   "http://u:p%00@proxy.example",
									   "http://u%1f:p@proxy.example",
									   "https://u:p%0a@proxy.example"};

/* The words for a failure. */
static void
hidden(const char *url, const char *text, const char *expected)
{
	char buf[256];

	snprintf(buf, sizeof(buf), "%s", text);
	outbox_http_hide_host(buf, url);
	ok(strcmp(buf, expected) == 0, "without the host", text, buf);
}

int
main(void)
{
	OutboxNetworks networks;
	char		   words[64];

	good("https://example.com");
	good("https://example.com:8443/hooks?x=1#y");
	good("HTTPS://EXAMPLE.com/");
	good("https://receiver/hooks");
	good("https://_a.b-.example./x'y");
	good("https://" LABEL_63 ".example/");
	good("https://8.8.8.8/");
	good("https://[2606:4700:4700::1111]/");
	good("https://1.2.3.4.example.com/");

	bad("", "not a URL");
	bad("example.com/hooks", "not a URL");
	bad("//example.com/hooks", "not a URL");
	bad("https://", "not a URL");
	bad("ftp://example.com/", "scheme");
	bad("file:///etc/passwd", "scheme");
	bad("gopher://example.com/", "scheme");
	bad("HTTPS:///path", "no host");
	bad("unknown://example.com/", "scheme");
	bad("https://user@example.com/", "user name");
	bad("https://user:secret@example.com/", "user name");
	bad("https://:secret@example.com/", "user name");
	bad("https://@example.com/", "user name");
	bad("https://example.com:99999/", "port");
	bad("https://example.com/a b", "control character");
	bad("https://example.com/\r\nX: y", "control character");
	bad("https://example.com/\x7f", "control character");
	bad(" https://example.com/", "control character");

	bad("https:/x.y", "no host");
	bad("https:x.y", "no host");
	bad("http:/x.y", "no host");
	bad("https:\\\\example.com/", "a backslash");
	bad("https://example.com/<id>", "< or >");
	bad("https://example.com/?a=\"b\"", "a quote");
	bad("https://example.com/`id`", "a quote");
	bad("https://-a.example/", "cannot be looked up");
	bad("https://" LABEL_63 "a.example/", "cannot be looked up");
	bad("https://" LABEL_63 "." LABEL_63 "." LABEL_63 "." LABEL_63 "/",
		"cannot be looked up");
	bad("https://a..example/", "cannot be looked up");
	bad("https://a%20b.example/", ""); /* libcurl accepts no such URL */
	bad("https://a&b.example/", "");
	bad("https://localhost/", "loopback");
	bad("https://a.LOCALHOST.:8443/", "loopback");
	bad("http://localhost/", "loopback");
	bad("http://receiver.internal/hooks", "plain http");
	good("https://notlocalhost/");

	bad("https://127.0.0.1/", "loopback");
	bad("https://127.1/", "loopback");
	bad("https://0x7f.1/", "loopback");
	bad("https://2130706433/", "loopback");
	bad("https://017700000001/", "loopback");
	bad("https://127.0.0.1./", "loopback");
	bad("https://%31%32%37.0.0.1/", "loopback");
	bad("https://[::1]/", "loopback");
	bad("https://[::ffff:127.0.0.1]/", "loopback");
	bad("https://[::ffff:a9fe:a9fe]/", "link-local");
	bad("https://[fe80::1%25lo]/", "link-local");
	bad("https://[64:ff9b::10.0.0.1]/", "private");
	bad("https://169.254.169.254/latest/", "link-local");
	bad("https://10.0.0.1:443/", "private");
	bad("http://8.8.8.8/", "plain http");
	bad("https://10.0.0.1../", ""); /* a newer libcurl accepts no such URL */
	bad("https://10.0.0.09/", "neither a name nor an address");
	bad("https://4294967296/", "neither a name nor an address");
	bad("https://a.0x/", "neither a name nor an address");
	good("https://a.0xg/");
	good("https://4you.example/");

	leads_to("https://a.example/b", 0, "a.example", 443);
	leads_to("http://a.example./b", 0, "a.example.", 80);
	leads_to("http://_a.example:8080/b", 0, "_a.example", 8080);
	leads_to("http://10.0.0.1/", 0, "", 80);
	leads_to("http://0x7f.1:81/", 0, "", 81);
	leads_to("http://[::1]:82/", 0, "", 82);
	leads_to("http://u:p@proxy.example", 1080, "proxy.example", 1080);
	leads_to("http://proxy.example:80", 1080, "proxy.example", 80);
	leads_to("http://-a.example/", 0, NULL, 0);
	leads_to("http://%2ba.example/", 0, NULL, 0);
	leads_to("http://%2d%2da.example/", 0, NULL, 0);
	leads_to("http://a-name-that-is-too-long.for-this.example/", 0, NULL, 0);

	ok(outbox_http_check_proxy("http://proxy.example:3128") == NULL, "proxy", "", "");
	ok(outbox_http_check_proxy("https://u:p%25%20@10.0.0.1") == NULL,
	   "proxy with a password", "", "");
	for (int i = 0; i < (int) lengthof(no_proxy); i++)
		ok(outbox_http_check_proxy(no_proxy[i]) != NULL, "no proxy", no_proxy[i], "");

	ok(outbox_networks_parse("127.0.0.0/8, fd00::/8", &networks, words, sizeof(words)),
	   "networks", "", "");
	outbox_networks = &networks;
	good("http://receiver.internal/hooks");
	good("http://localhost:8080/");
	good("http://127.0.0.1:8080/");
	good("http://127.1/");
	good("https://[fd00::1]/");
	bad("http://10.0.0.1/", "private");
	bad("http://8.8.8.8/", "plain http");

	after("0", 0);
	after("120", 120);
	after(" 120 \r\n", 120);
	after("0000000000000000000000000007", 7);
	after("1000000000000", PG_INT32_MAX);
	after("99999999999999999999999999999999", PG_INT32_MAX);
	after("", -1);
	after("-5", -1);
	after("+5", -1);
	after("1.5", -1);
	after("5 s", -1);
	after("soon", -1);
	after("Mon", -1);
	after("0x10", -1);
	after("Sun, 06 Nov 1994 08:49:37 GMT", 30);
	after("Sunday, 06-Nov-94 08:49:37 GMT", 30);
	after("Sun Nov  6 08:49:37 1994", 30);
	after("Sun, 06 Nov 1994 08:48:37 GMT", 0);
	after("Thu, 01 Jan 1970 00:00:00 GMT", 0);
	after("Fri, 01 Jan 9999 00:00:00 GMT", PG_INT32_MAX);
	after("Sun, 99 Nov 1994 08:49:37 GMT", -1);
	after("Sun, 06 Nov 1994 08:49:37 GMT and a lot of garbage behind the date itself",
		  -1);

	hidden("https://a.internal:444/x", "SSL: no name matches 'A.internal'",
		   "SSL: no name matches '*'");
	hidden("https://a.internal/", "a.internal and a.internal:443", "* and *:443");
	hidden("https://x/", "xx", "**");
	hidden("nonsense", "nonsense", "nonsense");

	version("https://a/", "auto", NULL);
	version("https://a/", "1.1", NULL);
	version("https://a/", "2", NULL);
	version("HTTPS://a/", "2", NULL);
	version("https://a/", "2.0", "no version of HTTP");
	version("https://a/", "", "no version of HTTP");
	version("http://a/", "auto", NULL);
	version("http://a/", "1.1", NULL);
	version("http://a/", "2", "over https only");

	refused("error:0A000460:SSL routines::reason(1120)", true);
	refused("error:0A000460:SSL routines::tlsv1 alert no application protocol", true);
	refused(
		"gnutls_handshake() failed: No supported application protocol could be negotiated",
		true);
	refused("error:0A000438:SSL routines::tlsv1 alert internal error", false);

	headers();

	return done_testing();
}
