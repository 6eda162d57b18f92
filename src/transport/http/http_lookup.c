/*
 * http_lookup.c
 *	  Owns the names of targets and the addresses that they lead to.
 *
 * libcurl never looks up a name.  It gets the addresses with the request.  The
 * behaviour of libcurl's own resolver while a name server is silent differs between
 * versions.  It may stop the whole worker, the worker's end, or the lookups of all
 * other names.
 *
 * Each lookup here is a call of getaddrinfo() in a thread of its own, which ends with
 * it.  The worker never waits for a thread.  A request that times out leaves its
 * thread behind, and so does a worker that ends.  A thread has all signals blocked,
 * because PostgreSQL's handlers must never run there.  It calls no function of
 * PostgreSQL or libcurl.  Its result is passed on under a mutex.  A descriptor that the
 * worker polls with the requests' sockets announces it.
 *
 * The number of threads is bounded.  A name that waits for one gets it in its turn.  One
 * that has hung before has its turn last, and such names have half of the threads at
 * most.  A name that may hang gets no more than half of the threads that are left.  So
 * names that get no answer leave a thread for others.  Addresses that were found before
 * are used meanwhile.
 */
#include "base/listed.h"
#include "base/settings.h"
#include "transport/http/http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/hashfn.h"

/*
 * Lookups at the same time, including lookups without an answer, and their part of the
 * descriptors.
 */
#define LOOKUPS_MAX 512
#define FILES_SHARE 8
#define DEADLINES_APART 100 /* ms */
/* Of a thread; the system's resolver modules run on it. */
#define STACK_BYTES (1024 * 1024)
#define NAME_BUCKETS 4096
#define NAMES_MAX 32768 /* unless lookups of more are waited for */
#define ADDRESSES_KEPT 32

/* Milliseconds. */
#define FRESH_FOR (60 * 1000)	/* addresses are used without another lookup */
#define USABLE_FOR (300 * 1000) /* and are used while another lookup runs */
#define SHARED_FOR (10 * 1000)	/* a request waits for a lookup that began earlier */
#define REPEATED_AFTER 1000		/* between lookups of a name that is still usable */
#define HANGS_AFTER 2000		/* a lookup without an answer has hung */

/* A name and a port, because libcurl takes addresses for such a pair. */
typedef struct HostName
{
	struct HostName *next; /* in its bucket */
	uint32			 hash;
	int				 nlookups;	  /* number of lookups that run */
	struct Lookup	*current;	  /* the lookup for which requests wait */
	bool			 hangs;		  /* its last lookup has hung */
	dlist_node		 queue_node;  /* while it waits for a thread */
	dlist_head		 waiting;	  /* transfers */
	int64			 asked_at;	  /* when the last lookup began */
	int64			 known_since; /* when the lookup began that found the addresses */
	char			*addresses;	  /* comma-separated; NULL: unknown */
	int				 port;
	char			 host[FLEXIBLE_ARRAY_MEMBER];
} HostName;

typedef struct Lookup
{
	struct Lookup	*next; /* in the list of ended lookups */
	HostName		*name; /* never touched by the thread, nor are the next three */
	dlist_node		 node; /* on 'young', unless it hangs */
	bool			 hangs;
	int64			 begun_at;
	int				 error;	 /* result of getaddrinfo() */
	bool			 lacked; /* it failed for a lack of our own */
	struct addrinfo *found;
	char			 host[FLEXIBLE_ARRAY_MEMBER];
} Lookup;

static HostName	 *names[NAME_BUCKETS];
static int		  nnames;
static int		  sweep_at = 1024; /* number of names at which unused ones are freed */
static int		  most;			   /* lookups */
static int		  nlookups;
static int		  nhang;							/* of these */
static dlist_head young = DLIST_STATIC_INIT(young); /* the others, by their time */
static dlist_head queues[2] = {DLIST_STATIC_INIT(queues[0]),
							   DLIST_STATIC_INIT(queues[1])};
static int64	  forget_before; /* results of earlier lookups are not used any more */
/* No waiting request has an earlier deadline. */
static int64 next_deadline = PG_INT64_MAX;

/* Shared with the threads. */
static int			   ended_fd = -1;
static pthread_mutex_t ended_mutex = PTHREAD_MUTEX_INITIALIZER;
static Lookup		  *ended;

/*
 * Threads
 */

/* The resolver's modules need files, and say no more than that a name was not found. */
static bool
lacks_descriptor(int error)
{
	int fd = dup(ended_fd);

	if (fd >= 0)
		close(fd);
	return fd < 0 || outbox_http_is_lack(error);
}

static void *
look_up(void *arg)
{
	Lookup		   *l = arg;
	struct addrinfo hints;
	uint64			one = 1;
	ssize_t			written;

	memset(&hints, 0, sizeof(hints));
	hints.ai_socktype = SOCK_STREAM;
	errno = 0;
	l->error = getaddrinfo(l->host, NULL, &hints, &l->found);
	l->lacked = l->error == EAI_MEMORY || (l->error != 0 && lacks_descriptor(errno));

	pthread_mutex_lock(&ended_mutex);
	l->next = ended;
	ended = l;
	pthread_mutex_unlock(&ended_mutex);

	/* From here on the lookup belongs to the worker. */
	written = write(ended_fd, &one, sizeof(one));
	(void) written;
	return NULL;
}

/* The state for a request that waits for it, or why it could not begin. */
static OutboxLookupState
begin_lookup(HostName *name, int64 now)
{
	size_t		   size = strlen(name->host) + 1;
	sigset_t	   all;
	sigset_t	   before;
	pthread_attr_t attributes;
	pthread_t	   thread;
	Lookup		  *l;
	int			   error;

	l = calloc(1, offsetof(Lookup, host) + size);
	if (l == NULL)
		return OUTBOX_LOOKUP_LACKS;
	l->name = name;
	l->begun_at = now;
	memcpy(l->host, name->host, size);
	if (pthread_attr_init(&attributes) != 0)
	{
		free(l);
		return OUTBOX_LOOKUP_LACKS;
	}
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);

	/* The thread inherits this thread's signal mask. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, &attributes, look_up, l);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (error != 0)
	{
		free(l);
		return OUTBOX_LOOKUP_LACKS;
	}
	name->current = l;
	name->asked_at = now;
	name->nlookups++;
	nlookups++;
	l->hangs = name->hangs;
	if (l->hangs)
		nhang++;
	else
		dlist_push_tail(&young, &l->node);
	return OUTBOX_LOOKUP_WAITS;
}

static bool
has_room(bool hangs)
{
	return nlookups < most &&
		(hangs ? nhang < most / 2 : nlookups - nhang < Max((most - nhang) / 2, 1));
}

/* Begins a lookup, or lets it wait for its turn. */
static OutboxLookupState
begin_or_queue(HostName *name, int64 now)
{
	if (outbox_is_listed(&name->queue_node))
		return OUTBOX_LOOKUP_WAITS;
	if (has_room(name->hangs) && dlist_is_empty(&queues[name->hangs]))
		return begin_lookup(name, now);
	outbox_list_add(&queues[name->hangs], &name->queue_node);
	return OUTBOX_LOOKUP_WAITS;
}

void
outbox_http_begin(OutboxTransfer *t, int64 now)
{
	t->begun_at = now;
	t->lookup_deadline = now + Min(t->connect_timeout, t->timeout);
	/* All that wait are looked through at each deadline, so many have the same. */
	t->lookup_deadline += DEADLINES_APART - t->lookup_deadline % DEADLINES_APART;
}

/* The time of requests that have waited for their turn begins now. */
static void
begin_queued(int64 now)
{
	for (int hangs = 0; hangs <= 1; hangs++)
		while (has_room(hangs) && !dlist_is_empty(&queues[hangs]))
		{
			HostName  *name = dlist_head_element(HostName, queue_node, &queues[hangs]);
			bool	   first = name->current == NULL;
			dlist_iter iter;

			if (begin_lookup(name, now) != OUTBOX_LOOKUP_WAITS)
				return; /* the next lookup that ends gives back the missing resource */
			outbox_list_remove(&name->queue_node);
			if (first)
				dlist_foreach(iter, &name->waiting)
					outbox_http_begin(dlist_container(OutboxTransfer, node, iter.cur),
									  now);
		}
}

/* A lookup that has hung leaves its place to a name that may get an answer. */
static void
note_hanging(int64 now)
{
	while (!dlist_is_empty(&young))
	{
		Lookup *l = dlist_head_element(Lookup, node, &young);

		if (now - l->begun_at < HANGS_AFTER)
			break;
		dlist_delete(&l->node);
		l->hangs = l->name->hangs = true;
		nhang++;
	}
}

/*
 * Names
 */

/* Frees the names that no lookup has been begun for in so many ms. */
static void
free_unused(int64 now, int64 unused_for)
{
	for (int i = 0; i < NAME_BUCKETS; i++)
	{
		HostName **link = &names[i];

		while (*link != NULL)
		{
			HostName *name = *link;

			if (name->nlookups > 0 || outbox_is_listed(&name->queue_node) ||
				!dlist_is_empty(&name->waiting) || now - name->asked_at <= unused_for)
			{
				link = &name->next;
				continue;
			}
			*link = name->next;
			free(name->addresses);
			free(name);
			nnames--;
		}
	}
}

/* Addresses that are forgotten too early are only looked up again. */
static void
sweep(int64 now)
{
	free_unused(now, USABLE_FOR);
	if (nnames > NAMES_MAX / 2)
		free_unused(now, -1);
	sweep_at = Max(1024, nnames * 2);
}

/* The name's entry, made if there is none.  NULL: out of memory. */
static HostName *
find_name(const char *host, int port, int64 now)
{
	size_t	   len = strlen(host);
	uint32	   hash = hash_bytes((const unsigned char *) host, (int) len);
	HostName **bucket = &names[hash % NAME_BUCKETS];
	HostName  *name;

	for (name = *bucket; name != NULL; name = name->next)
		if (name->hash == hash && name->port == port && strcmp(name->host, host) == 0)
			return name;
	if (nnames >= sweep_at)
		sweep(now);
	name = calloc(1, offsetof(HostName, host) + len + 1);
	if (name == NULL)
		return NULL;
	name->hash = hash;
	name->port = port;
	memcpy(name->host, host, len + 1);
	dlist_init(&name->waiting);
	name->next = *bucket;
	*bucket = name;
	nnames++;
	return name;
}

/* True for names that always mean this machine (RFC 6761), as in libcurl. */
static bool
is_localhost(const char *host)
{
	size_t len = strlen(host);

	if (len > 0 && host[len - 1] == '.')
		len--;
	return (len == 9 && strncasecmp(host, "localhost", 9) == 0) ||
		(len > 10 && strncasecmp(host + len - 10, ".localhost", 10) == 0);
}

/*
 * libcurl keeps each address that it was given, and each one in a URL, for as long as the
 * cache lasts.  So the handle has a cache of its own, and gets another one when its
 * addresses change.  Returns false, with resolve_since of -1, if there is no memory.
 */
static bool
change_cache(OutboxTransfer *t)
{
	CURLSH *fresh = curl_share_init();

	t->resolve_since = -1;
	if (fresh == NULL ||
		curl_share_setopt(fresh, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS) != CURLSHE_OK ||
		curl_easy_setopt(t->easy, CURLOPT_SHARE, fresh) != CURLE_OK)
	{
		curl_share_cleanup(fresh);
		return false;
	}
	curl_share_cleanup(t->cache);
	t->cache = fresh;
	return true;
}

/* Prepares a request that needs no addresses. */
static bool
tell_of_no_name(OutboxTransfer *t)
{
	if (t->resolve_since == 0)
		return true;
	if (!change_cache(t) || curl_easy_setopt(t->easy, CURLOPT_RESOLVE, NULL) != CURLE_OK)
		return false;
	t->resolve_since = 0;
	return true;
}

/*
 * Sets CURLOPT_RESOLVE.  libcurl's versions differ in whether a dot at the end belongs to
 * the name, so such a name is set in both forms.
 */
static bool
tell_libcurl(OutboxTransfer *t, const HostName *name)
{
	size_t len = strlen(name->host);
	size_t size = len + strlen(name->addresses) + 16;
	bool   dotted = len > 1 && name->host[len - 1] == '.';

	if (t->resolve_since == name->known_since)
		return true;
	if (!change_cache(t))
		return false;
	if (t->resolve_size < 2 * size)
	{
		char *bigger = realloc(t->resolve, 2 * size);

		if (bigger == NULL)
			return false;
		t->resolve = bigger;
		t->resolve_size = 2 * size;
	}
	snprintf(t->resolve, size, "%s:%d:%s", name->host, name->port, name->addresses);
	t->resolve_lines[0].data = t->resolve;
	t->resolve_lines[0].next = dotted ? &t->resolve_lines[1] : NULL;
	if (dotted)
		snprintf(t->resolve + size, size, "%.*s:%d:%s", (int) len - 1, name->host,
				 name->port, name->addresses);
	t->resolve_lines[1].data = t->resolve + size;
	t->resolve_lines[1].next = NULL;
	if (curl_easy_setopt(t->easy, CURLOPT_RESOLVE, &t->resolve_lines[0]) != CURLE_OK)
		return false;
	t->resolve_since = name->known_since;
	return true;
}

/*
 * True if requests may use the addresses of a name.  While it waits for a thread, they
 * are used for longer.
 */
static bool
is_usable(const HostName *name, int64 now)
{
	return name->addresses != NULL && name->known_since >= forget_before &&
		(now - name->known_since < USABLE_FOR || outbox_is_listed(&name->queue_node));
}

OutboxLookupState
outbox_http_look_up(OutboxTransfer *t, int64 now)
{
	bool			  proxied = t->proxied;
	const char		 *host = proxied ? outbox_http_config.proxy_host : t->lookup_host;
	OutboxLookupState state;
	HostName		 *name;

	if (host[0] == '\0') /* an address */
		return tell_of_no_name(t) ? OUTBOX_LOOKUP_READY : OUTBOX_LOOKUP_LACKS;
	name = find_name(host, proxied ? outbox_http_config.proxy_port : t->lookup_port, now);
	if (name == NULL)
		return OUTBOX_LOOKUP_LACKS;
	if (is_localhost(host))
	{
		if (name->addresses == NULL &&
			(name->addresses = strdup("127.0.0.1,[::1]")) == NULL)
			return OUTBOX_LOOKUP_LACKS;
		name->asked_at = now;
		if (!is_usable(name, now) || now - name->known_since >= FRESH_FOR)
			name->known_since = now;
	}

	if (is_usable(name, now))
	{
		if (now - name->known_since >= FRESH_FOR &&
			now - name->asked_at >= (name->current ? SHARED_FOR : REPEATED_AFTER))
			(void) begin_or_queue(name, now);
		return tell_libcurl(t, name) ? OUTBOX_LOOKUP_READY : OUTBOX_LOOKUP_LACKS;
	}

	/*
	 * A lookup that began before a reload may return an old result.  One that began
	 * long ago may never end.  Such a lookup is abandoned, and a new one begins.
	 */
	if (name->current == NULL || name->asked_at < forget_before ||
		now - name->asked_at >= SHARED_FOR)
	{
		state = begin_or_queue(name, now);
		if (state != OUTBOX_LOOKUP_WAITS)
			return state;
	}
	dlist_push_tail(&name->waiting, &t->node);
	next_deadline = Min(next_deadline, t->lookup_deadline);
	return OUTBOX_LOOKUP_WAITS;
}

/* The addresses as libcurl expects them, in the resolver's order; NULL: none. */
static char *
write_addresses(const struct addrinfo *found)
{
	char   text[ADDRESSES_KEPT * (INET6_ADDRSTRLEN + 3)];
	size_t len = 0;
	int	   n = 0;

	for (; found != NULL && n < ADDRESSES_KEPT; found = found->ai_next)
	{
		char		address[INET6_ADDRSTRLEN];
		bool		v6 = found->ai_family == AF_INET6;
		const void *bytes = v6 ?
			(const void *) &((const struct sockaddr_in6 *) found->ai_addr)->sin6_addr :
			(const void *) &((const struct sockaddr_in *) found->ai_addr)->sin_addr;

		if ((!v6 && found->ai_family != AF_INET) ||
			inet_ntop(found->ai_family, bytes, address, sizeof(address)) == NULL)
			continue;
		len += snprintf(text + len, sizeof(text) - len, v6 ? "%s[%s]" : "%s%s",
						n++ ? "," : "", address);
	}
	return n > 0 ? strdup(text) : NULL;
}

/* Takes the result of a thread.  The requests that wait for it continue or fail. */
static void
take_result(Lookup *l, void (*go_on)(OutboxTransfer *t),
			void (*fail)(OutboxTransfer *t, OutboxLookupState why))
{
	HostName  *name = l->name;
	bool	   is_current = name->current == l;
	char	  *addresses = NULL;
	bool	   found;
	dlist_iter iter;
	int		   n = 0;

	nlookups--;
	name->nlookups--;
	if (l->hangs)
		nhang--;
	else
		dlist_delete(&l->node);
	if (l->error != EAI_AGAIN && l->error != EAI_SYSTEM && !l->lacked)
		name->hangs = false;
	if (is_current)
		name->current = NULL;
	if (l->error == 0)
	{
		addresses = write_addresses(l->found);
		freeaddrinfo(l->found);
	}
	found = addresses != NULL;
	if (found)
	{
		if (l->begun_at >= name->known_since)
		{
			free(name->addresses);
			name->addresses = addresses;
			name->known_since = l->begun_at;
		}
		else
			free(addresses);
		is_current = true; /* these addresses serve all waiting requests */
	}
	else if (is_current && l->error != EAI_AGAIN && l->error != EAI_SYSTEM && !l->lacked)
	{
		/* The name does not exist any more. */
		free(name->addresses);
		name->addresses = NULL;
	}

	/*
	 * Only transfers that are on the list now: a transfer that continues after a reload
	 * waits again.
	 */
	if (is_current)
		dlist_foreach(iter, &name->waiting) n++;
	while (n-- > 0)
	{
		OutboxTransfer *t = dlist_container(OutboxTransfer, node,
											dlist_pop_head_node(&name->waiting));

		if (found)
			go_on(t);
		else
			fail(t, l->lacked ? OUTBOX_LOOKUP_LACKS : OUTBOX_LOOKUP_NOT_FOUND);
	}
	free(l);
}

/* Fails the requests whose time was over before the lookup ended. */
static void
expire(int64 now, void (*fail)(OutboxTransfer *t, OutboxLookupState why))
{
	next_deadline = PG_INT64_MAX;
	for (int i = 0; i < NAME_BUCKETS; i++)
		for (HostName *name = names[i]; name != NULL; name = name->next)
		{
			dlist_mutable_iter iter;

			dlist_foreach_modify(iter, &name->waiting)
			{
				OutboxTransfer *t = dlist_container(OutboxTransfer, node, iter.cur);

				if (t->lookup_deadline > now)
					next_deadline = Min(next_deadline, t->lookup_deadline);
				else
				{
					dlist_delete(&t->node);
					fail(t,
						 name->current ? OUTBOX_LOOKUP_TIMED_OUT :
										 OUTBOX_LOOKUP_NO_PLACE);
				}
			}
		}
}

void
outbox_http_lookups_step(int64 now, void (*go_on)(OutboxTransfer *t),
						 void (*fail)(OutboxTransfer *t, OutboxLookupState why))
{
	note_hanging(now);
	if (outbox_http_lookups_ended)
	{
		uint64	count;
		ssize_t got = read(ended_fd, &count, sizeof(count));
		Lookup *list;

		(void) got;
		outbox_http_lookups_ended = false;
		pthread_mutex_lock(&ended_mutex);
		list = ended;
		ended = NULL;
		pthread_mutex_unlock(&ended_mutex);
		while (list != NULL)
		{
			Lookup *l = list;

			list = l->next;
			take_result(l, go_on, fail);
		}
	}
	begin_queued(now);
	if (now >= next_deadline)
		expire(now, fail);
}

int64
outbox_http_lookups_deadline(void)
{
	return dlist_is_empty(&young) ?
		next_deadline :
		Min(next_deadline,
			dlist_head_element(Lookup, node, &young)->begun_at + HANGS_AFTER);
}

void
outbox_http_forget_lookups(int64 now)
{
	forget_before = now;
}

bool
outbox_http_lookups_init(void)
{
	/* A thread may need a socket. */
	most = Max(Min(LOOKUPS_MAX, outbox_open_files() / FILES_SHARE), 2);
	ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return ended_fd >= 0 && outbox_http_watch_lookups(ended_fd);
}
