/*
 * series.c
 *	  Owns the form of the rows of outbox.metrics(), and sums over endpoints.
 */
#include "base/outbox.h"

#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "store/series.h"

void
outbox_series_put(const OutboxSeries *series, const char *metric, const char *label,
				  double value)
{
	Datum values[OUTBOX_SERIES_COLUMNS] = {series->of,
										   PointerGetDatum(cstring_to_text(
											   psprintf("%s%s", series->prefix, metric))),
										   label ? CStringGetTextDatum(label) : (Datum) 0,
										   Float8GetDatum(value)};
	bool  nulls[OUTBOX_SERIES_COLUMNS] = {series->of == (Datum) 0, false, label == NULL,
										  false};

	tuplestore_putvalues(series->rsinfo->setResult, series->rsinfo->setDesc, values,
						 nulls);
}

void
outbox_series_put_age(const OutboxSeries *series, const char *metric, TimestampTz at)
{
	if (at != 0)
		outbox_series_put(series, metric, NULL,
						  Max(series->now - at, 0) / (double) USECS_PER_SEC);
}

void
outbox_series_put_waiting(const OutboxSeries *series, const OutboxWaiting *waiting)
{
	outbox_series_put(series, "deliveries", "pending", waiting->pending);
	outbox_series_put(series, "deliveries", "processing", waiting->processing);
	if (waiting->dead >= 0)
	{
		outbox_series_put(series, "deliveries", "retrying", waiting->retrying);
		outbox_series_put(series, "deliveries", "blocked", waiting->blocked);
		outbox_series_put(series, "deliveries", "dead", waiting->dead);
	}
	outbox_series_put_age(series, "oldest_pending_seconds", waiting->oldest_pending_at);
}

void
outbox_waiting_add(OutboxWaiting *to, const OutboxWaiting *waiting)
{
	bool known = to->dead >= 0 && waiting->dead >= 0;

	to->pending += waiting->pending;
	to->processing += waiting->processing;
	to->retrying += waiting->retrying;
	to->blocked += waiting->blocked;
	to->dead = known ? to->dead + waiting->dead : -1;
	if (waiting->oldest_pending_at != 0 &&
		(to->oldest_pending_at == 0 ||
		 waiting->oldest_pending_at < to->oldest_pending_at))
		to->oldest_pending_at = waiting->oldest_pending_at;
}
