/*
 * slow_clock.c
 *	  A server whose every look at the clock takes $OUTBOX_SLOW_CLOCK µs.  So much time
 *	  goes by between two looks, as on a machine that has much else to do.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int
gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	static int		delay = -1;
	struct timespec ts;

	(void) zone;
	if (delay < 0)
	{
		const char *text = getenv("OUTBOX_SLOW_CLOCK");

		delay = text ? atoi(text) : 0;
	}
	usleep((useconds_t) delay);
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}
