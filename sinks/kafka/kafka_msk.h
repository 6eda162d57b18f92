/*
 * kafka_msk.h
 *	  Names and regions of the brokers of Amazon MSK, as pure functions.
 */
#ifndef OUTBOX_KAFKA_MSK_H
#define OUTBOX_KAFKA_MSK_H

#include <stdbool.h>
#include <stddef.h>

#define KAFKA_MSK_REGION_MAX 40

/*
 * Writes the region that a host's name says, as in
 * b-1.shop.a1b2c3.c2.kafka.eu-central-1.amazonaws.com.  False: it is no broker of MSK.
 */
extern bool kafka_msk_host(const char *host, size_t len, char *region);

/*
 * Writes the region of brokers, which are "host:port,host:port".  'given' is the region
 * of config.  NULL: none.  'of_role': a token with the keys of the role would go there.
 * Returns the problem, static text, and a hint.  NULL: none.
 */
extern const char *kafka_msk_region(const char *brokers, const char *given, bool of_role,
									char *region, const char **hint);

/*
 * True if a broker, as librdkafka names it, may get a token with the keys of the role.
 * Any thread may call it.
 */
extern bool kafka_msk_is_broker(const char *id, const char *region);

#endif /* OUTBOX_KAFKA_MSK_H */
