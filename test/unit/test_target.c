/*
 * test_target.c
 *	  Requests that wait for the first connection to their target are launched for a
 *	  bounded time at once, in their order, and none is forgotten (TAP).
 *
 * links: src/transport/http/http_target.c src/transport/http/http_width.c
 */
#include "transport/http/http_internal.h"
#include "tap.h"
#include "no_server.h"

#define REQUESTS 20
#define TIME 2 /* ms */

static OutboxTransfer requests[REQUESTS];
static int			  launched;
static bool			  in_order = true;

bool
outbox_http_pools_are_scarce(int running)
{
	(void) running;
	return false;
}

/* Takes a millisecond, or a little less. */
static void
launch(OutboxTransfer *t)
{
	int64 now = outbox_http_now();

	in_order = in_order && t == &requests[launched];
	launched++;
	while (outbox_http_now() == now)
		;
}

int
main(void)
{
	static const int target;
	int				 once;
	int				 calls = 0;
	char			 text[32];

	outbox_http_targets_init();
	for (int i = 0; i < REQUESTS; i++)
	{
		requests[i].host = outbox_http_enter_target(&target);
		if (outbox_http_run_or_wait(&requests[i]))
			launch(&requests[i]);
	}
	ok(launched == 1, "before there is a connection", "one is launched", "");
	ok(outbox_http_targets_deadline() == OUTBOX_HTTP_NEVER, "the others", "wait", "");

	outbox_http_got_through(&requests[0]);
	ok(outbox_http_targets_deadline() == 0, "with a connection", "they are ready", "");
	outbox_http_start_waiting(launch, outbox_http_now() + TIME);
	once = launched - 1;
	snprintf(text, sizeof(text), "%d", once);
	ok(once >= 1 && once <= TIME + 2, "so many", "are launched at once", text);
	ok(outbox_http_targets_deadline() == 0, "the rest", "is ready still", "");

	once = launched;
	outbox_http_start_waiting(launch, outbox_http_now() - 1);
	ok(launched == once + 1, "when the time was over before", "one is launched", "");

	while (outbox_http_targets_deadline() == 0 && calls++ < REQUESTS)
		outbox_http_start_waiting(launch, outbox_http_now() + TIME);
	snprintf(text, sizeof(text), "%d", launched);
	ok(launched == REQUESTS, "in the end", "all are", text);
	ok(in_order, "each", "in its turn", "");
	return done_testing();
}
