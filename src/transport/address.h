/*
 * address.h
 *	  Decides which network addresses a request may go to.  Pure: without PostgreSQL's
 *	  memory, and without errors, so it is safe in libcurl's callbacks.
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
	int			  bits; /* length of the prefix */
} OutboxNetwork;

#define OUTBOX_MAX_NETWORKS 64

typedef struct OutboxNetworks
{
	int			  n;
	OutboxNetwork net[OUTBOX_MAX_NETWORKS];
} OutboxNetworks;

/*
 * The networks that outbox.allowed_networks names now.  It changes when the settings
 * are read again.
 */
extern const OutboxNetworks *outbox_networks;

/*
 * Parses a comma-separated list of CIDR blocks or addresses.  Returns false if an item
 * is not valid, and writes that item into 'bad' (of 'badlen' bytes).
 */
extern bool outbox_networks_parse(const char *text, OutboxNetworks *out, char *bad,
								  size_t badlen);

typedef enum OutboxAddressClass
{
	OUTBOX_ADDRESS_PUBLIC,	/* public: allowed over https */
	OUTBOX_ADDRESS_ALLOWED, /* named in outbox.allowed_networks */
	OUTBOX_ADDRESS_REFUSED	/* private, loopback, reserved … */
} OutboxAddressClass;

/*
 * Classifies an address.  If it is refused, '*why' is the name of its range
 * ("loopback", "private" …), a static string.
 */
extern OutboxAddressClass outbox_address_judge(const struct sockaddr *sa,
											   const OutboxNetworks	 *allowed,
											   const char			**why);

#endif /* OUTBOX_ADDRESS_H */
