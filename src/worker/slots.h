#ifndef OUTBOX_SLOTS_H
#define OUTBOX_SLOTS_H

#include "endpoint/endpoint.h"

/* Called at the start of a worker, when the limit of open files has its final value. */
extern void outbox_slots_init(void);

/* Requests in flight, of all endpoints. */
extern int outbox_slots_in_flight(void);

/*
 * The first is true if the endpoint may have one more request in flight, as far as the
 * others are concerned.  The second is true if endpoints wait for that.
 */
extern bool outbox_slots_free_for(const OutboxEndpoint *ep);
extern bool outbox_slots_wanted(void);

/*
 * The endpoint has something to send, and waits: in turn, until there may be memory for it,
 * or until something is settled.  _leave: it does not wait any more.
 */
typedef enum OutboxLack
{
	OUTBOX_LACKS_TURN,
	OUTBOX_LACKS_MEMORY,
	OUTBOX_LACKS_SETTLE
} OutboxLack;

extern void outbox_slots_wait(OutboxEndpoint *ep, OutboxLack lack, TimestampTz now);
extern void outbox_slots_leave(OutboxEndpoint *ep);

/*
 * True if endpoints that wait for a settle or for memory may be asked with the next round.
 * 'begun': a request was begun in this one, so there may be more memory.
 */
extern bool outbox_slots_more(bool begun);

static inline bool
outbox_slots_waits(const OutboxEndpoint *ep)
{
	return ep->lists->flow.waits;
}

/*
 * Returns the endpoint that is next, which then does not wait any more.  NULL: none waits
 * that may send, or there is no slot for it.
 */
extern OutboxEndpoint *outbox_slots_next(TimestampTz now);

/*
 * A round begins to fill slots: endpoints that lacked something may have it now.
 * _next_time returns when a tenant may send again.  DT_NOEND: none waits for a time.
 */
extern void		   outbox_slots_ask_again(TimestampTz now);
extern TimestampTz outbox_slots_next_time(void);

/* The limits of the tenant may be others now. */
extern void outbox_slots_limits_changed(OutboxTenant *t);

/*
 * A request with a body of so many bytes begins, and counts for rate_limit, or one has
 * ended.  _work: the process has worked so many µs for its requests, also for tokens and
 * challenges, which no slot counts.  It returns true if the endpoint has taken more work
 * than it may, as _owes does.  _end returns until when the endpoint has to wait because
 * they took too much: 'now', or later.  The request has begun at 'begun'.  It counts as
 * so many µs of slot-time at least.
 */
extern void outbox_slots_begin(OutboxEndpoint *ep, size_t bytes, TimestampTz now);
extern bool outbox_slots_work(int32 endpoint_id, int64 usec, TimestampTz now);

extern bool		   outbox_slots_owes(int32 endpoint_id, TimestampTz now);
extern TimestampTz outbox_slots_end(OutboxEndpoint *ep, int64 least, TimestampTz begun,
									TimestampTz now);

/*
 * The endpoint's filter, or its commands, have worked so many µs, of which some were
 * booked.  _judge_at returns when they may work again.
 */
extern bool		   outbox_slots_book(OutboxEndpoint *ep, int64 usec);
extern void		   outbox_slots_judged(OutboxEndpoint *ep, int64 usec, int64 booked,
									   TimestampTz now);
extern TimestampTz outbox_slots_judge_at(OutboxEndpoint *ep);

#endif /* OUTBOX_SLOTS_H */
