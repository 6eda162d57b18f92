/*
 * crash_point.c
 *	  Ends the process at the place that a test names.  It is part of a library that
 *	  only a test builds.
 *
 * The file outbox_crash_point in the data directory has the place and the way:
 * "name kill", "name error", "name exit" or "name term".  The process that ends removes the file
 * first, so that only one does.  If the file is still there, the place was not
 * reached.
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "storage/ipc.h"

#include "base/crash_point.h"

#define ORDER "outbox_crash_point"

extern PGDLLEXPORT void outbox_crash_point(const char *name);

void
outbox_crash_point(const char *name)
{
	char	order[128];
	char   *how;
	ssize_t len;
	int		fd = open(ORDER, O_RDONLY);

	if (fd < 0)
		return;
	len = read(fd, order, sizeof(order) - 1);
	close(fd);
	if (len <= 0)
		return;
	order[len] = '\0';
	how = strchr(order, ' ');
	if (how == NULL)
		return;
	*how++ = '\0';
	if (strcmp(order, name) != 0 || unlink(ORDER) != 0)
		return;

	if (strcmp(how, "error") == 0)
		ereport(ERROR, (errmsg("crash point %s", name)));
	if (strcmp(how, "exit") == 0)
		proc_exit(1);
	if (strcmp(how, "term") == 0)
	{
		raise(SIGTERM); /* goes on: it is a request */
		return;
	}
	kill(getpid(), SIGKILL);
	pause();
}
