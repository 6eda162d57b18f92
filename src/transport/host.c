/*
 * host.c
 *	  Owns which hosts a URL may have, whatever its scheme.  A name that cannot be looked
 *	  up, and an address that is not allowed, are refused when the URL is given, and not
 *	  with each delivery.
 */
#include "transport/host.h"

#include <ctype.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "transport/address.h"

/* A name that begins with "-" has no address, and has another meaning to libcurl. */
bool
outbox_host_is_name(const char *name)
{
	size_t len = strlen(name);
	size_t label = 0;

	if (len > 0 && name[len - 1] == '.')
		len--;
	if (len == 0 || len > 253 || name[0] == '-')
		return false;
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = name[i];

		if (c == '.' ? label == 0 : !isalnum(c) && c != '-' && c != '_' && c < 0x80)
			return false;
		label = c == '.' ? 0 : label + 1;
		if (label > 63)
			return false;
	}
	return label > 0;
}

/*
 * True if the host ends in a number.  Such a host may be parsed as an IPv4 address
 * (WHATWG URL, "ends in a number").
 */
static bool
ends_in_number(const char *name)
{
	const char *dot = strrchr(name, '.');
	const char *last = dot ? dot + 1 : name;

	if (last[0] == '0' && (last[1] == 'x' || last[1] == 'X') &&
		last[2 + strspn(last + 2, "0123456789abcdefABCDEF")] == '\0')
		return true;
	return last[0] != '\0' && last[strspn(last, "0123456789")] == '\0';
}

/* Asks outbox_address_judge() about an address as text.  False: it is none. */
static bool
judge(const char *name, OutboxAddressClass *verdict, const char **why)
{
	struct addrinfo	 hints;
	struct addrinfo *found;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = AI_NUMERICHOST;
	hints.ai_socktype = SOCK_STREAM;
	if (getaddrinfo(name, NULL, &hints, &found) != 0)
		return false;
	*verdict = outbox_address_judge(found->ai_addr, outbox_networks, why);
	freeaddrinfo(found);
	return true;
}

const char *
outbox_host_check(const char *host, char *bare, const char **hint)
{
	OutboxAddressClass verdict;
	const char		  *why;
	size_t			   len = strlen(host);
	bool			   brackets = len >= 2 && host[0] == '[' && host[len - 1] == ']';

	if (brackets)
	{
		host++;
		len -= 2;
	}
	while (len > 0 && host[len - 1] == '.')
		len--;
	if (len == 0 || len >= OUTBOX_HOST_SIZE)
	{
		*hint = "Write the URL as https://host/path.";
		return "the host name in the URL is empty or too long";
	}
	memcpy(bare, host, len);
	bare[len] = '\0';

	if (judge(bare, &verdict, &why))
		return NULL;
	if (brackets || ends_in_number(bare))
	{
		*hint = "Write an address as 192.0.2.1 or [2001:db8::1].";
		return "the host in the URL is neither a name nor an address";
	}
	if (!outbox_host_is_name(host))
	{
		*hint =
			"A name has letters, digits, \"-\" and \"_\", in parts of 1 to 63 with dots between them, and does not begin with \"-\".";
		return "the host in the URL has a name that cannot be looked up";
	}
	return NULL;
}

/* True if the name is localhost or in it.  It has only addresses of this host (RFC 6761). */
static bool
is_localhost(const char *name)
{
	size_t len = strlen(name);

	return len >= 9 && strcasecmp(name + len - 9, "localhost") == 0 &&
		(len == 9 || name[len - 10] == '.');
}

/* Of a name, only localhost is known to have no address that is allowed. */
const char *
outbox_host_judge(const char *host, const char *plain, const char **hint)
{
	static char		   complaint[128];
	static char		   advice[128];
	OutboxAddressClass verdict;
	char			   name[OUTBOX_HOST_SIZE];
	const char		  *why;
	const char		  *problem = outbox_host_check(host, name, hint);

	if (problem)
		return problem;
	if (!judge(name, &verdict, &why))
	{
		verdict = OUTBOX_ADDRESS_PUBLIC;
		if (is_localhost(name) && judge("127.0.0.1", &verdict, &why) &&
			verdict == OUTBOX_ADDRESS_REFUSED)
			(void) judge("::1", &verdict, &why);
		else if (!plain || outbox_networks->n > 0)
			return NULL;
	}

	if (verdict == OUTBOX_ADDRESS_REFUSED)
	{
		snprintf(complaint, sizeof(complaint), "the address in the URL is %s", why);
		*hint =
			"Use an address that is public. An operator can allow others in outbox.allowed_networks.";
		return complaint;
	}
	if (verdict == OUTBOX_ADDRESS_PUBLIC && plain)
	{
		snprintf(complaint, sizeof(complaint),
				 "plain %.16s is allowed to addresses in outbox.allowed_networks only",
				 plain);
		snprintf(
			advice, sizeof(advice),
			"Use %.16ss. An operator can allow %.16s to some addresses in outbox.allowed_networks.",
			plain, plain);
		*hint = advice;
		return complaint;
	}
	return NULL;
}

const char *
outbox_host_check_url(const char *url, const char **hint)
{
	const char *p = strstr(url, "://");
	const char *problem = NULL;
	char		scheme[17] = "";

	if (p && p - url < (ptrdiff_t) sizeof(scheme))
		memcpy(scheme, url, p - url);
	/* https, or NAMEs of a sink */
	if (scheme[0] == '\0' || strchr("sS", p[-1]))
		scheme[0] = '\0';

	for (p = p ? p + strlen("://") : url; problem == NULL; p++)
	{
		char   host[OUTBOX_HOST_SIZE + sizeof("[]")];
		size_t len = strcspn(p, ",/?#");
		size_t name = p[0] == '[' ? strcspn(p, "],/?#") + 1 : strcspn(p, ":,/?#");

		snprintf(host, sizeof(host), "%.*s", (int) (name < len ? name : len), p);
		problem = outbox_host_judge(host, scheme[0] ? scheme : NULL, hint);
		p += len;
		if (*p != ',')
			break;
	}
	return problem;
}
