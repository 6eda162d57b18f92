#ifndef OUTBOX_WATCHDOG_H
#define OUTBOX_WATCHDOG_H

#include <setjmp.h>

/* Written by the process, read by the handler of the timer. */
typedef struct OutboxWatchdog
{
	volatile uint32 call;	  /* the number of the last call that began */
	volatile bool	inside;	  /* true while it lasts */
	volatile bool	ticking;  /* true if the timer is set */
	volatile int32	endpoint; /* that the call works for (0: not known) */
	volatile bool	crashed;  /* a thread of a library has, for this endpoint: */
	volatile int32	crashed_for;
} OutboxWatchdog;

extern OutboxWatchdog outbox_watchdog;

/*
 * Where the process goes on when a call does not return.  It then ends, and the endpoint is
 * held, which has the tenant with this number (0: none).
 */
extern sigjmp_buf outbox_watchdog_way_out;
extern void		  outbox_watchdog_end(uint64 tenant);

/* Called once, before transports are started. */
extern void outbox_watchdog_init(void);

extern void outbox_watchdog_start_ticking(void);

/* The functions 'serves' and 'thread_serves' of OutboxServices. */
extern void outbox_watchdog_serves(int32 endpoint_id);
extern void outbox_watchdog_thread_serves(const volatile int32_t *endpoint);

/*
 * The functions 'worked' and 'owes' of outbox_sinks_load().  The library has worked for this
 * endpoint until now.  Both return true if it has taken more work than it may.
 */
extern bool outbox_watchdog_worked(int32 endpoint_id);
extern bool outbox_watchdog_owes(int32 endpoint_id);

/* Charges the endpoint (0: none) for the work since the last call, and returns the same. */
extern bool outbox_watchdog_charge(int32 endpoint_id, TimestampTz now);

/*
 * Returns the µs that the process has worked, and not waited for a processor, since the last
 * call, and the time.
 */
extern int64 outbox_watchdog_work(TimestampTz *now);

/*
 * A call into a transport goes on that was left for 'done'.  The work since the clock was
 * read, for the outcome or behind the next request, is little, and counts for the call.
 */
static inline void
outbox_watchdog_return(int32 endpoint_id)
{
	outbox_watchdog.call++;
	outbox_watchdog.endpoint = endpoint_id;
	outbox_watchdog.inside = true;
	if (!outbox_watchdog.ticking)
		outbox_watchdog_start_ticking();
}

/* A call into a transport begins, for this endpoint.  0: not known yet. */
static inline void
outbox_watchdog_enter_at(int32 endpoint_id, TimestampTz now)
{
	(void) outbox_watchdog_charge(0, now);
	outbox_watchdog_return(endpoint_id);
}

static inline void
outbox_watchdog_enter(int32 endpoint_id)
{
	outbox_watchdog_enter_at(endpoint_id, GetCurrentTimestamp());
}

/* Returns the endpoint for which the process has to end.  0: not known. */
static inline int32
outbox_watchdog_blamed(void)
{
	if (outbox_watchdog.crashed)
		outbox_watchdog.endpoint = outbox_watchdog.crashed_for;
	outbox_watchdog.crashed = false; /* the end has its time, as that of a call */
	return outbox_watchdog.endpoint;
}

/* The call has returned, or calls 'done'.  Returns the time. */
static inline TimestampTz
outbox_watchdog_leave(void)
{
	TimestampTz now = GetCurrentTimestamp();

	(void) outbox_watchdog_charge(outbox_watchdog.endpoint, now);
	outbox_watchdog.inside = false;
	return now;
}

/* Calls a function of each transport that has it. */
#define outbox_watchdog_call_all(function) \
	for (int i = 0; i < outbox_ntransports; i++) \
		if (outbox_transports[i]->function) \
		{ \
			outbox_watchdog_enter(0); \
			outbox_transports[i]->function(); \
			(void) outbox_watchdog_leave(); \
		}

#endif /* OUTBOX_WATCHDOG_H */
