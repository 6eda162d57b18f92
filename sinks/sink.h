/*
 * sink.h
 *	  Small functions that each sink of its own library needs.
 */
#ifndef OUTBOX_SINK_H
#define OUTBOX_SINK_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport/transport.h"

/* ms of a clock that never goes back.  Any thread may ask. */
static inline int64_t
sink_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The value of an option; "" where only its name is known.  NULL: it is not there. */
static inline const char *
sink_option(const OutboxOption *options, int n, const char *name)
{
	const OutboxOption *option = outbox_option_find(options, n, name);

	return option == NULL ? NULL : option->value ? option->value : "";
}

/*
 * The bytes of "host" or "host:port", with which the text begins.  A host is a name, an IPv4
 * address or [an IPv6 one].  0: there is none.
 */
static inline size_t
sink_host_port(const char *text)
{
#define SINK_HEX "0123456789abcdefABCDEF"
	bool   ipv6 = text[0] == '[';
	size_t len = ipv6 ?
		strspn(text + 1, SINK_HEX ":.") :
		strspn(text, SINK_HEX "ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ-._");
	size_t digits;

	if (len == 0 || len > 257 || (ipv6 && text[len + 1] != ']'))
		return 0;
	len += ipv6 ? 2 : 0;
	if (text[len] != ':')
		return len;
	digits = strspn(text + len + 1, "0123456789");
	if (digits == 0 || digits > 5 || atoi(text + len + 1) < 1 ||
		atoi(text + len + 1) > 65535)
		return 0;
	return len + 1 + digits;
}

/* Writes the address as text.  '?': it cannot be. */
static inline void
sink_address_text(const struct sockaddr *address, char *text, size_t size)
{
	const void *bytes = address->sa_family == AF_INET6 ?
		(const void *) &((const struct sockaddr_in6 *) address)->sin6_addr :
		(const void *) &((const struct sockaddr_in *) address)->sin_addr;

	if (inet_ntop(address->sa_family, bytes, text, (socklen_t) size) == NULL)
		strcpy(text, "?");
}

#endif /* OUTBOX_SINK_H */
