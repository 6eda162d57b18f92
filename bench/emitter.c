/*
 * emitter.c
 *	  Runs one SQL statement per transaction at a fixed rate, and writes down when.
 *
 * It is an open loop: the statements are due at fixed times, whatever became of
 * those before.  A statement that finds every connection busy waits, and how late
 * it was sent is written down.  It has one thread, and uses libpq's non-blocking
 * interface with prepared statements.  The statement has one text parameter, a JSON
 * object {"n": NUMBER, "text": …} of 100 bytes.
 *
 * The output has a line per statement: its number, the real-time clock just before
 * it was sent and just after its commit was reported, and how late it was sent.
 * All times are nanoseconds.
 *
 *	  emitter -d CONNINFO -q SQL -o FILE [-r PER-SECOND] [-s SECONDS] [-c CONNECTIONS]
 */
#include <libpq-fe.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 64
#define PAYLOAD_LEN 100

typedef struct Connection
{
	PGconn *pg;
	bool	busy;
	int64_t number;
	int64_t sent_at;
	int64_t late;
} Connection;

static Connection connections[MAX_CONNECTIONS];
static int		  nconnections = 8;
static FILE		 *out;

static void
die(const char *what)
{
	fprintf(stderr, "emitter: %s\n", what);
	exit(1);
}

static int64_t
now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void
connect_all(const char *conninfo, const char *sql, int epfd)
{
	for (int i = 0; i < nconnections; i++)
	{
		Connection		  *c = &connections[i];
		struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
		PGresult		  *res;

		c->pg = PQconnectdb(conninfo);
		if (PQstatus(c->pg) != CONNECTION_OK)
			die(PQerrorMessage(c->pg));
		res = PQprepare(c->pg, "emit", sql, 1, NULL);
		if (PQresultStatus(res) != PGRES_COMMAND_OK)
			die(PQerrorMessage(c->pg));
		PQclear(res);
		epoll_ctl(epfd, EPOLL_CTL_ADD, PQsocket(c->pg), &ev);
	}
}

static void
send_one(Connection *c, int64_t number, int64_t due)
{
	char		payload[PAYLOAD_LEN + 64];
	const char *values[1] = {payload};
	int			len;

	len = snprintf(payload, sizeof(payload), "{\"n\": %lld, \"text\": \"",
				   (long long) number);
	memset(payload + len, 'x', PAYLOAD_LEN - 2 - len);
	strcpy(payload + PAYLOAD_LEN - 2, "\"}");

	c->busy = true;
	c->number = number;
	c->late = now_ns(CLOCK_MONOTONIC) - due;
	c->sent_at = now_ns(CLOCK_REALTIME);
	if (!PQsendQueryPrepared(c->pg, "emit", 1, values, NULL, NULL, 0) ||
		PQflush(c->pg) != 0)
		die(PQerrorMessage(c->pg));
}

/* True if the statement has ended. */
static bool
receive(Connection *c)
{
	PGresult *res;
	int64_t	  at = now_ns(CLOCK_REALTIME);

	if (!PQconsumeInput(c->pg))
		die(PQerrorMessage(c->pg));
	while (c->busy && !PQisBusy(c->pg))
	{
		res = PQgetResult(c->pg);
		if (res == NULL)
		{
			c->busy = false;
			fprintf(out, "%lld %lld %lld %lld\n", (long long) c->number,
					(long long) c->sent_at, (long long) at, (long long) c->late);
			return true;
		}
		if (PQresultStatus(res) != PGRES_TUPLES_OK &&
			PQresultStatus(res) != PGRES_COMMAND_OK)
			die(PQerrorMessage(c->pg));
		PQclear(res);
	}
	return false;
}

int
main(int argc, char **argv)
{
	const char		  *conninfo = NULL;
	const char		  *sql = NULL;
	const char		  *path = NULL;
	double			   rate = 100;
	double			   seconds = 10;
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
	struct itimerspec  tick = {0};
	int64_t			   interval;
	int64_t			   begun;
	int64_t			   total;
	int64_t			   sent = 0;
	int64_t			   done = 0;
	int				   timer;
	int				   epfd;
	int				   opt;

	while ((opt = getopt(argc, argv, "d:q:o:r:s:c:")) != -1)
	{
		switch (opt)
		{
			case 'd':
				conninfo = optarg;
				break;
			case 'q':
				sql = optarg;
				break;
			case 'o':
				path = optarg;
				break;
			case 'r':
				rate = atof(optarg);
				break;
			case 's':
				seconds = atof(optarg);
				break;
			case 'c':
				nconnections = atoi(optarg);
				break;
			default:
				return 2;
		}
	}
	if (!conninfo || !sql || !path || rate <= 0 || nconnections < 1 ||
		nconnections > MAX_CONNECTIONS)
	{
		fprintf(stderr,
				"usage: emitter -d CONNINFO -q SQL -o FILE"
				" [-r PER-SECOND] [-s SECONDS] [-c CONNECTIONS]\n");
		return 2;
	}
	out = fopen(path, "w");
	if (!out)
		die(path);

	epfd = epoll_create1(EPOLL_CLOEXEC);
	connect_all(conninfo, sql, epfd);

	interval = (int64_t) (1e9 / rate);
	total = (int64_t) (rate * seconds);
	timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	begun = now_ns(CLOCK_MONOTONIC) + interval;
	tick.it_value.tv_sec = begun / 1000000000;
	tick.it_value.tv_nsec = begun % 1000000000;
	tick.it_interval.tv_sec = interval / 1000000000;
	tick.it_interval.tv_nsec = interval % 1000000000;
	timerfd_settime(timer, TFD_TIMER_ABSTIME, &tick, NULL);
	epoll_ctl(epfd, EPOLL_CTL_ADD, timer, &ev);

	while (done < total)
	{
		struct epoll_event events[MAX_CONNECTIONS + 1];
		int				   n = epoll_wait(epfd, events, MAX_CONNECTIONS + 1, -1);
		int64_t			   now;

		for (int i = 0; i < n; i++)
		{
			uint64_t expirations;

			if (events[i].data.ptr)
				done += receive(events[i].data.ptr);
			else if (read(timer, &expirations, sizeof(expirations)) < 0 &&
					 errno != EAGAIN)
				die("cannot read the timer");
		}
		now = now_ns(CLOCK_MONOTONIC);
		for (int i = 0; i < nconnections; i++)
		{
			int64_t due = begun + sent * interval;

			if (sent == total || due > now)
				break;
			if (!connections[i].busy)
				send_one(&connections[i], sent++, due);
		}
	}

	if (fclose(out) != 0)
		die(path);
	for (int i = 0; i < nconnections; i++)
		PQfinish(connections[i].pg);
	return 0;
}
