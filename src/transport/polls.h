/*
 * polls.h
 *	  When the polls of a transport were due.
 *
 * A library ends requests that have timed out before it reads answers.  So where a poll is
 * late, because the process was held up, a delivery whose timeout was over meanwhile has
 * not failed: its answer may have come.
 */
#ifndef OUTBOX_POLLS_H
#define OUTBOX_POLLS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct OutboxPolls
{
	int64_t due_at;				   /* ms, of the next one */
	int64_t late_from, late_until; /* of the last one that was late */
} OutboxPolls;

#define OUTBOX_POLLS_LATE 1000 /* ms */
#define OUTBOX_HELD_UP \
	"the worker was held up until after the timeout, and has not read the answer"
#define OUTBOX_HELD_UP_LOST OUTBOX_HELD_UP ", and it was sent again"

/* A poll begins.  When it ends, due_at is the time. */
static inline void
outbox_polls_begin(OutboxPolls *polls, int64_t now)
{
	if (now - polls->due_at <= OUTBOX_POLLS_LATE)
		return;
	polls->late_from = polls->due_at -
		OUTBOX_POLLS_LATE; /* its timers end a little later */
	polls->late_until = now;
}

/* The next one is due then, or at once if that is over. */
static inline void
outbox_polls_next(OutboxPolls *polls, int64_t at)
{
	if (at > polls->due_at)
		polls->due_at = at;
}

/* True if a delivery that timed out, and whose timeout was over at 'ends', has not failed. */
static inline bool
outbox_polls_held_up(const OutboxPolls *polls, int64_t ends)
{
	return ends >= polls->late_from && ends <= polls->late_until;
}

#endif /* OUTBOX_POLLS_H */
