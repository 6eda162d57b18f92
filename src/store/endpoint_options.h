#ifndef OUTBOX_ENDPOINT_OPTIONS_H
#define OUTBOX_ENDPOINT_OPTIONS_H

#include "base/outbox.h"

#include "utils/jsonb.h"

#include "format/shape.h"
#include "transport/transport.h"

#define OUTBOX_OPTIONS_MAX 32 /* entries of an object */

/* True if the entry n is the name of a file. */
static inline bool
outbox_option_is_file(uint32 files, int n)
{
	return n < OUTBOX_OPTIONS_MAX && (files >> n & 1) != 0;
}

/*
 * Returns the entries of an object, palloc'd.  '*n' is their number.  An entry of another
 * form is left out.  'jb' may be NULL.  'files' has a bit for each entry that names a
 * file, whose value is that name.  If it is NULL, such entries are left out.
 */
extern OutboxOption *outbox_options_read(Jsonb *jb, int *n, uint32 *files);

/*
 * Takes the template of the payload out of a config: what remains is the transport's.
 * '*problem' is what is wrong with the template, with a hint; NULL: nothing.
 */
extern OutboxShape outbox_options_take_shape(OutboxOption *options, int *n,
											 const char **problem, const char **hint);

/* Returns a copy in UTF-8, or as it is, where that has no such text. */
extern char *outbox_options_sent_text(const char *text);

/* Overwrites the values, of which each is one piece of memory of its own. */
extern void outbox_options_wipe(OutboxOption *options, int n);

/*
 * Returns a copy, in UTF-8.  Entries with a bit in 'files' have the text of their files there.
 * The caller wipes it.  '*version' is another number after one of these files has
 * changed.  NULL: a file cannot be used, and 'reason' says why.
 */
extern OutboxOption *outbox_options_read_files(const OutboxOption *options, int n,
											   uint32 files, uint64 *version,
											   char *reason, size_t size);

/* Returns the version of the files as they are now.  0: one cannot be used. */
extern uint64 outbox_options_files_version(const OutboxOption *options, int n,
										   uint32 files);

#endif /* OUTBOX_ENDPOINT_OPTIONS_H */
