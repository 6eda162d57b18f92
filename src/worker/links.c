/*
 * links.c
 *	  Owns the links of endpoints whose transport has any: when they are opened and
 *	  closed, and whether they are up.
 *
 * A link that is down is no failure of events.  Nothing is started, nothing is
 * counted, and the transport connects again by itself.
 */
#include "base/outbox.h"

#include "common/hashfn.h"

#include "base/memory.h"
#include "base/settings.h"
#include "endpoint/operator.h"
#include "endpoint/status.h"
#include "store/endpoint_options.h"
#include "transport/http/http.h"
#include "worker/busy.h"
#include "worker/links.h"
#include "worker/loop.h"
#include "worker/watchdog.h"

static bool wanted; /* some endpoint has, or had, a link */
static int	nlinks; /* that endpoints have */
static int	ndown;	/* of these, are not up */

/* A token came, or did not. */
static void
ask_again(int32_t endpoint_id)
{
	OutboxEndpoint *ep = outbox_loop_find(endpoint_id);

	if (ep)
		outbox_busy_add(ep);
}

void
outbox_links_note(const OutboxEndpoint *ep)
{
	wanted = wanted || outbox_target_has_link(&ep->config.target);
	outbox_http_link_changed = ask_again;
}

/* Connections of webhooks count themselves. */
static bool
is_of_sink(const OutboxTransport *transport)
{
	return transport->headers == NULL;
}

static void
close_handle(const OutboxEndpoint *ep, const OutboxEndpointLink *link)
{
	if (link->handle == NULL)
		return;
	outbox_watchdog_enter(ep->id);
	link->transport->close(link->handle);
	outbox_watchdog_leave();
	if (is_of_sink(link->transport))
		outbox_memory_connections -= OUTBOX_MEMORY_OF_LINK;
}

void
outbox_link_close(OutboxEndpoint *ep)
{
	if (ep->link == &outbox_no_link)
		return;
	close_handle(ep, ep->link);
	nlinks--;
	ndown -= ep->link->state != OUTBOX_LINK_UP;
	pfree(ep->link);
	ep->link = unconstify(OutboxEndpointLink *, &outbox_no_link);
}

/*
 * µs between two looks at a link that is up, at one that is not, and at files of one that
 * could not be opened, on average.  It is longer where there are so many that more looks
 * than these would come in a second.
 */
#define LOOK_EVERY USECS_PER_SEC
#define LOOK_AGAIN (USECS_PER_SEC / 10)
#define LOOK_AT_FILES (USECS_PER_SEC / 2)
#define LOOKS_A_SECOND 4000

/* µs after which a link that could not be opened is opened again: memory may have lacked. */
#define OPEN_AGAIN (10 * USECS_PER_SEC)

/* Looks within this time (µs) are one round of the worker. */
#define LOOKS_TOGETHER (USECS_PER_SEC / 20)

static uint64 reloads; /* of the settings of the server */

/* When an endpoint is examined again that has nothing to send, or whose link is down. */
static TimestampTz
next_look(const OutboxEndpoint *ep, TimestampTz now)
{
	bool		up = ep->link->state == OUTBOX_LINK_UP;
	int64		every = up				  ? LOOK_EVERY :
			  ep->link->handle			  ? LOOK_AGAIN :
			  ep->config.credential_files ? LOOK_AT_FILES :
											OPEN_AGAIN;
	TimestampTz at;

	every = Max(every, (up ? nlinks - ndown : ndown) * (USECS_PER_SEC / LOOKS_A_SECOND));
	at = now + every / 2 + murmurhash32((uint32) ep->id) % every;
	return at + LOOKS_TOGETHER - at % LOOKS_TOGETHER;
}

void
outbox_links_reload(void)
{
	reloads++;
}

/*
 * Opens it with its credentials in UTF-8.  They, and the content of their files, are in
 * this copy only while the transport copies it.
 */
static OutboxLink *
open_handle(OutboxEndpoint *ep, char *reason, size_t size)
{
	OutboxTarget target = ep->config.target;
	OutboxLink	*handle;

	target.credentials = outbox_options_read_files(target.credentials,
												   target.ncredentials,
												   ep->config.credential_files,
												   &ep->link->files_version, reason,
												   size);
	if (target.credentials == NULL)
		return NULL;
	outbox_watchdog_enter(ep->id);
	handle = target.transport->open(&target, reason, size);
	outbox_watchdog_leave();
	outbox_options_wipe(target.credentials, target.ncredentials);
	if (handle && is_of_sink(target.transport))
		outbox_memory_connections += OUTBOX_MEMORY_OF_LINK;
	return handle;
}

/*
 * True if the content of the files may differ from the content that the link was opened
 * with.
 */
static bool
files_have_changed(OutboxEndpoint *ep, TimestampTz now)
{
	const OutboxTarget *target = &ep->config.target;
	uint64				version;

	if (ep->config.credential_files == 0)
		return false;
	if (ep->link->reloads != reloads)
		return true;
	if (now < ep->link->look_at)
		return false;
	version = outbox_options_files_version(target->credentials, target->ncredentials,
										   ep->config.credential_files);
	return version == 0 || version != ep->link->files_version;
}

/*
 * True if it could not be opened, and the settings of the server have changed since then,
 * which may name files that it needs, or some time has passed.
 */
static bool
may_open_now(const OutboxEndpoint *ep, TimestampTz now)
{
	return ep->link->handle == NULL &&
		(ep->link->reloads != reloads || now >= ep->link->opened_at + OPEN_AGAIN);
}

/* The former link is closed last, so that a connection or token which both share stays. */
static void
open_link(OutboxEndpoint *ep, TimestampTz now)
{
	const OutboxTransport *transport = ep->config.target.transport;
	OutboxEndpointLink	   old = *ep->link;
	char				   reason[sizeof(ep->link->reason)] = "";

	if (ep->link == &outbox_no_link)
	{
		ep->link = MemoryContextAllocZero(TopMemoryContext, sizeof(OutboxEndpointLink));
		nlinks++;
	}
	ep->link->transport = transport;
	ep->link->row_version = ep->config.row_version;
	ep->link->keys_version = ep->config.keys_version;
	ep->link->reloads = reloads;
	ep->link->look_at = ep->link->opened_at = now;
	ep->link->handle = open_handle(ep, reason, sizeof(reason));
	close_handle(ep, &old);
	if (ep->link->handle == NULL)
		outbox_status_link(ep, OUTBOX_LINK_DOWN, reason, now);
}

static void
examine(OutboxEndpoint *ep, TimestampTz now)
{
	const OutboxTransport *transport = ep->config.target.transport;
	char				   reason[sizeof(ep->link->reason)] = "";
	OutboxLinkState		   before = ep->link->state;

	/* Its credentials may be missing, or still sealed.  Or nothing is sent for long. */
	if (!outbox_enabled || !outbox_target_has_link(&ep->config.target) ||
		ep->status.held_for || ep->status.paused || ep->status.disabled ||
		outbox_status_is_stuck(ep))
	{
		if (ep->link->transport)
			outbox_link_close(ep);
		return;
	}
	if (ep->link->transport != transport ||
		ep->link->row_version != ep->config.row_version ||
		ep->link->keys_version != ep->config.keys_version || may_open_now(ep, now))
		open_link(ep, now);
	else if (files_have_changed(ep, now))
	{
		open_link(ep, now);
		/* Its receiver may have refused the former content. */
		if (ep->pace.breaker == OUTBOX_BREAKER_OPEN)
			outbox_operator_probe(ep, now);
	}
	if (ep->link->handle != NULL)
	{
		OutboxLinkState state;

		outbox_watchdog_enter(ep->id);
		state = transport->state(ep->link->handle, reason, sizeof(reason));
		outbox_watchdog_leave();
		outbox_status_link(ep, state, reason, now);
	}

	/*
	 * Down: others of its tenant may be behind it.  Up: it sends the waiting deliveries.
	 */
	if (ep->link->state != before)
		outbox_loop.traffic.refill_all = true;
	ndown += (ep->link->state != OUTBOX_LINK_UP) - (before != OUTBOX_LINK_UP);
	if (ep->link->state != before || now >= ep->link->look_at)
		ep->link->look_at = next_look(ep, now);
}

void
outbox_links_step(TimestampTz now)
{
	if (!wanted)
		return;
	for (OutboxEndpoint *ep = outbox_busy_next(NULL); ep; ep = outbox_busy_next(ep))
		examine(ep, now);
}
