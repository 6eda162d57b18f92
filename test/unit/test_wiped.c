/*
 * test_wiped.c
 *	  A request that has ended leaves neither its credentials nor a token in memory (TAP).
 *
 * links: src/transport/http/http.c src/format/header_lines.c -Wl,--unresolved-symbols=ignore-all
 */
#include "transport/http/http_internal.h"
#include "tap.h"
#include "no_server.h"

#include <stdlib.h>

#define SECRET "a secret of a customer"
#define LONG 5000 /* bytes, for which the space is made larger */

/* Of a handle: there is none, and nothing here sends a request. */
bool
outbox_http_make_handle(OutboxTransfer *t)
{
	(void) t;
	return true;
}

void
outbox_http_auth_end(OutboxTransfer *t)
{
	(void) t;
}

static bool
has_secret(const char *bytes, size_t len)
{
	return memmem(bytes, len, SECRET, strlen(SECRET)) != NULL;
}

int
main(void)
{
	static char		value[LONG];
	OutboxTransfer *t = outbox_http_transport.acquire();
	OutboxHeaders  *h = outbox_http_transport.headers(t);
	char		   *former;
	size_t			former_size;
	char		   *behind;
	char		   *again;

	/* free() writes over the first bytes. */
	memset(value, 'x', sizeof(value));
	if (!outbox_headers_add(h, "First", value, 100) ||
		!outbox_headers_add(h, "Authorization", SECRET, strlen(SECRET)))
		return 1;
	former = h->buf;
	former_size = h->size;
	behind = malloc(1); /* so it cannot be made larger where it is */
	if (!outbox_headers_add(h, "Long", value, sizeof(value)))
		return 1;
	again = malloc(former_size); /* with what free() has left there */
	ok(has_secret(h->buf, h->len), "a request", "has its header lines", "");
#ifdef __SANITIZE_ADDRESS__ /* its malloc() gives other memory */
	(void) former;
#else
	ok(again == former && !has_secret(again, former_size), "where the space for them was",
	   "nothing is left", "");
#endif
	free(behind);
	free(again);

	t->answer = strdup("{\"access_token\": \"" SECRET "\"}");
	t->answer_len = t->answer_size = strlen(t->answer);
	outbox_http_transport.release(t);
	ok(!has_secret(h->buf, h->size), "after its end", "its header lines are overwritten",
	   "");
	ok(!has_secret(t->answer, t->answer_size), "after its end",
	   "its answer is overwritten", "");
	return done_testing();
}
