/*
 * tables.h
 *	  The extension's tables, by their oids.
 */
#ifndef OUTBOX_TABLES_H
#define OUTBOX_TABLES_H

#include "base/outbox.h"

typedef enum OutboxTable
{
	OUTBOX_TABLE_ORIGINS,
	OUTBOX_TABLE_EVENTS,
	OUTBOX_TABLE_EVENTS_0,
	OUTBOX_TABLE_EVENTS_1,
	OUTBOX_TABLE_EVENTS_2,
	OUTBOX_TABLE_KEPT_EVENTS, /* those above are what reads need ... */
	OUTBOX_TABLE_ENDPOINT_SETTINGS,
	OUTBOX_TABLE_POSITIONS,
	OUTBOX_TABLE_POSITIONS_0,
	OUTBOX_TABLE_POSITIONS_1, /* ... and these what all settles need besides */
	OUTBOX_TABLE_ENDPOINT_SECRETS,
	OUTBOX_TABLE_SUBSCRIPTIONS,
	OUTBOX_TABLE_TICKS,
	OUTBOX_TABLE_TICKS_0,
	OUTBOX_TABLE_TICKS_1,
	OUTBOX_TABLE_TICKS_2,
	OUTBOX_TABLE_PARKED,
	OUTBOX_TABLE_COMMANDS,
	OUTBOX_TABLE_REPLAYS,
	OUTBOX_TABLE_ATTEMPT_LOG,
	OUTBOX_TABLE_ATTEMPT_LOG_0,
	OUTBOX_TABLE_ATTEMPT_LOG_1,
	OUTBOX_TABLE_ATTEMPT_LOG_2,
	OUTBOX_TABLE_ATTEMPT_RUNS,
	OUTBOX_TABLE_ATTEMPT_RUNS_0,
	OUTBOX_TABLE_ATTEMPT_RUNS_1,
	OUTBOX_TABLE_ATTEMPT_RUNS_2,
	OUTBOX_TABLE_PIECES,
	OUTBOX_TABLE_RETENTION_HERE,
	OUTBOX_TABLE_ENDPOINT_CHANGES,
	OUTBOX_TABLE_SCHEDULED, /* from here on they are locked only … */
	OUTBOX_TABLE_DEDUP,		/* … by the steps that use them */
	OUTBOX_TABLE_FORGOTTEN,
	OUTBOX_TABLES
} OutboxTable;

/* Reads the oids.  Called when a worker starts.  Needs a transaction. */
extern void outbox_tables_look_up(void);

/* As outbox_tables_look_up() read them.  InvalidOid: there is none. */
extern Oid outbox_table_oid(OutboxTable table);
extern Oid outbox_sequence_oid(void);

/* Without the schema. */
extern const char *outbox_table_name(OutboxTable table);

#endif /* OUTBOX_TABLES_H */
