/*
 * early_term.c
 *	  A worker gets SIGTERM at its first look at the clock after it has unblocked its
 *	  signals.  It holds the lock on the slots then.  This is done once, while the file
 *	  $OUTBOX_EARLY_TERM exists, which is removed.  If the handler returns, as it must
 *	  there, it is made again with ".returned" behind its name.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The title is behind other arguments where a script starts the server under a loader. */
static bool
is_worker(void)
{
	char	title[4096];
	int		fd = open("/proc/self/cmdline", O_RDONLY);
	ssize_t len = fd < 0 ? -1 : read(fd, title, sizeof(title));

	if (fd >= 0)
		close(fd);
	return len > 0 && memmem(title, (size_t) len, "outbox worker", 13) != NULL;
}

static void
terminate_once(const char *order)
{
	char name[1024];

	if (unlink(order) != 0)
		return;
	raise(SIGTERM);
	snprintf(name, sizeof(name), "%s.returned", order);
	close(open(name, O_CREAT | O_WRONLY, 0600));
}

int
gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	static bool		first = true;
	const char	   *order = getenv("OUTBOX_EARLY_TERM");
	struct timespec ts;
	sigset_t		blocked;

	(void) zone;
	sigprocmask(SIG_SETMASK, NULL, &blocked);
	if (first && order && !sigismember(&blocked, SIGTERM) && is_worker())
	{
		first = false;
		terminate_once(order);
	}
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}
