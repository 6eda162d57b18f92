/*
 * sinks.c
 *	  Owns which sinks there are: webhooks, and the libraries that outbox.sinks names.
 *
 * The sink NAME is the library outbox_NAME in PostgreSQL's library directory.  A name
 * has letters and digits only, so it is no path.  Only workers start transports, because
 * these may make threads.  A session that creates an endpoint only has it checked.
 */
#include "base/outbox.h"

#include "access/xact.h"
#include "port/atomics.h"

#include "base/settings.h"
#include "log/step.h"
#include "transport/address.h"
#include "transport/host.h"
#include "transport/http/http.h"
#include "transport/sinks.h"

#define WEBHOOK "webhook"
#define NAME_MAX_LEN 30

typedef struct Sink
{
	char				   name[NAME_MAX_LEN + 1];
	const OutboxTransport *transport;	 /* NULL: it cannot be used */
	bool				   starts;		 /* it will be used for deliveries */
	char				   problem[128]; /* why */
} Sink;

int					   outbox_ntransports;
const OutboxTransport *outbox_transports[OUTBOX_SINKS_MAX];

static Sink			  sinks[OUTBOX_SINKS_MAX];
static int			  nsinks;
static char			 *loaded_names; /* outbox.sinks when they were loaded */
static OutboxServices services;

/*
 * The networks by which may_connect() judges.  A thread of a library may still read a
 * former list, so lists are never freed.  There is one for each change of the setting.
 */
static const OutboxNetworks *volatile networks;

/*
 * Takes the next name of the list.  Returns NULL at its end.  '*len' is 0 for an empty
 * item.
 */
static const char *
next_name(const char **list, size_t *len)
{
	const char *start = *list;
	const char *end;

	if (start == NULL || *start == '\0')
		return NULL;
	end = start + strcspn(start, ",");
	*list = *end ? end + 1 : end;
	while (start < end && strchr(" \t\r\n", *start))
		start++;
	while (end > start && strchr(" \t\r\n", end[-1]))
		end--;
	*len = end - start;
	return start;
}

static bool
is_name(const char *name, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!(name[i] >= 'a' && name[i] <= 'z') &&
			!(i > 0 && name[i] >= '0' && name[i] <= '9'))
			return false;
	return len > 0 && len <= NAME_MAX_LEN && !(len == 4 && memcmp(name, "http", 4) == 0);
}

static bool
same_name(const char *name, const char *text, size_t len)
{
	return strlen(name) == len && strncasecmp(name, text, len) == 0;
}

const char *
outbox_sinks_problem(const char *names)
{
	const char *name;
	const char *seen[OUTBOX_SINKS_MAX];
	size_t		seen_len[OUTBOX_SINKS_MAX];
	size_t		len;
	int			n = 0;

	while ((name = next_name(&names, &len)) != NULL)
	{
		if (!is_name(name, len))
			return "A name of a sink begins with a lower-case letter, and has at most 30 lower-case letters and digits.";
		for (int i = 0; i < n; i++)
			if (seen_len[i] == len && memcmp(seen[i], name, len) == 0)
				return "A sink is named twice.";
		if (n == OUTBOX_SINKS_MAX)
			return "More than 8 sinks are named.";
		seen[n] = name;
		seen_len[n++] = len;
	}
	return NULL;
}

/* ---------------------------------------------------------------- URLs */

/*
 * Returns the part of an ARN that stands for a scheme: arn:aws:…, and for other parts
 * of AWS arn:aws-cn:… NULL: the URL is no ARN.
 */
static const char *
arn_vendor(const char *url, size_t *len)
{
	if (strncmp(url, "arn:", 4) != 0)
		return NULL;
	*len = strcspn(url + 4, ":-/?#");
	return url + 4;
}

/* True if the sink of this name serves URLs that begin like this one. */
static bool
serves(const char *name, size_t len, const char *url)
{
	size_t		scheme = strcspn(url, ":/?#");
	size_t		vendor_len;
	const char *vendor = arn_vendor(url, &vendor_len);

	if (vendor)
		return len == vendor_len && memcmp(name, vendor, len) == 0;
	if (url[scheme] != ':')
		return false;
	if (len == strlen(WEBHOOK) && memcmp(name, WEBHOOK, len) == 0)
		return same_name("http", url, scheme) || same_name("https", url, scheme);
	return strncmp(url + scheme, "://", 3) == 0 && strncasecmp(url, name, len) == 0 &&
		(scheme == len || (scheme == len + 1 && (url[len] == 's' || url[len] == 'S')));
}

/* The name of the sink that the setting has for the URL; NULL: none. */
static const char *
name_for(const char *url, size_t *len)
{
	const char *list = outbox_sinks;
	const char *name;

	while ((name = next_name(&list, len)) != NULL)
		if (serves(name, *len, url))
			return name;
	return NULL;
}

const char *
outbox_sinks_check_url(const char *url, const char **hint)
{
	const char *host = url + strcspn(url, ":/?#");
	size_t		len;
	const char *name = name_for(url, &len);

	if (name == NULL && serves(WEBHOOK, strlen(WEBHOOK), url))
	{
		*hint = "Add webhook to outbox.sinks, then run SELECT pg_reload_conf().";
		return "outbox.sinks does not name webhook";
	}
	if (name == NULL || same_name(WEBHOOK, name, len))
	{
		const char *problem = outbox_http_check_url(url, hint);

		if (problem && name == NULL &&
			(arn_vendor(url, &len) ||
			 (strncmp(host, "://", 3) == 0 && is_name(url, host - url))))
			*hint =
				"Use https, or http to an address in outbox.allowed_networks. Other schemes are those of the sinks that outbox.sinks names.";
		return problem;
	}

	/* Spaces and control characters would go into other texts of the library. */
	for (const unsigned char *p = (const unsigned char *) url; *p; p++)
		if (*p <= 0x20 || *p >= 0x7f)
		{
			*hint = "Write it in printable ASCII characters, without spaces.";
			return "the URL contains a space, a control character or a letter that is not ASCII";
		}
	if (arn_vendor(url, &len))
		return NULL; /* it has no host */
	host += 3;
	if (strcspn(host, "/?#") == 0)
	{
		*hint = "Write the URL as NAME://host:port/path, with the name of the sink.";
		return "the URL has no host";
	}
	if (memchr(host, '@', strcspn(host, "/?#")) != NULL)
	{
		*hint = "Leave them out. What a URL contains is shown in views.";
		return "the URL contains a user name or a password";
	}
	return outbox_host_check_url(url, hint);
}

const OutboxTransport *
outbox_sinks_find(const char *url, const char **problem)
{
	size_t		len;
	const char *name = name_for(url, &len);

	for (int i = 0; name && i < nsinks; i++)
		if (same_name(sinks[i].name, name, len))
		{
			*problem = sinks[i].problem;
			return sinks[i].transport;
		}
	*problem = "outbox.sinks names no sink for the scheme of its URL";
	return NULL;
}

/* ------------------------------------------------------------- loading */

static bool
may_connect(const struct sockaddr *address, bool encrypted, const char **why)
{
	switch (outbox_address_judge(address, networks, why))
	{
		case OUTBOX_ADDRESS_ALLOWED:
			return true;
		case OUTBOX_ADDRESS_PUBLIC:
			*why = "public, and not encrypted";
			return encrypted;
		case OUTBOX_ADDRESS_REFUSED:
			break;
	}
	return false;
}

static void
read_networks(void)
{
	OutboxNetworks *fresh;

	if (networks && memcmp(networks, outbox_networks, sizeof(OutboxNetworks)) == 0)
		return;
	fresh = MemoryContextAlloc(TopMemoryContext, sizeof(OutboxNetworks));
	*fresh = *outbox_networks;
	pg_write_barrier();
	networks = fresh;
}

/* Returns a transport that was not started.  NULL: sink->problem says why. */
static const OutboxTransport *
open_library(Sink *sink)
{
	char			  *file = psprintf("outbox_%s", sink->name);
	OutboxSinkFunction function = (OutboxSinkFunction)
		load_external_function(file, OUTBOX_SINK_FUNCTION, false, NULL);
	const OutboxTransport *transport = function ? function() : NULL;

	pfree(file);
	if (transport == NULL)
		snprintf(sink->problem, sizeof(sink->problem),
				 "the library outbox_%s is no sink: it has no " OUTBOX_SINK_FUNCTION "()",
				 sink->name);
	else if (transport->abi != OUTBOX_TRANSPORT_ABI ||
			 transport->size != sizeof(OutboxTransport))
		snprintf(
			sink->problem, sizeof(sink->problem),
			"the library outbox_%s was built for version %u of the contract, and this is %u",
			sink->name, transport->abi, OUTBOX_TRANSPORT_ABI);
	else
		return transport;
	return NULL;
}

static void
open_sink(void *arg)
{
	Sink				  *sink = arg;
	const OutboxTransport *transport = open_library(sink);

	if (transport && sink->starts)
		transport->init(&services);
	sink->transport = transport;
}

/*
 * An error in the library is the sink's problem, and not the process's.  'start': the
 * transport will be used for deliveries.
 */
static void
load_sink(Sink *sink, bool start)
{
	MemoryContext	cxt = CurrentMemoryContext;
	bool			alone = !IsTransactionState();
	OutboxStepError error;

	if (alone)
		StartTransactionCommand();
	MemoryContextSwitchTo(cxt);
	sink->starts = start;
	if (!outbox_step_try_part(open_sink, sink, &error))
		snprintf(sink->problem, sizeof(sink->problem), "outbox_%s: %s", sink->name,
				 error.message);
	if (alone)
		CommitTransactionCommand();
	MemoryContextSwitchTo(cxt);
	if (sink->transport == NULL && start)
		ereport(
			LOG,
			(errmsg("outbox worker cannot use the sink \"%s\": %s", sink->name,
					sink->problem),
			 errhint(
				 "Its endpoints are held. Install the library, then run SELECT pg_reload_conf().")));
}

void
outbox_sinks_load(const OutboxServices *given, bool (*worked)(int32_t endpoint),
				  bool (*owes)(int32_t endpoint))
{
	const char *list = outbox_sinks;
	const char *name;
	size_t		len;

	loaded_names = MemoryContextStrdup(TopMemoryContext, outbox_sinks);
	services = *given;
	services.may_connect = may_connect;
	outbox_http_peer_services(&services);
	outbox_http_rest_services(&services, worked, owes);
	read_networks();
	while ((name = next_name(&list, &len)) != NULL && nsinks < OUTBOX_SINKS_MAX)
	{
		Sink *sink = &sinks[nsinks++];

		memcpy(sink->name, name, len);
		if (same_name(WEBHOOK, name, len))
		{
			sink->transport = &outbox_http_transport;
			sink->transport->init(&services);
		}
		else
			load_sink(sink, true);
		if (sink->transport)
			outbox_transports[outbox_ntransports++] = sink->transport;
	}
}

const OutboxTransport *
outbox_sinks_in_session(const char *url, const char **problem)
{
	static Sink sink;
	size_t		len;
	const char *name = name_for(url, &len);

	if (name == NULL || same_name(WEBHOOK, name, len))
		return &outbox_http_transport;
	memset(&sink, 0, sizeof(sink));
	memcpy(sink.name, name, len);
	load_sink(&sink, false);
	*problem = sink.problem;
	return sink.transport;
}

bool
outbox_sinks_outdated(void)
{
	for (int i = 0; i < nsinks; i++)
		if (sinks[i].transport == NULL)
			return true;
	return strcmp(loaded_names, outbox_sinks) != 0;
}

void
outbox_sinks_reload(void)
{
	read_networks();
	for (int i = 0; i < outbox_ntransports; i++)
		outbox_transports[i]->reload();
}
