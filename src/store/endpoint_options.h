/*
 * endpoint_options.h
 *	  Reads what the tables have of an endpoint's config and credentials.
 */
#ifndef OUTBOX_ENDPOINT_OPTIONS_H
#define OUTBOX_ENDPOINT_OPTIONS_H

#include "base/outbox.h"

#include "utils/jsonb.h"

#include "transport/transport.h"

/*
 * Returns the entries of a flat object, palloc'd.  '*n' is their number.  An entry of
 * another form is left out.  'jb' may be NULL.
 */
extern OutboxOption *outbox_options_read(Jsonb *jb, int *n);

/* Overwrites the values, of which each is one piece of memory of its own. */
extern void outbox_options_wipe(OutboxOption *options, int n);

#endif /* OUTBOX_ENDPOINT_OPTIONS_H */
