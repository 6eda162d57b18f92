#ifndef OUTBOX_LOG_LINES_H
#define OUTBOX_LOG_LINES_H

#include "base/outbox.h"

typedef enum OutboxLogLine
{
	OUTBOX_LINE_BACKS_OFF,
	OUTBOX_LINE_FAILING,
	OUTBOX_LINE_ANSWERS,
	OUTBOX_LINE_DISABLED,
	OUTBOX_LINE_NO_LINK,
	OUTBOX_LINE_LINK,
	OUTBOX_LINE_DEAD,
	OUTBOX_LINE_LOST,
	OUTBOX_LINE_BACKLOG,
	OUTBOX_LINE_KEPT,
	OUTBOX_LINE_HOLD,
	OUTBOX_LINE_PASSED,
	OUTBOX_LINES
} OutboxLogLine;

/*
 * True if the caller is to write its line, about an endpoint or something else of this name.
 * False: it is counted for the line of many.
 */
extern bool outbox_log_line_may(OutboxLogLine line, const char *name);

/* The same where an endpoint may be concerned (0: none is, and such lines are few). */
#define outbox_log_line_of(line, endpoint_id, name) \
	((endpoint_id) == 0 || outbox_log_line_may(line, name))

/*
 * Writes one line for the events of each kind that were only counted, when their time is
 * over.  To be called in each round.
 */
extern void outbox_log_lines_sum_up(TimestampTz now);

#endif /* OUTBOX_LOG_LINES_H */
