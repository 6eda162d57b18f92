/*
 * stuck.c
 *	  A libcurl whose call does not return.  Preloaded into a server, it obeys the file
 *	  $OUTBOX_STUCK, which has a way and a port: "spin 4711".  When it reads from a socket
 *	  that is connected to the port, it makes the file $OUTBOX_STUCK.stuck, and does not
 *	  return:
 *
 *	  spin		in the library's own code
 *	  pause		in a system call that a signal ends
 *	  read		in one that goes on after a signal
 *	  malloc	nearly all of the time inside of malloc() and free()
 *	  search	nearly all of the time in other code of the C library
 *	  callback	nearly all of the time in a callback of the worker
 *	  lock		in a malloc() that never returns, nor does any later one (allocator.c)
 *	  cleanup	not then, but when the handles are freed at the end
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int (*Timer)(void *multi, long ms, void *arg);

#define TIMERFUNCTION 20004
#define TIMERDATA 10005

extern volatile int allocator_hangs __attribute__((weak));

static Timer timer;
static void *timer_arg;

static int
ordered(char *way, int *port)
{
	const char *path = getenv("OUTBOX_STUCK");
	char		order[64] = "";
	int			fd = path ? open(path, O_RDONLY) : -1;
	ssize_t		len;

	if (fd < 0)
		return 0;
	len = read(fd, order, sizeof(order) - 1);
	close(fd);
	return len > 0 && sscanf(order, "%15s %d", way, port) == 2;
}

static int
port_of(int fd)
{
	struct sockaddr_in address;
	socklen_t		   len = sizeof(address);

	if (fd < 0 || getpeername(fd, (struct sockaddr *) &address, &len) != 0)
		return -1;
	return ntohs(address.sin_port);
}

static void
stick(const char *way)
{
	static char			  text[8 * 1024 * 1024];
	volatile unsigned int n = 0;
	char				  byte;
	int					  ends[2];
	char				  path[1024];

	snprintf(path, sizeof(path), "%s.stuck", getenv("OUTBOX_STUCK"));
	close(creat(path, 0600));
	memset(text, 'x', sizeof(text));
	if (pipe(ends) != 0)
		abort();
	for (;;)
	{
		if (strcmp(way, "pause") == 0)
			pause();
		else if (strcmp(way, "read") == 0)
			(void) !read(ends[0], &byte, 1);
		else if (strcmp(way, "malloc") == 0)
			for (int i = 0; i < 1000; i++)
			{
				void *volatile a = malloc((n = n * 1103515245 + 12345) % 3000);
				void *volatile b = malloc(n % 200000);

				free(a);
				free(b);
			}
		else if (strcmp(way, "lock") == 0)
		{
			allocator_hangs = 1;
			free(malloc(1));
		}
		else if (strcmp(way, "search") == 0)
			(void) !memchr(text, 'y', sizeof(text));
		else if (strcmp(way, "callback") == 0 && timer)
			timer(NULL, 1000, timer_arg);
		else
			n++;
	}
}

ssize_t
recv(int fd, void *buffer, size_t size, int flags)
{
	static ssize_t (*real)(int, void *, size_t, int);
	char way[16];
	int	 port;

	if (ordered(way, &port) && port_of(fd) == port && strcmp(way, "cleanup") != 0)
		stick(way);
	if (real == NULL)
		real = (ssize_t(*)(int, void *, size_t, int)) dlsym(RTLD_NEXT, "recv");
	return real(fd, buffer, size, flags);
}

int
curl_multi_setopt(void *multi, int option, ...)
{
	static int (*real)(void *, int, ...);
	va_list args;
	void   *value;

	va_start(args, option);
	value = va_arg(args, void *); /* a number is passed in the same way */
	va_end(args);
	if (option == TIMERFUNCTION)
		timer = (Timer) value;
	if (option == TIMERDATA)
		timer_arg = value;
	if (real == NULL)
		real = (int (*)(void *, int, ...)) dlsym(RTLD_NEXT, "curl_multi_setopt");
	return real(multi, option, value);
}

int
curl_multi_cleanup(void *multi)
{
	static int (*real)(void *);
	char way[16];
	int	 port;

	if (ordered(way, &port) && strcmp(way, "cleanup") == 0)
		stick("spin");
	if (real == NULL)
		real = (int (*)(void *)) dlsym(RTLD_NEXT, "curl_multi_cleanup");
	return real(multi);
}
