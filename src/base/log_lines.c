/*
 * log_lines.c
 *	  Owns which lines about endpoints and deliveries go into the server log.
 *
 * An outage may concern each of 20,000 endpoints.  So only the first lines of a kind are
 * written in each period, and a line that says how many there were besides.  The views
 * name all of them.
 */
#include "base/log_lines.h"

#include "utils/timestamp.h"

#define AT_ONCE 20					/* of a kind, in a period */
#define PERIOD (10 * USECS_PER_SEC) /* µs */

/* A kind, since the first line of its period. */
typedef struct Lines
{
	TimestampTz since;
	int			written;
	int64		counted;					 /* and not written */
	char		last[OUTBOX_MAX_TENANT + 1]; /* name of these */
} Lines;

static Lines lines[OUTBOX_LINES];

static const char *const happened[OUTBOX_LINES] = {
	[OUTBOX_LINE_BACKS_OFF] = "endpoints began to back off",
	[OUTBOX_LINE_FAILING] = "endpoints have failed without a success for long",
	[OUTBOX_LINE_ANSWERS] = "endpoints answer again",
	[OUTBOX_LINE_DISABLED] = "endpoints were disabled",
	[OUTBOX_LINE_NO_LINK] = "endpoints send nothing",
	[OUTBOX_LINE_LINK] = "endpoints are connected",
	[OUTBOX_LINE_DEAD] = "deliveries are dead",
	[OUTBOX_LINE_LOST] = "events of outbox itself are lost",
	[OUTBOX_LINE_BACKLOG] = "endpoints retained more than outbox.max_backlog_size",
	[OUTBOX_LINE_KEPT] = "tenants had more kept than their limits allow",
	[OUTBOX_LINE_HOLD] = "steps failed, and are on hold",
	[OUTBOX_LINE_PASSED] = "steps work again",
};

static void
sum_up(int line, TimestampTz now)
{
	Lines *l = &lines[line];

	if (l->counted > 0)
		ereport(LOG,
				(errmsg("outbox: " INT64_FORMAT " more %s in " INT64_FORMAT
						" s, the last for \"%s\"",
						l->counted, happened[line],
						(int64) ((now - l->since) / USECS_PER_SEC), l->last)));
	l->since = now;
	l->written = 0;
	l->counted = 0;
}

/* True if the period is over, or the clock was set back. */
static bool
is_over(const Lines *l, TimestampTz now)
{
	return now - l->since >= PERIOD || now < l->since;
}

bool
outbox_log_line_may(OutboxLogLine line, const char *name)
{
	Lines	   *l = &lines[line];
	TimestampTz now = GetCurrentTimestamp();

	if (is_over(l, now))
		sum_up(line, now);
	if (l->written < AT_ONCE)
	{
		l->written++;
		return true;
	}
	l->counted++;
	strlcpy(l->last, name, sizeof(l->last));
	return false;
}

void
outbox_log_lines_sum_up(TimestampTz now)
{
	for (int line = 0; line < OUTBOX_LINES; line++)
		if (lines[line].counted > 0 && is_over(&lines[line], now))
			sum_up(line, now);
}
