/*
 * address.h
 *	  Decides which network addresses a request may go to.  Pure: no
 *	  PostgreSQL memory, no errors thrown; safe inside libcurl's callbacks.
 */
#ifndef OUTBOX_ADDRESS_H
#define OUTBOX_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct OutboxNetwork
{
	int			  family; /* AF_INET or AF_INET6 */
	unsigned char address[16];
	int			  bits; /* prefix length */
} OutboxNetwork;

#define OUTBOX_MAX_NETWORKS 64

typedef struct OutboxNetworks
{
	int			  n;
	OutboxNetwork net[OUTBOX_MAX_NETWORKS];
} OutboxNetworks;

/*
 * Parses a comma-separated list of CIDR blocks or addresses.  False: 'bad'
 * (of 'badlen' bytes) holds the item that is none.
 */
extern bool outbox_networks_parse(const char *text, OutboxNetworks *out, char *bad,
								  size_t badlen);

typedef enum OutboxAddressClass
{
	OUTBOX_ADDRESS_PUBLIC,	/* anybody's: allowed over https */
	OUTBOX_ADDRESS_ALLOWED, /* named in outbox.allowed_networks */
	OUTBOX_ADDRESS_REFUSED	/* private, loopback, reserved … */
} OutboxAddressClass;

/* 'why', when refused, is the name of the range ("loopback", "private" …). */
extern OutboxAddressClass outbox_address_judge(const struct sockaddr *sa,
											   const OutboxNetworks	 *allowed,
											   const char			**why);

#endif /* OUTBOX_ADDRESS_H */
