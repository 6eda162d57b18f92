/*
 * links.c
 *	  Owns the links of endpoints whose transport has any: when they are opened and
 *	  closed, and whether they are up.
 *
 * A link that is down is no failure of events.  Nothing is started, nothing is
 * counted, and the transport connects again by itself.
 */
#include "base/outbox.h"

#include "utils/memutils.h"

#include "endpoint/status.h"
#include "transport/sinks.h"
#include "worker/links.h"
#include "worker/loop.h"

static bool
any_transport_has_links(void)
{
	for (int i = 0; i < outbox_ntransports; i++)
		if (outbox_transports[i]->open)
			return true;
	return false;
}

void
outbox_link_close(OutboxEndpoint *ep)
{
	if (ep->link == &outbox_no_link)
		return;
	if (ep->link->handle)
		ep->link->transport->close(ep->link->handle);
	pfree(ep->link);
	ep->link = unconstify(OutboxEndpointLink *, &outbox_no_link);
}

/*
 * The former link is closed last, so that a connection which both share stays.  A URL
 * that cannot be used is tried again when the settings change.
 */
static void
open_link(OutboxEndpoint *ep, TimestampTz now)
{
	const OutboxTransport *transport = ep->config.target.transport;
	OutboxEndpointLink	   old = *ep->link;
	char				   reason[sizeof(ep->link->reason)] = "";

	if (ep->link == &outbox_no_link)
		ep->link = MemoryContextAllocZero(TopMemoryContext, sizeof(OutboxEndpointLink));
	ep->link->transport = transport;
	ep->link->row_version = ep->config.row_version;
	ep->link->keys_version = ep->config.keys_version;
	ep->link->handle = transport->open(&ep->config.target, reason, sizeof(reason));
	if (old.handle)
		old.transport->close(old.handle);
	if (ep->link->handle == NULL)
		outbox_status_link(ep, OUTBOX_LINK_DOWN, reason, now);
}

static void
examine(OutboxEndpoint *ep, TimestampTz now)
{
	const OutboxTransport *transport = ep->config.target.transport;
	char				   reason[sizeof(ep->link->reason)] = "";
	OutboxLinkState		   before = ep->link->state;

	/* Its credentials may be missing, or still sealed. */
	if (transport == NULL || transport->open == NULL || ep->status.held_for)
	{
		if (ep->link->transport)
			outbox_link_close(ep);
		return;
	}
	if (ep->link->transport != transport ||
		ep->link->row_version != ep->config.row_version ||
		ep->link->keys_version != ep->config.keys_version)
		open_link(ep, now);
	if (ep->link->handle == NULL)
		return;
	outbox_status_link(ep, transport->state(ep->link->handle, reason, sizeof(reason)),
					   reason, now);
	if (ep->link->state < before)
		outbox_loop.traffic.refill_all = true;
}

void
outbox_links_step(TimestampTz now)
{
	dlist_iter iter;

	if (!any_transport_has_links())
		return;
	dlist_foreach(iter, &outbox_loop.roster.busy)
		examine(dlist_container(OutboxEndpoint, member.busy_node, iter.cur), now);
}
