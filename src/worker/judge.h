#ifndef OUTBOX_JUDGE_H
#define OUTBOX_JUDGE_H

#include "endpoint/endpoint.h"

/*
 * True if the endpoint has a filter that is not to be evaluated now, because filters have
 * taken too much time: its own, or the ones of its tenant.
 */
extern bool outbox_judge_later(OutboxEndpoint *ep);

/*
 * Returns until when the endpoint has to wait with such work, also without a filter: it or its
 * tenant has taken too much time.  0: it has not.
 */
extern TimestampTz outbox_judge_owes_until(OutboxEndpoint *ep);

/* When outbox_loop.due.judge_at has come, such endpoints wait for their turn again. */
extern void outbox_judge_again(TimestampTz now);

/*
 * The time that a template takes is a debt, as that of a filter is.  may_shape is false
 * while the endpoint or its tenant owes: it then makes no request until later.  Otherwise
 * what is done up to count is a debt of them.
 */
extern bool outbox_judge_may_shape(OutboxEndpoint *ep);
extern void outbox_judge_count(OutboxEndpoint *ep, int64 booked);

/*
 * Returns the result of the endpoint's filter for the event, and adds the time that it took
 * to a debt.  An event that cannot be read passes.  OUTBOX_FILTER_LATER: it is not to be
 * evaluated now, because of a debt, or because others have their turn before.  _now never
 * says that: its callers ask for debts themselves, or have a bound of their own.
 */
extern OutboxFilterResult outbox_judge(OutboxEndpoint *ep, OutboxRow *row);
extern OutboxFilterResult outbox_judge_now(OutboxEndpoint *ep, OutboxRow *row);

#endif /* OUTBOX_JUDGE_H */
