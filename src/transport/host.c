/*
 * host.c
 *	  Owns which host names a URL may have, whatever its scheme.  A name that cannot be
 *	  looked up is refused when the URL is given, and not with each delivery.
 */
#include "transport/host.h"

#include <ctype.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

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

/* True if the resolver takes the text for an address. */
static bool
is_address(const char *text)
{
	struct addrinfo	 hints;
	struct addrinfo *found;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = AI_NUMERICHOST;
	if (getaddrinfo(text, NULL, &hints, &found) != 0)
		return false;
	freeaddrinfo(found);
	return true;
}

const char *
outbox_host_check(const char *host, char *bare, const char **hint)
{
	size_t len = strlen(host);
	bool   brackets = len >= 2 && host[0] == '[' && host[len - 1] == ']';

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

	if (is_address(bare))
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

const char *
outbox_host_check_url(const char *url, const char **hint)
{
	const char *p = strstr(url, "://");
	const char *problem = NULL;

	for (p = p ? p + strlen("://") : url; problem == NULL; p++)
	{
		char   host[OUTBOX_HOST_SIZE + sizeof("[]")];
		char   bare[OUTBOX_HOST_SIZE];
		size_t len = strcspn(p, ",/?#");
		size_t name = p[0] == '[' ? strcspn(p, "],/?#") + 1 : strcspn(p, ":,/?#");

		snprintf(host, sizeof(host), "%.*s", (int) (name < len ? name : len), p);
		problem = outbox_host_check(host, bare, hint);
		p += len;
		if (*p != ',')
			break;
	}
	return problem;
}
