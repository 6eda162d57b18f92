/*
 * series.h
 *	  Rows of outbox.metrics().
 */
#ifndef OUTBOX_SERIES_H
#define OUTBOX_SERIES_H

#include "nodes/execnodes.h"

#include "server/shmem.h"

#define OUTBOX_SERIES_COLUMNS 4

/* Whose figures are put. */
typedef struct OutboxSeries
{
	ReturnSetInfo *rsinfo;
	TimestampTz	   now;
	const char	  *prefix; /* of all metrics */
	Datum		   of; /* the first column (0: NULL, which means all, or all others) */
} OutboxSeries;

/* 'label' NULL: none. */
extern void outbox_series_put(const OutboxSeries *series, const char *metric,
							  const char *label, double value);

/* Seconds since 'at'.  0: not known, so there is no row. */
extern void outbox_series_put_age(const OutboxSeries *series, const char *metric,
								  TimestampTz at);

/* Rows that are being counted have no series. */
extern void outbox_series_put_waiting(const OutboxSeries  *series,
									  const OutboxWaiting *waiting);

extern void outbox_waiting_add(OutboxWaiting *to, const OutboxWaiting *waiting);

#endif /* OUTBOX_SERIES_H */
