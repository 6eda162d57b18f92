/*
 * test_width.c
 *	  How many requests to a receiver run at the same time, for receivers of several
 *	  kinds (TAP).
 *
 * links: src/transport/http/http_width.c
 */
#include "transport/http/http_internal.h"
#include "tap.h"

typedef struct Receiver
{
	const char *name;
	double		answer;	   /* ms that it takes to answer one request */
	double		most;	   /* answers per ms */
	int			handshake; /* ms */
	int			wanted;	   /* requests that are waiting or running */
	bool		refuses;   /* every request */
	int			first;	   /* requests in the beginning (0: as many as usual) */
} Receiver;

/* Answers within so many ms.  'w' has the number that ran at the end. */
static double
answers(const Receiver *r, OutboxWidth *w, int ms)
{
	double answered = 0;
	double all = 0;
	int	   connected = 0;
	int	   running = 0;
	int	   since = 0;

	outbox_width_begin(w, r->first ? r->first : OUTBOX_WIDTH_FIRST, 0);
	for (int now = 1; now <= ms; now++)
	{
		double rate;

		if (running != Min(w->most, r->wanted))
		{
			running = Min(w->most, r->wanted);
			since = now;
		}
		if (now - since >= r->handshake || running < connected)
			connected = running;
		rate = r->answer > 0 ? Min(connected / r->answer, r->most) : 0;
		answered += rate;
		all += rate;
		w->ended += (int) answered;
		w->good += r->refuses ? 0 : (int) answered;
		answered -= (int) answered;
		if (now % 10 == 0 && running < r->wanted)
			outbox_width_step(w, running, running - connected, now);
	}
	return all;
}

static void
width(Receiver r, int from, int to)
{
	OutboxWidth w;
	double		best = r.answer > 0 ? Min(r.wanted / r.answer, r.most) : 0;
	double		share;
	char		text[128];

	answers(&r, &w, 2000);
	snprintf(text, sizeof(text), "%d", w.most);
	ok(w.most >= from && w.most <= to, r.name, "after two seconds", text);
	if (best == 0)
		return;
	share = answers(&r, &w, 60000) / (best * 60000);
	snprintf(text, sizeof(text), "%.3f", share);
	ok(share > 0.95, r.name, "of what is possible", text);
}

int
main(void)
{
	width((Receiver){"near and fast", 0.2, 40, 100, 1000, false, 0}, 32, 32);
	width((Receiver){"near, without TLS", 0.2, 40, 0, 1000, false, 0}, 32, 32);
	width((Receiver){"1 ms away", 1, 40, 100, 1000, false, 0}, 32, 64);
	width((Receiver){"5 ms away", 5, 40, 100, 1000, false, 0}, 128, 256);
	width((Receiver){"20 ms away", 20, 40, 60, 1000, false, 0}, 512, 1024);
	width((Receiver){"slow", 500, 40, 5, 1000, false, 0}, 1000, 1024);
	width((Receiver){"does not answer", 0, 0, 5, 1000, false, 0}, 1000, 1024);
	width((Receiver){"never ends a handshake", 0, 0, 100000, 1000, false, 0}, 32, 1024);
	width((Receiver){"fast, connections are scarce", 0.2, 40, 0, 1000, false, 1}, 8, 8);
	width((Receiver){"slow, connections are scarce", 500, 40, 5, 1000, false, 1}, 1000,
		  1024);
	width((Receiver){"refuses fast", 0.2, 40, 0, 1000, true, 0}, 32, 32);
	return done_testing();
}
