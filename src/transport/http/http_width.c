/*
 * http_width.c
 *	  Owns how many requests to one target run at the same time, which is how many
 *	  connections it gets.
 *
 * A receiver that answers fast gets no more requests per second by more connections
 * than a few, but each costs a handshake, memory and time.  One that is far away, or
 * slow, needs them.  So a target begins with a few, and while more requests wait,
 * twice as many are tried.  They stay if that has made the rate higher, or if the
 * receiver takes longer than SLOW to answer.
 */
#include "transport/http/http_internal.h"

#define SLOW 100		/* ms */
#define WATCHED 20		/* ms after which a receiver may seem slow */
#define SETTLED 200		/* ms that new connections may take before a rate is measured */
#define MEASURED 50		/* ms for which it is measured, at least */
#define ROUNDS 4		/* answers on each connection meanwhile, at least */
#define WORTH_IT 1.2	/* times the rate before */
#define TRIED_FOR 30000 /* ms after which half as many are tried again */

void
outbox_width_settle(OutboxWidth *w, int64 now)
{
	w->settling = true;
	w->since = now;
	w->ended = w->good = 0;
}

void
outbox_width_begin(OutboxWidth *w, int first, int64 now)
{
	w->first = w->most = first;
	w->rate_before = -1;
	w->refused = false;
	w->begun_at = now;
	outbox_width_settle(w, now);
}

void
outbox_width_step(OutboxWidth *w, int running, int connecting, int64 now)
{
	int64  took = now - w->since;
	double rate;
	bool   slow;

	if (now - w->begun_at >= TRIED_FOR)
	{
		int half = Max(w->most / 2, w->first);

		outbox_width_begin(w, w->first, now);
		w->most = half;
		return;
	}

	if (w->settling)
	{
		if ((connecting == 0 && running <= w->most) || took >= SETTLED)
		{
			outbox_width_settle(w, now);
			w->settling = false;
		}
		return;
	}

	/*
	 * By Little's law.  The time of a handshake says nothing about the answers.  Of
	 * requests that began together, none may be answered yet.
	 */
	slow = took >= WATCHED && (int64) w->ended * SLOW < (running - connecting) * took;
	if (!slow && (took < MEASURED || w->ended < ROUNDS * running))
		return;

	rate = w->good / (double) took;
	outbox_width_settle(w, now);
	if (!slow && rate <= w->rate_before * WORTH_IT)
	{
		w->most /= 2;
		w->rate_before = -1;
		w->refused = true;
		return;
	}
	if (!slow && w->refused)
		return;
	w->rate_before = rate;
	w->most *= 2;
}
