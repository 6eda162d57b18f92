#ifndef OUTBOX_SECRET_FILES_H
#define OUTBOX_SECRET_FILES_H

#include "base/outbox.h"

#define OUTBOX_SECRET_FILE_MAX 65536 /* bytes of a value */
#define OUTBOX_SECRET_FILE_PROBLEM 160

/* Returns why no file can be named so, as a static text.  NULL: one can. */
extern const char *outbox_secret_file_name_problem(const char *name, size_t len);

/*
 * Returns a number that is another one after the file has changed, for the present
 * directory.  0: there is no such file, or it cannot be used.
 */
extern uint64 outbox_secret_file_version(const char *name);

/*
 * Reads the file, without a newline at its end.  Returns palloc'd text, which the caller
 * overwrites.  NULL: it cannot be used, and 'problem' (OUTBOX_SECRET_FILE_PROBLEM bytes)
 * says why, without any of its text.
 */
extern char *outbox_secret_file_read(const char *name, uint64 *version, char *problem);

#endif /* OUTBOX_SECRET_FILES_H */
