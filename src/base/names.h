/*
 * names.h
 *	  What topics, patterns, header names and values look like.  Pure: tested
 *	  without a server.
 */
#ifndef OUTBOX_NAMES_H
#define OUTBOX_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Segments of [A-Za-z0-9_-]+ joined by dots, 1 to 255 bytes.  NULL: valid;
 * otherwise what is wrong, in words (static string).
 */
extern const char *outbox_topic_problem(const char *topic, size_t len);

/* As above, where a segment may be "*". */
extern const char *outbox_pattern_problem(const char *pattern, size_t len);

/*
 * A segment "*" stands for exactly one segment, at the end for one or more.
 * "outbox.…" topics match only patterns that begin with "outbox.".
 */
extern bool outbox_topic_matches(const char *topic, size_t tlen, const char *pattern,
								 size_t plen);

/* Does one of the patterns (NUL-terminated) match? */
extern bool outbox_topic_in_list(const char *topic, size_t len, char *const *patterns,
								 int n);

/* Topics that only outbox itself may emit. */
extern bool outbox_topic_reserved(const char *topic, size_t len);

/* Is the name that word, to whoever sees no difference in case or "_"? */
extern bool outbox_header_name_is(const char *name, size_t len, const char *word);

/*
 * Header rules of doc/wire: NULL: fine, otherwise what is wrong.  Events may
 * not set Authorization and Cookie, endpoints may.  Values are UTF-8, see
 * outbox_text_problem() for those of a database.
 */
extern const char *outbox_header_name_problem(const char *name, size_t len,
											  bool from_event);
extern const char *outbox_header_value_problem(const char *value, size_t len);

#endif /* OUTBOX_NAMES_H */
