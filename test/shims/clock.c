/*
 * clock.c
 *	  A wall clock that a test can set.  Preloaded into a server, it adds the number
 *	  of seconds in the file $OUTBOX_CLOCK.  The monotonic clock stays as it is,
 *	  because no administrator can set it either.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *
offset(void)
{
	static const long long			 none;
	static const volatile long long *found;

	if (found == NULL)
	{
		const char *path = getenv("OUTBOX_CLOCK");
		int			fd = path ? open(path, O_RDONLY) : -1;
		void	   *map = fd >= 0 ?
				  mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, fd, 0) :
				  MAP_FAILED;

		if (fd >= 0)
			close(fd);
		found = map == MAP_FAILED ? &none : map;
	}
	return found;
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	static int (*real)(clockid_t, struct timespec *);
	int result;

	if (real == NULL)
		real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
	result = real(clock, ts);
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
		ts->tv_sec += *offset();
	return result;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec ts;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *t)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
