/*
 * receiver.c
 *	  The webhook receiver of the measurements that need more than a counter: when
 *	  each request arrived, what it looked like, or no answer at all.
 *
 * One process, epoll, keep-alive.  A request's arrival is the real-time clock just
 * after the recv() that completed it.  Requests carry a number, the value of the
 * first "n": in their body.
 *
 *	  receiver -p PORT [-o FILE]	records "number nanoseconds" lines, which are
 *									written to FILE on SIGTERM
 *			   [-d FILE]			writes the first request as it came
 *			   [-n]					reads and never answers
 *			   [-a]					listens on all addresses of the machine
 */
#define _GNU_SOURCE /* accept4() */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS 64
#define BUFFER (64 * 1024)

typedef struct Client
{
	int	   fd;
	size_t len;
	char   buf[BUFFER + 1];
} Client;

typedef struct Arrival
{
	int64_t number;
	int64_t at; /* nanoseconds since the epoch */
} Arrival;

static const char answer[] = "HTTP/1.1 204 No Content\r\n\r\n";

static volatile sig_atomic_t stopping = false;
static Arrival				*arrivals;
static size_t				 narrivals;
static size_t				 max_arrivals;
static const char			*dump_path;
static bool					 recording;
static bool					 silent;

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static void
on_term(int sig)
{
	(void) sig;
	stopping = true;
}

static void
record(const char *body, int64_t at)
{
	const char *n = strstr(body, "\"n\":");

	if (narrivals == max_arrivals)
	{
		max_arrivals = max_arrivals ? max_arrivals * 2 : 65536;
		arrivals = realloc(arrivals, max_arrivals * sizeof(Arrival));
		if (!arrivals)
			die("realloc");
	}
	arrivals[narrivals].number = n ? strtoll(n + 4, NULL, 10) : -1;
	arrivals[narrivals].at = at;
	narrivals++;
}

static void
dump(const char *data, size_t len)
{
	char  temporary[4096];
	FILE *f;

	/* The file is renamed when it is complete, because a script waits for it. */
	snprintf(temporary, sizeof(temporary), "%s.part", dump_path);
	f = fopen(temporary, "wb");
	if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0 ||
		rename(temporary, dump_path) != 0)
		die(dump_path);
	dump_path = NULL;
}

/*
 * Returns the length of the request at the start of 'buf'.  0: it is not complete.
 */
static size_t
request_length(const char *buf, size_t len, size_t *head)
{
	const char *end = strstr(buf, "\r\n\r\n");
	size_t		body = 0;

	if (!end)
		return 0;
	*head = end + 4 - buf;
	for (const char *line = strstr(buf, "\r\n"); line && line < end;
		 line = strstr(line + 2, "\r\n"))
	{
		if (strncasecmp(line + 2, "Content-Length:", 15) == 0)
			body = strtoul(line + 17, NULL, 10);
	}
	return len >= *head + body ? *head + body : 0;
}

/*
 * Reads what has arrived and answers it.  False: the connection has to be closed.
 */
static bool
serve(Client *c)
{
	ssize_t			n = recv(c->fd, c->buf + c->len, BUFFER - c->len, 0);
	struct timespec ts;
	size_t			head;
	size_t			len;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	c->len += n;
	if (silent)
	{
		c->len = 0;
		return true;
	}
	c->buf[c->len] = '\0';
	while (c->len > 0 && (len = request_length(c->buf, c->len, &head)) > 0)
	{
		char after = c->buf[len];

		if (send(c->fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
			return false;
		c->buf[len] = '\0';
		if (recording)
			record(c->buf + head, (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec);
		if (dump_path)
			dump(c->buf, len);
		c->buf[len] = after;
		memmove(c->buf, c->buf + len, c->len - len + 1);
		c->len -= len;
	}
	return c->len < BUFFER;
}

int
main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
							   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sigaction   act = {.sa_handler = on_term};
	struct epoll_event ev = {.events = EPOLLIN};
	const char		  *out = NULL;
	int				   one = 1;
	int				   listener;
	int				   epfd;
	int				   opt;

	while ((opt = getopt(argc, argv, "p:o:d:na")) != -1)
	{
		switch (opt)
		{
			case 'p':
				addr.sin_port = htons((uint16_t) atoi(optarg));
				break;
			case 'o':
				out = optarg;
				recording = true;
				break;
			case 'd':
				dump_path = optarg;
				break;
			case 'n':
				silent = true;
				break;
			case 'a':
				addr.sin_addr.s_addr = htonl(INADDR_ANY);
				break;
			default:
				return 2;
		}
	}

	/* Without SA_RESTART, so that epoll_wait() returns. */
	sigaction(SIGTERM, &act, NULL);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *) &addr, sizeof(addr)) != 0 ||
		listen(listener, 1024) != 0)
		die("listen");
	epfd = epoll_create1(0);
	ev.data.ptr = NULL;
	epoll_ctl(epfd, EPOLL_CTL_ADD, listener, &ev);

	while (!stopping)
	{
		struct epoll_event events[MAX_EVENTS];
		int				   n = epoll_wait(epfd, events, MAX_EVENTS, -1);

		for (int i = 0; i < n; i++)
		{
			Client *c = events[i].data.ptr;

			if (c && !serve(c))
			{
				close(c->fd);
				free(c);
			}
			if (c == NULL)
			{
				int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);

				if (fd < 0)
					continue;
				setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
				c = malloc(sizeof(Client));
				if (!c)
					die("malloc");
				c->fd = fd;
				c->len = 0;
				ev.data.ptr = c;
				epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
			}
		}
	}

	if (out)
	{
		FILE *f = fopen(out, "w");

		if (!f)
			die(out);
		for (size_t i = 0; i < narrivals; i++)
			fprintf(f, "%lld %lld\n", (long long) arrivals[i].number,
					(long long) arrivals[i].at);
		if (fclose(f) != 0)
			die(out);
	}
	return 0;
}
