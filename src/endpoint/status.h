#ifndef OUTBOX_STATUS_H
#define OUTBOX_STATUS_H

#include "endpoint/endpoint.h"

/* True if its receiver has yet to prove that it wants events. */
extern bool outbox_status_is_unverified(const OutboxEndpoint *ep);

/*
 * True if it is paused, disabled, held, stuck, unverified or dropped: nothing is sent to
 * it or read for it.
 */
extern bool outbox_status_is_off(const OutboxEndpoint *ep);

/* True if it is held because a call of a library for it did not return. */
extern bool outbox_status_is_stuck(const OutboxEndpoint *ep);

/*
 * True if nothing is sent to it for a while: it is off, cannot be settled, has no link,
 * has to wait, or all of its slots have been taken for a second.  Then nothing is read
 * for it, and it gives up events that were read, where memory is short.
 */
extern bool outbox_status_is_shut(const OutboxEndpoint *ep, TimestampTz now);

/*
 * True if a request may be sent to it now.  The first leaves out the limits of its
 * tenant.
 */
extern bool outbox_status_is_ready(OutboxEndpoint *ep, TimestampTz now);
extern bool outbox_status_may_send(OutboxEndpoint *ep, TimestampTz now);

/* True if the next probe is to be an event from the log, and not one to retry. */
extern bool outbox_status_probes_new(const OutboxEndpoint *ep);

/*
 * A request succeeded, or failed.  'd' is one of its deliveries.  'refused': the receiver
 * does not want the event of it.
 */
extern void outbox_status_success(OutboxEndpoint *ep, TimestampTz now);
extern void outbox_status_failure(OutboxEndpoint *ep, const OutboxDelivery *d,
								  bool refused, TimestampTz now);

/*
 * Notes the state of the endpoint's link.  'reason' is "" if it is up and nothing holds
 * it up.
 */
extern void outbox_status_link(OutboxEndpoint *ep, OutboxLinkState state,
							   const char *reason, TimestampTz now);

/*
 * The period in which nothing but failures came: it began at one time and had its
 * last failure at another, or it ends.
 */
extern void outbox_status_failing_since(OutboxEndpoint *ep, TimestampTz since,
										TimestampTz last);
extern void outbox_status_stop_failing(OutboxEndpoint *ep);

/* The clock was set forward by so many µs, which are no time of failing. */
extern void outbox_status_clock_ahead(int64 by);

/*
 * Where nothing but failures has come for outbox.failing_after, and something still
 * waits, makes the next settle emit outbox.failing.  Once for each period of failing,
 * which ends with a success, or when the endpoint is paused or disabled.
 */
extern void outbox_status_check_failing(OutboxEndpoint *ep, TimestampTz now);

/* Returns when that is due.  DT_NOEND: never, as it is now. */
extern TimestampTz outbox_status_failing_at(const OutboxEndpoint *ep);

/* The reason of an endpoint that failed for its disable_after. */
#define OUTBOX_FAILED_TOO_LONG "failed for disable_after"
#define OUTBOX_FILTER_UNFIT "its filter is too long for its payloads"

/*
 * Disables the endpoint, because its receiver wants no event any more, or has failed
 * for too long.  The next settle stores that.
 */
extern void outbox_status_disable(OutboxEndpoint *ep, const char *reason,
								  TimestampTz now);

#endif /* OUTBOX_STATUS_H */
