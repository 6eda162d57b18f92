/*
 * flow.h
 *	  Fair queueing: which waiting flow gets the next slot.
 *
 * A flow has a share of the slots.  It is an endpoint, or a tenant with the endpoints
 * below it.  It uses only numbers and times, so it is tested without a server.
 */
#ifndef OUTBOX_FLOW_H
#define OUTBOX_FLOW_H

#include "lib/pairingheap.h"
#include "utils/timestamp.h"

typedef struct OutboxFlow
{
	struct OutboxFlow *parent;	/* NULL: it is the root */
	pairingheap		   waiting; /* flows below it, the next flow first */
	pairingheap		  *in; /* the heap that 'node' is in: that of the parent, or one of
								 * flows that are held (NULL: none) */
	pairingheap_node   node;
	bool			   waits; /* true if it is an endpoint that has something to send */
	bool		active;		  /* true if it has had work all the time since it began to */
	int			in_flight;
	int			nbelow; /* flows right below it that have requests in flight */
	uint64		used;	/* Slot-µs, less the times at which the requests in flight began.
						 * It is counted modulo 2^64, and only differences matter. */
	uint64		served; /* 'used' when its last request began */
	uint64		clock;	/* slot-µs of the flow below that was served last */
	uint64		period; /* number of times that none below it waited any more */
	uint64		in_period; /* that of the parent that 'used' belongs to */
	int64		order;	   /* among equals, or among flows that are held */
	int64		turn;	   /* its last one among flows below the root that lack memory */
	int64		work;	   /* µs of work for its requests, less the time that they may
						    * take */
	TimestampTz paid_at;   /* when it has waited for the work above that, or before */
	TimestampTz judged_paid_at; /* when the time that filters took is paid, by a clock
								 * that is faster while the process sleeps */
	TimestampTz
		judge_at; /* by that clock: until then its filter waits (0: it does not) */
	TimestampTz booked_at; /* by that clock: when a long evaluation has its turn among
							* those of the flows below the root (0: there is none) */
	TimestampTz answers_paid_at; /* when the kept answers of its failures are paid */
} OutboxFlow;

/*
 * Makes a root.  While '*firsts' is true, endpoints without any request come before all
 * others, whatever their tenants have.
 */
extern void outbox_flow_init(OutboxFlow *root, const bool *firsts);

/* Sets '*firsts', and brings the flows that wait into the order that it gives. */
extern void outbox_flow_set_firsts(OutboxFlow *root, bool *firsts, bool value);

/* Puts a flow that has no parent yet below one. */
extern void outbox_flow_join(OutboxFlow *f, OutboxFlow *parent);

/*
 * The first: the endpoint has something to send, and waits for a slot.  The second: it
 * does not wait any more, because it has nothing, or may not send it.
 */
extern void outbox_flow_wait(OutboxFlow *f, TimestampTz now);
extern void outbox_flow_leave(OutboxFlow *f);

/* Returns the endpoint that gets the next slot.  NULL: none waits, or all are held. */
extern OutboxFlow *outbox_flow_first(const OutboxFlow *root);

/* It is its turn: it does not wait any more. */
extern void outbox_flow_take(OutboxFlow *f, TimestampTz now);

/*
 * It waits for something else than a slot: it is passed over until _release.  Flows that
 * are held are in the order of 'order'.
 */
extern void		   outbox_flow_hold(OutboxFlow *f, pairingheap *held, int64 order);
extern void		   outbox_flow_release(OutboxFlow *f);
extern OutboxFlow *outbox_flow_first_held(pairingheap *held);

/*
 * A request of the endpoint begins, or has ended.  The process works for it: 'may_work' µs,
 * as much as others may take.  More is a debt of the endpoint, and of its tenant, that is
 * paid by waiting: until 'paid_at' it makes no request, and its requests do not go on.
 * _end returns 'paid_at', or 'now'.  'more' is slot-time that the request counts besides
 * its own.
 */
extern void		   outbox_flow_begin(OutboxFlow *f, int64 may_work, TimestampTz now);
extern void		   outbox_flow_work(OutboxFlow *f, int64 usec, TimestampTz now);
extern TimestampTz outbox_flow_end(OutboxFlow *f, int64 more, TimestampTz now);

/*
 * The endpoint's filter, or its commands, have taken so much time of the process, which
 * becomes a debt of the endpoint and of its tenant.  _judge_at returns when more may be
 * done: 'now', or a time at which this is to be asked again.  While _has_to_wait is
 * false, it may.
 *
 * _debt returns the debt for so many µs without an interruption.
 *
 * If it will take long, its turn is booked before.  _book returns true if it is to be done
 * now, and _judged is then told the time that was booked.  Otherwise the endpoint waits.
 */
extern int64 outbox_flow_debt(int64 usec);
extern bool	 outbox_flow_book(OutboxFlow *f, int64 usec, TimestampTz now);
extern void	 outbox_flow_judged(OutboxFlow *f, int64 usec, int64 booked, TimestampTz now);
extern bool	 outbox_flow_has_to_wait(const OutboxFlow *f);
extern TimestampTz outbox_flow_judge_at(OutboxFlow *f, TimestampTz now);

/* The process has slept for so long.  If it was idle, more of these debts is paid. */
extern void outbox_flow_slept(int64 usec);

/* How flows that are held are compared. */
extern int outbox_flow_compare_held(const pairingheap_node *a, const pairingheap_node *b,
									void *arg);

#endif /* OUTBOX_FLOW_H */
