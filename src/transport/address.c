/*
 * address.c
 *	  Decides which network addresses a request may go to.  Owns the ranges that are
 *	  not public, and reads the networks that the administrator has named.
 *
 * Everything here works on the final address in binary form.  Text is read only from
 * outbox.allowed_networks, which an administrator has written.  An address has too
 * many spellings to filter them in a URL.
 */
#include "transport/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

typedef struct Range
{
	unsigned char prefix[8]; /* none of the ranges is longer */
	int			  bits;
	const char	 *name;
} Range;

/* IANA's special-purpose registry, and the addresses that RFC 1112 reserved. */
static const Range ranges_v4[] = {
	{{0}, 8, "unspecified"},
	{{10}, 8, "private"},
	{{100, 64}, 10, "carrier-grade NAT"},
	{{127}, 8, "loopback"},
	{{169, 254}, 16, "link-local"},
	{{172, 16}, 12, "private"},
	{{192, 0, 0}, 24, "reserved"},
	{{192, 0, 2}, 24, "documentation"},
	{{192, 88, 99}, 24, "6to4 relay"},
	{{192, 168}, 16, "private"},
	{{198, 18}, 15, "benchmarking"},
	{{198, 51, 100}, 24, "documentation"},
	{{203, 0, 113}, 24, "documentation"},
	{{224}, 4, "multicast"},
	{{240}, 4, "reserved"},
};

/*
 * Only 2000::/3 is global unicast.  Ranges outside of it are listed for their names.
 * All other addresses outside of it are refused as "reserved".
 */
static const Range ranges_v6[] = {
	{{0x01, 0x00}, 64, "discard-only"},
	{{0x00, 0x64, 0xff, 0x9b, 0x00, 0x01}, 48, "local NAT64"},
	{{0x20, 0x01}, 32, "Teredo"},
	{{0x20, 0x01}, 23, "reserved"},
	{{0x20, 0x01, 0x0d, 0xb8}, 32, "documentation"},
	{{0x20, 0x02}, 16, "6to4"},
	{{0x3f, 0xff}, 20, "documentation"},
	{{0x5f, 0x00}, 16, "segment routing"},
	{{0xfc}, 7, "private"},
	{{0xfe, 0x80}, 10, "link-local"},
	{{0xfe, 0xc0}, 10, "site-local"},
	{{0xff}, 8, "multicast"},
};

static const unsigned char v4_mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
static const unsigned char nat64[12] = {0x00, 0x64, 0xff, 0x9b};

static const OutboxNetworks no_networks;
const OutboxNetworks	   *outbox_networks = &no_networks;

#define lengthof(array) (sizeof(array) / sizeof((array)[0]))

/* True if the first 'bits' bits are equal. */
static bool
same_prefix(const unsigned char *a, const unsigned char *b, int bits)
{
	int bytes = bits / 8;
	int rest = bits % 8;

	if (memcmp(a, b, bytes) != 0)
		return false;
	return rest == 0 || ((a[bytes] ^ b[bytes]) >> (8 - rest)) == 0;
}

static const char *
find_range(const unsigned char *address, const Range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++)
	{
		if (same_prefix(address, ranges[i].prefix, ranges[i].bits))
			return ranges[i].name;
	}
	return NULL;
}

static bool
is_allowed(int family, const unsigned char *address, const OutboxNetworks *allowed)
{
	for (int i = 0; i < allowed->n; i++)
	{
		const OutboxNetwork *net = &allowed->net[i];

		if (net->family == family && same_prefix(address, net->address, net->bits))
			return true;
	}
	return false;
}

static OutboxAddressClass
judge_v4(const unsigned char *address, const OutboxNetworks *allowed, const char **why)
{
	if (is_allowed(AF_INET, address, allowed))
		return OUTBOX_ADDRESS_ALLOWED;
	*why = find_range(address, ranges_v4, lengthof(ranges_v4));
	return *why ? OUTBOX_ADDRESS_REFUSED : OUTBOX_ADDRESS_PUBLIC;
}

static OutboxAddressClass
judge_v6(const unsigned char *address, const OutboxNetworks *allowed, const char **why)
{
	static const unsigned char zeros[15] = {0};

	/*
	 * ::ffff:a.b.c.d is sent as IPv4, so no IPv6 network in the list can allow it.
	 * Otherwise "::/0" would allow 169.254.169.254.
	 */
	if (memcmp(address, v4_mapped, sizeof(v4_mapped)) == 0)
		return judge_v4(address + 12, allowed, why);

	if (is_allowed(AF_INET6, address, allowed))
		return OUTBOX_ADDRESS_ALLOWED;
	if (memcmp(address, nat64, sizeof(nat64)) == 0)
		return judge_v4(address + 12, allowed, why);

	if (memcmp(address, zeros, 15) == 0 && address[15] <= 1)
		*why = address[15] == 1 ? "loopback" : "unspecified";
	else
		*why = find_range(address, ranges_v6, lengthof(ranges_v6));
	if (*why == NULL && (address[0] & 0xe0) != 0x20)
		*why = "reserved";
	return *why ? OUTBOX_ADDRESS_REFUSED : OUTBOX_ADDRESS_PUBLIC;
}

OutboxAddressClass
outbox_address_judge(const struct sockaddr *sa, const OutboxNetworks *allowed,
					 const char **why)
{
	*why = NULL;

	/* Copied, because libcurl's storage may not be aligned for the wider types. */
	if (sa->sa_family == AF_INET)
	{
		struct sockaddr_in sin;
		unsigned char	   address[4];

		memcpy(&sin, sa, sizeof(sin));
		memcpy(address, &sin.sin_addr, sizeof(address));
		return judge_v4(address, allowed, why);
	}
	if (sa->sa_family == AF_INET6)
	{
		struct sockaddr_in6 sin6;

		memcpy(&sin6, sa, sizeof(sin6));
		return judge_v6(sin6.sin6_addr.s6_addr, allowed, why);
	}

	*why = "of an unknown family";
	return OUTBOX_ADDRESS_REFUSED;
}

/*
 * Parses one item of the list, already trimmed.  Bits behind the prefix must be zero,
 * as in PostgreSQL's cidr: 10.1.2.3/8 may have been meant as one host.
 */
static bool
parse_network(const char *item, OutboxNetwork *net)
{
	char		host[INET6_ADDRSTRLEN];
	const char *slash = strchr(item, '/');
	size_t		len = slash ? (size_t) (slash - item) : strlen(item);
	int			max;

	if (len >= sizeof(host))
		return false;
	memcpy(host, item, len);
	host[len] = '\0';

	memset(net, 0, sizeof(*net));
	if (inet_pton(AF_INET, host, net->address) == 1)
		net->family = AF_INET;
	else if (inet_pton(AF_INET6, host, net->address) == 1)
		net->family = AF_INET6;
	else
		return false;
	max = net->family == AF_INET ? 32 : 128;

	net->bits = max;
	if (slash)
	{
		const char *digit = slash + 1;

		if (*digit == '\0' || strlen(digit) > 3)
			return false;
		net->bits = 0;
		for (; *digit; digit++)
		{
			if (*digit < '0' || *digit > '9')
				return false;
			net->bits = net->bits * 10 + (*digit - '0');
		}
		if (net->bits > max)
			return false;
	}
	for (int bit = net->bits; bit < max; bit++)
	{
		if (net->address[bit / 8] & (0x80 >> (bit % 8)))
			return false;
	}

	/* Mapped addresses are judged as IPv4, so mapped networks become IPv4, too. */
	if (net->family == AF_INET6 && net->bits >= 96 &&
		memcmp(net->address, v4_mapped, sizeof(v4_mapped)) == 0)
	{
		net->family = AF_INET;
		net->bits -= 96;
		memmove(net->address, net->address + 12, 4);
	}
	return true;
}

bool
outbox_networks_parse(const char *text, OutboxNetworks *out, char *bad, size_t badlen)
{
	static const char *const blanks = " \t\r\n";
	const char				*p = text + strspn(text, blanks);

	out->n = 0;
	if (*p == '\0')
		return true;

	for (;;)
	{
		const char *start = p + strspn(p, blanks);
		const char *end = start + strcspn(start, ",");
		const char *next = end;
		char		item[64];
		size_t		len;

		while (end > start && strchr(blanks, end[-1]))
			end--;
		len = end - start;

		if (len < sizeof(item))
		{
			memcpy(item, start, len);
			item[len] = '\0';
		}
		if (len >= sizeof(item) || out->n >= OUTBOX_MAX_NETWORKS ||
			!parse_network(item, &out->net[out->n]))
		{
			if (badlen > 0)
				snprintf(bad, badlen, "%.*s", (int) len, start);
			out->n = 0;
			return false;
		}
		out->n++;

		if (*next == '\0')
			return true;
		p = next + 1;
	}
}
