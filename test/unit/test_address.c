/*
 * test_address.c
 *	  Each address is judged by its range and by the list of networks (TAP).
 *
 * links: src/transport/address.c
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/address.h"
#include "tap.h"

/* Returns how an address is classed, in any spelling that the resolver accepts. */
static OutboxAddressClass
judge(const char *text, const char *networks, const char **why)
{
	OutboxNetworks	   allowed;
	OutboxAddressClass verdict;
	struct addrinfo	   hints;
	struct addrinfo	  *found;
	char			   bad[64];

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = AI_NUMERICHOST;
	*why = "no address";
	if (!outbox_networks_parse(networks, &allowed, bad, sizeof(bad)) ||
		getaddrinfo(text, NULL, &hints, &found) != 0)
		return (OutboxAddressClass) -1;
	verdict = outbox_address_judge(found->ai_addr, &allowed, why);
	freeaddrinfo(found);
	return verdict;
}

static void
refused(const char *text, const char *range)
{
	const char		  *why;
	OutboxAddressClass verdict = judge(text, "", &why);

	ok(verdict == OUTBOX_ADDRESS_REFUSED && why && strcmp(why, range) == 0, "refused",
	   text, why ? why : "");
}

static void public(const char *text)
{
	const char		  *why;
	OutboxAddressClass verdict = judge(text, "", &why);

	ok(verdict == OUTBOX_ADDRESS_PUBLIC && why == NULL, "public", text, why ? why : "");
}

static void
allowed(const char *text, const char *networks, bool expected)
{
	const char		  *why;
	OutboxAddressClass verdict = judge(text, networks, &why);

	ok((verdict == OUTBOX_ADDRESS_ALLOWED) == expected,
	   expected ? "allowed" : "not allowed", text, networks);
}

static void
list(const char *text, int n, const char *expected_bad)
{
	OutboxNetworks networks;
	char		   bad[64] = "";
	bool		   parsed = outbox_networks_parse(text, &networks, bad, sizeof(bad));

	if (expected_bad == NULL)
		ok(parsed && networks.n == n, "list", text, bad);
	else
		ok(!parsed && networks.n == 0 && strcmp(bad, expected_bad) == 0, "no list", text,
		   bad);
}

static void
other_families(void)
{
	OutboxNetworks	   networks = {0};
	struct sockaddr	   sa = {.sa_family = AF_UNIX};
	const char		  *why;
	OutboxAddressClass verdict = outbox_address_judge(&sa, &networks, &why);

	ok(verdict == OUTBOX_ADDRESS_REFUSED && why, "refused", "AF_UNIX", "");
}

static void
long_list(int n, bool valid)
{
	char text[OUTBOX_MAX_NETWORKS * 16] = "";

	for (int i = 0; i < n; i++)
		sprintf(text + strlen(text), "%s10.0.0.%d", i ? "," : "", i);
	list(text, n, valid ? NULL : "10.0.0.64");
}

int
main(void)
{
	/* IPv4: each range at both ends, and its neighbours */
	refused("0.0.0.0", "unspecified");
	refused("0.255.255.255", "unspecified");
	public("1.0.0.0");
	public("9.255.255.255");
	refused("10.0.0.0", "private");
	refused("10.255.255.255", "private");
	public("11.0.0.0");
	public("100.63.255.255");
	refused("100.64.0.0", "carrier-grade NAT");
	refused("100.127.255.255", "carrier-grade NAT");
	public("100.128.0.0");
	public("126.255.255.255");
	refused("127.0.0.1", "loopback");
	refused("127.255.255.255", "loopback");
	public("128.0.0.0");
	public("169.253.255.255");
	refused("169.254.169.254", "link-local");
	public("169.255.0.0");
	public("172.15.255.255");
	refused("172.16.0.0", "private");
	refused("172.31.255.255", "private");
	public("172.32.0.0");
	refused("192.0.0.0", "reserved");
	refused("192.0.0.255", "reserved");
	public("192.0.1.0");
	refused("192.0.2.1", "documentation");
	public("192.88.98.255");
	refused("192.88.99.1", "6to4 relay");
	public("192.88.100.0");
	public("192.167.255.255");
	refused("192.168.0.0", "private");
	refused("192.168.255.255", "private");
	public("192.169.0.0");
	public("198.17.255.255");
	refused("198.18.0.0", "benchmarking");
	refused("198.19.255.255", "benchmarking");
	public("198.20.0.0");
	refused("198.51.100.7", "documentation");
	refused("203.0.113.7", "documentation");
	public("223.255.255.255");
	refused("224.0.0.1", "multicast");
	refused("239.255.255.255", "multicast");
	refused("240.0.0.0", "reserved");
	refused("255.255.255.255", "reserved");

	/* other spellings of IPv4 */
	refused("127.1", "loopback");
	refused("2130706433", "loopback");
	refused("0x7f000001", "loopback");
	refused("0x7f.1", "loopback");
	refused("017700000001", "loopback");
	refused("0177.0.0.1", "loopback");
	refused("0xa9fea9fe", "link-local");
	refused("0", "unspecified");

	/* IPv6 */
	refused("::", "unspecified");
	refused("::1", "loopback");
	refused("0:0:0:0:0:0:0:1", "loopback");
	refused("::2", "reserved");
	refused("::127.0.0.1", "reserved");
	refused("fe80::1", "link-local");
	refused("febf:ffff::1", "link-local");
	refused("fec0::1", "site-local");
	refused("fc00::1", "private");
	refused("fdff:ffff::1", "private");
	refused("fe00::1", "reserved");
	refused("ff02::1", "multicast");
	refused("100::1", "discard-only");
	refused("100:0:0:1::1", "reserved");
	refused("5f00::1", "segment routing");
	refused("2001:db8::1", "documentation");
	public("2001:db7::1");
	public("2001:db9::1");
	refused("3fff::1", "documentation");
	public("3ffe::1");
	refused("4000::1", "reserved");
	refused("1fff::1", "reserved");
	public("2606:4700:4700::1111");
	public("2a00:1450:4001:80b::200e");

	/* IPv4 inside IPv6 */
	refused("::ffff:127.0.0.1", "loopback");
	refused("::ffff:7f00:1", "loopback");
	refused("::ffff:a9fe:a9fe", "link-local");
	public("::ffff:8.8.8.8");
	refused("64:ff9b::10.0.0.1", "private");
	refused("64:ff9b::a9fe:a9fe", "link-local");
	public("64:ff9b::808:808");
	refused("64:ff9b:1::808:808", "local NAT64");
	refused("64:ff9b::1:808:808", "reserved");
	refused("2002:7f00:1::", "6to4");
	refused("2002:808:808::1", "6to4");
	refused("2001::1", "Teredo");
	refused("2001:0:7f00:1::1", "Teredo");
	refused("2001:2::1", "reserved");
	refused("2001:1ff::1", "reserved");
	public("2001:200::1");
	other_families();

	/* allowed networks */
	allowed("127.0.0.1", "127.0.0.1", true);
	allowed("127.0.0.2", "127.0.0.1", false);
	allowed("127.0.0.2", "127.0.0.1,127.0.0.2/32", true);
	allowed("10.1.2.3", "10.0.0.0/8", true);
	allowed("10.127.255.255", "10.0.0.0/9", true);
	allowed("10.128.0.0", "10.0.0.0/9", false);
	allowed("8.8.8.8", "0.0.0.0/0", true);
	allowed("::1", "0.0.0.0/0", false);
	allowed("8.8.8.8", "::/0", false);
	allowed("::1", "::1", true);
	allowed("fd00:1::9", "fd00::/8", true);
	allowed("::ffff:10.1.2.3", "10.0.0.0/8", true);
	allowed("10.1.2.3", "::ffff:10.0.0.0/104", true);
	allowed("11.1.2.3", "::ffff:10.0.0.0/104", false);
	allowed("::ffff:169.254.169.254", "::/0", false);
	allowed("64:ff9b::10.1.2.3", "10.0.0.0/8", true);
	allowed("64:ff9b::10.1.2.3", "64:ff9b::/96", true);

	/* lists */
	list("", 0, NULL);
	list("  ", 0, NULL);
	list("10.0.0.0/8", 1, NULL);
	list(" 10.0.0.0/8 ,\tfd00::/8,192.168.1.1 ", 3, NULL);
	list("10.0.0.0/8,", 0, "");
	list(",10.0.0.0/8", 0, "");
	list("10.0.0.0/8,,::1", 0, "");
	list("10.0.0.0/33", 0, "10.0.0.0/33");
	list("10.0.0.0/", 0, "10.0.0.0/");
	list("10.0.0.0/-1", 0, "10.0.0.0/-1");
	list("10.0.0.0/8/8", 0, "10.0.0.0/8/8");
	list("10.0.0.0/+8", 0, "10.0.0.0/+8");
	list("10.1.2.3/8", 0, "10.1.2.3/8");
	list("10.0/8", 0, "10.0/8");
	list("010.0.0.0/8", 0, "010.0.0.0/8");
	list("::1/129", 0, "::1/129");
	list("fd00::1/8", 0, "fd00::1/8");
	list("::1, localhost", 0, "localhost");
	list("10.0.0.0/8 ::1", 0, "10.0.0.0/8 ::1");
	list("[::1]", 0, "[::1]");
	long_list(OUTBOX_MAX_NETWORKS, true);
	long_list(OUTBOX_MAX_NETWORKS + 1, false);

	return done_testing();
}
