/*
 * loop.c
 *	  How many requests per second libcurl can make on this machine if nothing else
 *	  is done.  The deliveries per second of the worker are compared with it.
 *
 * It is one process with a fixed number of requests in flight.  It uses
 * curl_multi_socket_action() over epoll, and reuses easy handles and connections.
 * Header lists are built once and patched in place.  The request is read from a
 * file, as it was on the wire when the worker sent it, so that both send the same
 * lines and the same bytes.  Only what distinguishes one request from another
 * changes: the id in webhook-id and Idempotency-Key, and the digit of
 * outbox-attempt.  Nothing is signed, nothing is logged.
 *
 * libcurl is used as its documentation says, with one exception.  It removes its
 * interest in a socket after each request and adds it again with the next one.  To
 * tell epoll each time, as the examples do (-t), costs half a system call per
 * request.  So a socket stays registered until it is closed, or until an event
 * comes that libcurl does not want.
 *
 * A request that is not answered with 2xx is sent again at once, with the next
 * attempt's number and the same id.
 *
 * With many hosts (-H), libcurl's tables of one multi handle are slow, so that the hosts
 * can be divided among several (-m).  With -w each host gets its connection before the
 * time is taken, and requests go to all of them in turn.
 *
 * Over https the version of HTTP is 1.1, or with -2 that of all requests together on
 * one connection.  No session of TLS is resumed, as in the worker.
 *
 * Prints one line of JSON.
 */
#include <curl/curl.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS 64
#define ID_LEN 36 /* a uuid as text */

/* One of the requests in flight. */
typedef struct Slot
{
	CURL			  *easy;
	int				   multi; /* the handle that its host belongs to */
	struct curl_slist *headers;
	char			  *id; /* places in the header lines (NULL: no such line) */
	char			  *key;
	char			  *attempt;
} Slot;

#define MAX_FDS 65536
#define MAX_MULTIS 64

static CURLM   *multis[MAX_MULTIS];
static int		nmultis = 1;	/* among which the hosts are divided, as in the worker */
static int		owner[MAX_FDS]; /* the handle of a socket */
static int		epfd;
static bool		textbook;				/* true if epoll is told all that libcurl says */
static uint32_t wanted_events[MAX_FDS]; /* by libcurl */
static uint32_t known_events[MAX_FDS];	/* to epoll (0: not registered) */
static int64_t	timer_due[MAX_MULTIS];	/* in microseconds (-1: none) */

static const char *url;
static int		   hosts;		/* number of hosts that requests go to (0: the URL's) */
static const char *authorities; /* file of authorities for TLS (NULL: the system's) */
static long		   http_version = CURL_HTTP_VERSION_1_1;

static long		wanted = 200000; /* requests that end in 2xx */
static long		started;
static long		first; /* requests that are not measured: one to each host */
static long		succeeded;
static long		refused; /* answered with something else and sent again */
static uint64_t random_state = 88172645463325252u;

static void
die(const char *what)
{
	fprintf(stderr, "loop: %s\n", what);
	exit(1);
}

static int64_t
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static uint64_t
next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static void
register_events(int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};
	int				   op = known_events[fd] == 0 ? EPOLL_CTL_ADD :
					   events == 0				  ? EPOLL_CTL_DEL :
													EPOLL_CTL_MOD;

	if (known_events[fd] == events)
		return;
	if (epoll_ctl(epfd, op, fd, &ev) != 0)
		die("epoll_ctl failed");
	known_events[fd] = events;
}

static int
on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
	uint32_t events = 0;

	(void) easy;
	(void) known;

	if (fd >= MAX_FDS)
		die("too many descriptors");
	owner[fd] = (int) ((CURLM **) arg - multis);
	if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
		events |= EPOLLIN;
	if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
		events |= EPOLLOUT;
	wanted_events[fd] = events;
	register_events(fd, textbook ? events : events | (known_events[fd] & EPOLLIN));
	return 0;
}

/* A descriptor that is closed leaves epoll by itself. */
static int
on_close(void *arg, curl_socket_t fd)
{
	(void) arg;
	wanted_events[fd] = known_events[fd] = 0;
	return close(fd);
}

static int
on_timer(CURLM *m, long timeout, void *arg)
{
	(void) m;
	timer_due[(CURLM **) arg - multis] = timeout < 0 ? -1 : now_us() + timeout * 1000;
	return 0;
}

static size_t
on_data(char *data, size_t size, size_t n, void *arg)
{
	(void) data;
	(void) arg;
	return size * n;
}

/* Gives the slot's request a new id and attempt number 1. */
static void
new_identity(Slot *slot)
{
	static const char hex[] = "0123456789abcdef";
	char			  id[ID_LEN];
	uint64_t		  bits = 0;
	int				  left = 0;

	for (int i = 0; i < ID_LEN; i++)
	{
		if (i == 8 || i == 13 || i == 18 || i == 23)
		{
			id[i] = '-';
			continue;
		}
		if (left == 0)
		{
			bits = next_random();
			left = 16;
		}
		id[i] = hex[bits & 15];
		bits >>= 4;
		left--;
	}
	if (slot->id)
		memcpy(slot->id, id, ID_LEN);
	if (slot->key)
		memcpy(slot->key, id, ID_LEN);
	if (slot->attempt)
		*slot->attempt = '1';
}

/* Returns the value of a header line, or NULL if the line is another header's. */
static char *
header_value(char *line, const char *name)
{
	size_t len = strlen(name);

	if (strncasecmp(line, name, len) != 0 || line[len] != ':')
		return NULL;
	line += len + 1;
	while (*line == ' ')
		line++;
	return line;
}

/*
 * Takes over the header lines of the captured request, except those that libcurl
 * writes itself.
 */
static void
take_headers(Slot *slot, const char *head)
{
	bool		accept = false;
	const char *line = strstr(head, "\r\n");

	while (line && line[2] != '\0')
	{
		char		copy[8192];
		const char *end;
		size_t		len;

		line += 2;
		end = strstr(line, "\r\n");
		len = end ? (size_t) (end - line) : strlen(line);
		if (len >= sizeof(copy))
			die("a header line of the request is too long");
		memcpy(copy, line, len);
		copy[len] = '\0';
		line = end;

		if (header_value(copy, "Host") || header_value(copy, "Content-Length"))
			continue;
		if (header_value(copy, "Accept"))
			accept = true;
		slot->headers = curl_slist_append(slot->headers, copy);
	}
	if (!accept)
		slot->headers = curl_slist_append(slot->headers, "Accept:");

	for (struct curl_slist *h = slot->headers; h; h = h->next)
	{
		char *value;

		if ((value = header_value(h->data, "webhook-id")) && strlen(value) == ID_LEN)
			slot->id = value;
		else if ((value = header_value(h->data, "Idempotency-Key")) &&
				 strlen(value) == ID_LEN + 2)
			slot->key = value + 1; /* behind the quote */
		else if ((value = header_value(h->data, "outbox-attempt")))
			slot->attempt = value;
	}
}

static char *
read_file(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	char *data = malloc(1 << 20);

	if (!f || !data)
		die("cannot read the request file");
	*len = fread(data, 1, (1 << 20) - 1, f);
	data[*len] = '\0';
	fclose(f);
	return data;
}

/*
 * With -H a request goes to a random one of these hosts: 127.1.0.1 to 127.1.0.250,
 * 127.1.1.1 and so on.  The URL is then ":port/path".  The first requests, with -w, go to
 * each of them in turn, and those behind as well.
 */
static void
choose_host(Slot *slot)
{
	char text[256];
	int	 host;

	if (hosts == 0)
		return;
	host = first > 0 ? (int) ((started - 1) % hosts) :
					   (int) (next_random() % (uint64_t) hosts);
	slot->multi = host % nmultis;
	snprintf(text, sizeof(text), "http://127.1.%d.%d%s", host / 250, host % 250 + 1, url);
	curl_easy_setopt(slot->easy, CURLOPT_URL, text);
}

static void
start(Slot *slot)
{
	if (curl_multi_add_handle(multis[slot->multi], slot->easy) != CURLM_OK)
		die("curl_multi_add_handle failed");
}

/* For each request that has ended, starts the next one, or the same one again. */
static void
reap(CURLM *multi)
{
	CURLMsg *msg;
	int		 left;

	while ((msg = curl_multi_info_read(multi, &left)))
	{
		CURL	*easy = msg->easy_handle;
		CURLcode result = msg->data.result;
		Slot	*slot;
		long	 status = 0;

		if (msg->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **) &slot);
		curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		if (result != CURLE_OK)
			die(curl_easy_strerror(result));
		curl_multi_remove_handle(multi, easy);
		if (status < 200 || status > 299)
		{
			refused++;
			if (slot->attempt)
				(*slot->attempt)++;
			start(slot);
			continue;
		}
		succeeded++;
		if (started < wanted)
		{
			started++;
			new_identity(slot);
			choose_host(slot);
			start(slot);
		}
	}
}

static double
user_seconds(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_utime.tv_sec + ru.ru_utime.tv_usec / 1e6;
}

static double
system_seconds(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_stime.tv_sec + ru.ru_stime.tv_usec / 1e6;
}

int
main(int argc, char **argv)
{
	int			in_flight = 32;
	const char *request = NULL;
	char	   *head = NULL;
	char	   *body = NULL;
	size_t		len;
	int			opt;
	Slot	   *slots;
	int64_t		begun;
	double		user;
	double		system;
	double		seconds;
	long		measured = 0;
	bool		warm;

	while ((opt = getopt(argc, argv, "n:c:r:tH:m:wC:2")) != -1)
	{
		switch (opt)
		{
			case 'n':
				wanted = atol(optarg);
				break;
			case 'c':
				in_flight = atoi(optarg);
				break;
			case 'r':
				request = optarg;
				break;
			case 't':
				textbook = true;
				break;
			case 'H':
				hosts = atoi(optarg);
				break;
			case 'm':
				nmultis = atoi(optarg);
				break;
			case 'w':
				first = 1;
				break;
			case 'C':
				authorities = optarg;
				break;
			case '2':
				http_version = CURL_HTTP_VERSION_2TLS;
				break;
			default:
				request = NULL;
				optind = argc;
		}
	}
	if (!request || optind != argc - 1 || in_flight < 1 || wanted < in_flight ||
		nmultis < 1 || nmultis > MAX_MULTIS || (first > 0 && hosts == 0))
	{
		fprintf(stderr,
				"usage: loop -r REQUEST-FILE [-n REQUESTS] [-c IN-FLIGHT] [-t] URL\n"
				"       loop -r REQUEST-FILE ... -H HOSTS [-m HANDLES] [-w] :PORT/PATH\n"
				"       loop -r REQUEST-FILE ... [-C AUTHORITIES] [-2] https://...\n");
		return 2;
	}

	url = argv[optind];
	head = read_file(request, &len);
	body = strstr(head, "\r\n\r\n");
	if (!body)
		die("the request file has no end of headers");
	*body = '\0';
	body += 4;
	len -= body - head;

	curl_global_init(CURL_GLOBAL_DEFAULT);
	epfd = epoll_create1(EPOLL_CLOEXEC);
	for (int i = 0; i < nmultis; i++)
	{
		multis[i] = curl_multi_init();
		timer_due[i] = -1;
		curl_multi_setopt(multis[i], CURLMOPT_SOCKETFUNCTION, on_socket);
		curl_multi_setopt(multis[i], CURLMOPT_SOCKETDATA, &multis[i]);
		curl_multi_setopt(multis[i], CURLMOPT_TIMERFUNCTION, on_timer);
		curl_multi_setopt(multis[i], CURLMOPT_TIMERDATA, &multis[i]);
		curl_multi_setopt(multis[i], CURLMOPT_MAXCONNECTS,
						  hosts ? (long) hosts : (long) in_flight * 2);
	}
	warm = first == 0;
	if (!warm)
		wanted += first = hosts;

	slots = calloc(in_flight, sizeof(Slot));
	for (int i = 0; i < in_flight; i++)
	{
		Slot *slot = &slots[i];

		slot->easy = curl_easy_init();
		take_headers(slot, head);
		curl_easy_setopt(slot->easy, CURLOPT_PRIVATE, slot);
		if (hosts == 0)
			curl_easy_setopt(slot->easy, CURLOPT_URL, url);
		curl_easy_setopt(slot->easy, CURLOPT_NOSIGNAL, 1L);
		curl_easy_setopt(slot->easy, CURLOPT_PROXY, "");
		curl_easy_setopt(slot->easy, CURLOPT_HTTPHEADER, slot->headers);
		curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, body);
		curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE, (long) len);
		curl_easy_setopt(slot->easy, CURLOPT_WRITEFUNCTION, on_data);
		curl_easy_setopt(slot->easy, CURLOPT_CLOSESOCKETFUNCTION, on_close);
		curl_easy_setopt(slot->easy, CURLOPT_HTTP_VERSION, http_version);
		curl_easy_setopt(slot->easy, CURLOPT_PIPEWAIT, 1L);
		curl_easy_setopt(slot->easy, CURLOPT_SSL_SESSIONID_CACHE, 0L);
		if (authorities)
			curl_easy_setopt(slot->easy, CURLOPT_CAINFO, authorities);
		curl_easy_setopt(slot->easy, CURLOPT_TIMEOUT_MS, 15000L);
		curl_easy_setopt(slot->easy, CURLOPT_CONNECTTIMEOUT_MS, 5000L);
	}

	begun = now_us();
	user = user_seconds();
	system = system_seconds();
	for (int i = 0; i < in_flight; i++)
	{
		started++;
		new_identity(&slots[i]);
		choose_host(&slots[i]);
		start(&slots[i]);
	}

	while (succeeded < wanted)
	{
		struct epoll_event events[MAX_EVENTS];
		int				   wait = -1;
		int				   running;
		int				   n;
		uint64_t		   touched = 0; /* a bit for each handle */

		for (int i = 0; i < nmultis; i++)
			if (timer_due[i] >= 0)
			{
				int64_t left = timer_due[i] - now_us();
				int		ms = left <= 0 ? 0 : (int) ((left + 999) / 1000);

				wait = wait < 0 || ms < wait ? ms : wait;
			}
		n = epoll_wait(epfd, events, MAX_EVENTS, wait);
		if (n < 0 && errno != EINTR)
			die("epoll_wait failed");
		for (int i = 0; i < n; i++)
		{
			int fd = events[i].data.fd;
			int what = 0;

			if (known_events[fd] != wanted_events[fd])
				register_events(fd, wanted_events[fd]);
			if (wanted_events[fd] == 0)
				continue;
			if (events[i].events & EPOLLIN)
				what |= CURL_CSELECT_IN;
			if (events[i].events & EPOLLOUT)
				what |= CURL_CSELECT_OUT;
			if (events[i].events & (EPOLLERR | EPOLLHUP))
				what |= CURL_CSELECT_ERR;
			curl_multi_socket_action(multis[owner[fd]], fd, what, &running);
			touched |= UINT64_C(1) << owner[fd];
		}
		for (int i = 0; i < nmultis; i++)
			if (timer_due[i] >= 0 && timer_due[i] <= now_us())
			{
				timer_due[i] = -1;
				curl_multi_socket_action(multis[i], CURL_SOCKET_TIMEOUT, 0, &running);
				touched |= UINT64_C(1) << i;
			}
		for (; touched != 0; touched &= touched - 1)
			reap(multis[__builtin_ctzll(touched)]);
		if (!warm && succeeded >= first)
		{
			warm = true;
			begun = now_us();
			user = user_seconds();
			system = system_seconds();
			measured = succeeded + refused;
		}
	}

	seconds = (now_us() - begun) / 1e6;
	user = user_seconds() - user;
	system = system_seconds() - system;
	measured = succeeded + refused - measured;
	printf("{\"succeeded\": %ld, \"refused\": %ld, \"seconds\": %.4f, "
		   "\"per_s\": %.1f, \"cpu_us\": %.3f, \"user_us\": %.3f, \"system_us\": %.3f, "
		   "\"curl\": \"%s\"}\n",
		   succeeded, refused, seconds, measured / seconds,
		   (user + system) * 1e6 / measured, user * 1e6 / measured,
		   system * 1e6 / measured, curl_version_info(CURLVERSION_NOW)->version);

	for (int i = 0; i < in_flight; i++)
	{
		curl_multi_remove_handle(multis[slots[i].multi], slots[i].easy);
		curl_easy_cleanup(slots[i].easy);
		curl_slist_free_all(slots[i].headers);
	}
	free(slots);
	free(head);
	for (int i = 0; i < nmultis; i++)
		curl_multi_cleanup(multis[i]);
	curl_global_cleanup();
	return 0;
}
