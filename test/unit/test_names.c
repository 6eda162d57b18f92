/*
 * test_names.c
 *	  What libcurl and we keep of names does not grow with the number of names that were ever
 *	  used, and each request goes to the addresses of its own name (TAP).
 *
 * links: src/transport/http/http_lookup.c src/transport/http/http_pool.c
 */
#include "transport/http/http_internal.h"
#include "base/memory.h"
#include "base/settings.h"
#include "no_peers.h"
#include "tap.h"
#include "no_server.h"

#include <malloc.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#define HANDLES 8
#define NAMES 1024		   /* so many are kept before unused ones are freed */
#define APART (600 * 1000) /* ms between two; after that a name is an unused one */
#define AT_ONCE 100000
#define AT_ONCE_BYTES (8 * 1024 * 1024)
#define NAME_BYTES 512
#define SILENT 400
#define GROWTH (NAMES * 32) /* bytes; one address alone takes three times as much */

int				 outbox_worker_max_connections = 16384;
int				 outbox_worker_max_in_flight = 1024;
int				 outbox_worker_memory = 1024 * 1024; /* kB */
uint64			 outbox_http_opened;
int				 outbox_http_connections;
size_t			 outbox_http_idle_bytes;
bool			 outbox_http_lookups_ended;
OutboxHttpConfig outbox_http_config;

static OutboxTransfer requests[HANDLES];
static int			  lookups_fd;
static int64		  now = APART;
static int			  unknown; /* lookups that libcurl wanted to do */
static bool			  went_on;
static char			  went_to[INET6_ADDRSTRLEN];

int
outbox_open_files(void)
{
	return 1000000;
}

bool
outbox_http_watch_pool(OutboxHttpPool *pool)
{
	(void) pool;
	return true;
}

bool
outbox_http_watch_lookups(int fd)
{
	lookups_fd = fd;
	return true;
}

bool
outbox_http_is_lack(int error)
{
	(void) error;
	return false;
}

/* Stands in for the resolver.  The name a-b-c-d.example has the address a.b.c.d. */
int
getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
			struct addrinfo **found)
{
	struct sockaddr_in *address = calloc(1, sizeof(*address));
	unsigned			part[4];

	(void) service, (void) hints;
	while (strncmp(host, "silent", 6) == 0)
		pause();
	if (sscanf(host, "%u-%u-%u-%u", &part[0], &part[1], &part[2], &part[3]) != 4)
		abort();
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(part[0] << 24 | part[1] << 16 | part[2] << 8 |
									 part[3]);
	*found = calloc(1, sizeof(**found));
	(*found)->ai_family = AF_INET;
	(*found)->ai_addr = (struct sockaddr *) address;
	return 0;
}

void
freeaddrinfo(struct addrinfo *found)
{
	free(found->ai_addr);
	free(found);
}

/* Each request ends here, with an error. */
static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	(void) arg, (void) purpose;
	if (address->family == AF_INET)
		inet_ntop(AF_INET, &((struct sockaddr_in *) &address->addr)->sin_addr, went_to,
				  sizeof(went_to));
	else
		inet_ntop(AF_INET6, &((struct sockaddr_in6 *) &address->addr)->sin6_addr, went_to,
				  sizeof(went_to));
	return CURL_SOCKET_BAD;
}

static int
before_lookup(void *resolver, void *reserved, void *arg)
{
	(void) resolver, (void) reserved;
	if (((OutboxTransfer *) arg)->lookup_host[0] == '\0')
		return 0;
	unknown++;
	return 1;
}

static void
go_on(OutboxTransfer *t)
{
	(void) t;
	went_on = true;
}

static void
fail(OutboxTransfer *t, OutboxLookupState why)
{
	(void) t, (void) why;
	abort();
}

static void
begin(OutboxTransfer *t)
{
	t->connect_timeout = t->timeout = 60000;
	t->easy = curl_easy_init();
	t->resolve_since = -1;
	if (t->easy == NULL || curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t) != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_PROXY, "") != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket) != CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_RESOLVER_START_FUNCTION, before_lookup) !=
			CURLE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_RESOLVER_START_DATA, t) != CURLE_OK)
		abort();
}

/* Gives the request to libcurl. */
static void
launch(OutboxTransfer *t)
{
	went_on = false;
	outbox_http_begin(t, now);
	while (outbox_http_look_up(t, now) == OUTBOX_LOOKUP_WAITS)
	{
		while (!went_on)
		{
			struct pollfd p = {.fd = lookups_fd, .events = POLLIN};

			poll(&p, 1, -1);
			outbox_http_lookups_ended = true;
			outbox_http_lookups_step(now, go_on, fail);
		}
	}
	if (outbox_http_pool_add(t) != CURLM_OK)
		abort();
	outbox_http_pool_added(t->pool);
}

/* The address that the next ended request wanted to connect to. */
static const char *
ended(void)
{
	OutboxTransfer *t;
	CURLcode		result;

	went_to[0] = '\0';
	outbox_http_pools_flush();
	while ((t = outbox_http_pools_next_ended(&result)) == NULL)
		outbox_http_pools_run_timers(PG_INT64_MAX);
	outbox_http_pool_remove(t);
	return went_to;
}

/* The n-th name, or 0 to 255 twice in the n-th address.  Sets its URL as http_handle.c does. */
static void
set(OutboxTransfer *t, const char *form, const char *host, int n, char *address)
{
	char url[128];
	char name[64];

	snprintf(address, INET6_ADDRSTRLEN, form, n / 256 % 256, n % 256);
	snprintf(name, sizeof(name), host, n / 256 % 256, n % 256);
	snprintf(url, sizeof(url), "http://%s:8080/", name);
	strcpy(t->lookup_host, strstr(name, ".example") ? name : "");
	t->lookup_port = 8080;
	t->plain = true;
	t->resolve_since = -1;
	t->host_hash = outbox_http_host_hash(url);
	if (curl_easy_setopt(t->easy, CURLOPT_URL, url) != CURLE_OK)
		abort();
}

/* Bytes by which the used memory grows, after so many others were used before. */
static long
grows(const char *form, const char *host, bool *right)
{
	size_t before = 0;

	for (int n = 0; n < 3 * NAMES; n++)
	{
		OutboxTransfer *t = &requests[n % HANDLES];
		char			address[INET6_ADDRSTRLEN];

		if (n == NAMES)
			before = mallinfo2().uordblks;
		now += APART;
		set(t, form, host, n, address);
		launch(t);
		*right = *right && strcmp(ended(), address) == 0;
	}
	return (long) mallinfo2().uordblks - (long) before;
}

static void
check_growth(const char *what, const char *form, const char *host)
{
	bool right = true;
	long bytes = grows(form, host, &right);
	char text[32];

	snprintf(text, sizeof(text), "%ld", bytes);
	ok(bytes < GROWTH, what, "take no more memory in the end", text);
	ok(right, what, "each request goes to its own address", "");
}

/* Names that are all used in one moment, as those of hosts that a customer makes up. */
static void
check_at_once(void)
{
	OutboxTransfer *t = &requests[0];
	bool			found = true;
	size_t			before = 0;
	long			bytes;
	char			text[32];

	for (int n = 0; n < 2 * AT_ONCE; n++)
	{
		if (n == AT_ONCE)
			before = mallinfo2().uordblks;
		snprintf(t->lookup_host, sizeof(t->lookup_host), "%d.localhost", n);
		found = found && outbox_http_look_up(t, now) == OUTBOX_LOOKUP_READY;
	}
	bytes = (long) mallinfo2().uordblks - (long) before;
	snprintf(text, sizeof(text), "%ld", bytes);
	ok(found && bytes < AT_ONCE_BYTES, "names", "are bounded in any moment", text);
}

/* A name is kept with so many bytes as it needs. */
static void
check_size(void)
{
	char   address[INET6_ADDRSTRLEN];
	char   text[32];
	size_t before = mallinfo2().uordblks;
	long   bytes;

	for (int n = 0; n < NAMES; n++)
	{
		set(&requests[0], "10.5.%d.%d", "10-5-%d-%d.example", n, address);
		launch(&requests[0]);
		(void) ended();
	}
	bytes = (long) mallinfo2().uordblks - (long) before;
	snprintf(text, sizeof(text), "%ld", bytes / NAMES);
	ok(bytes < NAMES * NAME_BYTES, "a name", "takes so many bytes", text);
}

static int gave_up;

static void
give_up(OutboxTransfer *t, OutboxLookupState why)
{
	(void) t, (void) why;
	gave_up++;
}

/* Names whose server says nothing, each a ms after the one before. */
static void
check_silent(void)
{
	static OutboxTransfer waiting[SILENT];
	int					  steps = 0;
	char				  text[32];

	for (int i = 0; i < SILENT; i++)
	{
		OutboxTransfer *t = &waiting[i];

		t->connect_timeout = t->timeout = 1000;
		snprintf(t->lookup_host, sizeof(t->lookup_host), "silent%d.example", i);
		t->lookup_port = 80;
		t->plain = true;
		t->resolve_since = -1;
		now++;
		outbox_http_begin(t, now);
		if (outbox_http_look_up(t, now) != OUTBOX_LOOKUP_WAITS)
			abort();
	}
	while (gave_up < SILENT)
	{
		now = Max(now, outbox_http_lookups_deadline());
		outbox_http_lookups_step(now, go_on, give_up);
		steps++;
	}
	snprintf(text, sizeof(text), "%d", steps);
	ok(steps < SILENT / 20, "names that are not found in time",
	   "are looked through so often", text);
}

int
main(void)
{
	char address[INET6_ADDRSTRLEN];
	char later[INET6_ADDRSTRLEN];

	curl_global_init(CURL_GLOBAL_DEFAULT);
	if (!outbox_http_pools_init() || !outbox_http_lookups_init())
		return 1;
	for (int i = 0; i < HANDLES; i++)
		begin(&requests[i]);

	check_growth("names", "10.1.%d.%d", "10-1-%d-%d.example");
	check_growth("names with a dot", "10.2.%d.%d", "10-2-%d-%d.example.");
	check_growth("addresses", "10.3.%d.%d", "10.3.%d.%d");
	check_growth("addresses of IPv6", "2001:db8::1%02x:1%02x", "[2001:db8::1%02x:1%02x]");

	/* One that has not begun is taken back, and its handle has another name. */
	set(&requests[0], "10.4.%d.%d", "10-4-%d-%d.example", 1, address);
	launch(&requests[0]);
	outbox_http_pool_remove(&requests[0]);
	set(&requests[0], "10.4.%d.%d", "10-4-%d-%d.example", 2, later);
	launch(&requests[0]);
	ok(strcmp(ended(), later) == 0, "a handle",
	   "forgets the name that it was not used for", "");

	/* A handle that has a name's address keeps it, whatever others forget. */
	launch(&requests[0]);
	ok(strcmp(ended(), later) == 0, "a second request", "has the address still", "");
	set(&requests[1], "10.4.%d.%d", "10-4-%d-%d.example", 2, later);
	launch(&requests[1]);
	(void) ended();
	set(&requests[1], "10.4.%d.%d", "10-4-%d-%d.example", 1, address);
	launch(&requests[1]);
	(void) ended();
	launch(&requests[0]);
	ok(strcmp(ended(), later) == 0, "when another one has forgotten the name", "too", "");
	ok(unknown == 0, "libcurl", "looks up no name itself", "");

	check_size();
	check_at_once();
	check_silent();
	for (int i = 0; i < HANDLES; i++)
		curl_easy_cleanup(requests[i].easy);
	outbox_http_pools_shutdown();
	return done_testing();
}
