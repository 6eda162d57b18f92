/*
 * networks.c
 *	  Fuzz target: 16 bytes of an address, and a list of networks.
 *
 * links: src/transport/address.c
 */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "transport/address.h"
#include "fuzz.h"

static OutboxAddressClass
judge(int family, const void *bytes, const OutboxNetworks *allowed)
{
	union
	{
		struct sockaddr		sa;
		struct sockaddr_in	v4;
		struct sockaddr_in6 v6;
	} address;
	OutboxAddressClass verdict;
	const char		  *why;

	memset(&address, 0, sizeof(address));
	address.sa.sa_family = family;
	if (family == AF_INET)
		memcpy(&address.v4.sin_addr, bytes, 4);
	else
		memcpy(&address.v6.sin6_addr, bytes, 16);
	verdict = outbox_address_judge(&address.sa, allowed, &why);
	MUST((verdict == OUTBOX_ADDRESS_REFUSED) == (why != NULL));
	return verdict;
}

static void
judge_both(int family, const void *bytes, const OutboxNetworks *allowed)
{
	static const OutboxNetworks nothing = {0};
	OutboxAddressClass			alone = judge(family, bytes, &nothing);
	OutboxAddressClass			with = judge(family, bytes, allowed);

	/* A list can only allow. */
	MUST(alone != OUTBOX_ADDRESS_ALLOWED);
	MUST(with == alone || with == OUTBOX_ADDRESS_ALLOWED);
}

/* parse(print(x)) = x */
static void
round_trip(const OutboxNetworks *networks)
{
	char		   text[OUTBOX_MAX_NETWORKS * (INET6_ADDRSTRLEN + 8)] = "";
	size_t		   len = 0;
	OutboxNetworks again;
	char		   bad[64];

	for (int i = 0; i < networks->n; i++)
	{
		const OutboxNetwork *net = &networks->net[i];
		char				 address[INET6_ADDRSTRLEN];

		MUST(net->family == AF_INET || net->family == AF_INET6);
		MUST(net->bits >= 0 && net->bits <= (net->family == AF_INET ? 32 : 128));
		inet_ntop(net->family, net->address, address, sizeof(address));
		len += snprintf(text + len, sizeof(text) - len, "%s%s/%d", i ? "," : "", address,
						net->bits);
	}
	MUST(outbox_networks_parse(text, &again, bad, sizeof(bad)));
	MUST(again.n == networks->n);
	for (int i = 0; i < again.n; i++)
	{
		MUST(again.net[i].family == networks->net[i].family);
		MUST(again.net[i].bits == networks->net[i].bits);
		MUST(memcmp(again.net[i].address, networks->net[i].address,
					again.net[i].family == AF_INET ? 4 : 16) == 0);
		MUST(judge(again.net[i].family, again.net[i].address, networks) ==
			 OUTBOX_ADDRESS_ALLOWED);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	OutboxNetworks networks;
	uint8_t		   mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	char		   bad[8];
	char		  *text;

	if (size < 16)
		return 0;
	text = fuzz_string(data + 16, size - 16);
	if (outbox_networks_parse(text, &networks, bad, sizeof(bad)))
		round_trip(&networks);
	else
		MUST(networks.n == 0 && strlen(bad) < sizeof(bad));
	free(text);

	judge_both(AF_INET6, data, &networks);
	judge_both(AF_INET, data, &networks);
	memcpy(mapped + 12, data, 4);
	MUST(judge(AF_INET6, mapped, &networks) == judge(AF_INET, data, &networks));
	return 0;
}
