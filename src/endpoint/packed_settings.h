#ifndef OUTBOX_PACKED_SETTINGS_H
#define OUTBOX_PACKED_SETTINGS_H

#include "endpoint/endpoint.h"

/*
 * Copies everything that the settings point to into one piece of memory, and the words of
 * the status with it.  The former settings stay until outbox_settings_free_former().
 */
extern void outbox_settings_pack(OutboxEndpointConfig *c, OutboxEndpointStatus *s);
extern bool outbox_settings_has_former(const OutboxEndpointConfig *c);
extern void outbox_settings_free_former(OutboxEndpointConfig *c);

/* Frees all of it. */
extern void outbox_settings_free(OutboxEndpointConfig *c);

/* Bytes that the settings of all endpoints take. */
extern size_t outbox_settings_memory(void);

#endif /* OUTBOX_PACKED_SETTINGS_H */
