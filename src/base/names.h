/*
 * names.h
 *	  The rules for topics, patterns, header names and values.  Pure: tested without a
 *	  server.
 */
#ifndef OUTBOX_NAMES_H
#define OUTBOX_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * A topic has segments of [A-Za-z0-9_-]+ joined by dots, and 1 to 255 bytes.  Returns
 * NULL if it is valid, otherwise what is wrong in words (a static string).
 */
extern const char *outbox_topic_problem(const char *topic, size_t len);

/* The same for a pattern, in which a segment may be "*". */
extern const char *outbox_pattern_problem(const char *pattern, size_t len);

/*
 * True if the pattern matches.  A segment "*" stands for exactly one segment, or at
 * the end for one or more.  Topics "outbox.…" match only patterns that begin with
 * "outbox.".
 */
extern bool outbox_topic_matches(const char *topic, size_t tlen, const char *pattern,
								 size_t plen);

/* True if one of the patterns (NUL-terminated) matches. */
extern bool outbox_topic_in_list(const char *topic, size_t len, char *const *patterns,
								 int n);

/* True for a topic that only outbox itself may emit. */
extern bool outbox_topic_reserved(const char *topic, size_t len);

/*
 * True if the name is that word for a receiver that ignores case and the difference
 * between "_" and "-".
 */
extern bool outbox_header_name_is(const char *name, size_t len, const char *word);

/* The same for several names: true if one of them is that name. */
extern bool outbox_header_name_among(const char *name, size_t len, char *const *names,
									 int n);

/* What to do when two headers of an object have the same name. */
#define OUTBOX_HEADER_TWICE_HINT \
	"In a name, case makes no difference, and neither does \"_\" for \"-\". Leave one of them out."

/*
 * The header rules of doc/wire.md.  Returns NULL if the name or value is valid, otherwise
 * what is wrong in words (a static string).  An event may not set Authorization,
 * Proxy-Authorization and Cookie.  An endpoint may.  Values are UTF-8.  For values of a
 * database see outbox_text_problem().
 */
extern const char *outbox_header_name_problem(const char *name, size_t len,
											  bool from_event);
extern const char *outbox_header_value_problem(const char *value, size_t len);

#endif /* OUTBOX_NAMES_H */
