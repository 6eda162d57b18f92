#ifndef OUTBOX_TABLES_H
#define OUTBOX_TABLES_H

#include "base/outbox.h"

typedef enum OutboxTable
{
	OUTBOX_TABLE_ORIGINS,
	OUTBOX_TABLE_EVENTS,
	OUTBOX_TABLE_EVENTS_0,
	OUTBOX_TABLE_EVENTS_1,
	OUTBOX_TABLE_EVENTS_2, /* all reads need the tables to here ... */
	OUTBOX_TABLE_KEPT_EVENTS,
	OUTBOX_TABLE_ENDPOINT_SETTINGS, /* ... and all settles also the ones from here ... */
	OUTBOX_TABLE_POSITIONS,
	OUTBOX_TABLE_POSITIONS_0,
	OUTBOX_TABLE_POSITIONS_1, /* ... to here */
	OUTBOX_TABLE_ENDPOINT_SECRETS,
	OUTBOX_TABLE_SUBSCRIPTIONS,
	OUTBOX_TABLE_TICKS,
	OUTBOX_TABLE_TICKS_0,
	OUTBOX_TABLE_TICKS_1,
	OUTBOX_TABLE_TICKS_2,
	OUTBOX_TABLE_PARKED,
	OUTBOX_TABLE_COMMANDS,
	OUTBOX_TABLE_REPLAYS,
	OUTBOX_TABLE_PIECES,
	OUTBOX_TABLE_ATTEMPT_LOG, /* from here on they are locked only by the steps that use them */
	OUTBOX_TABLE_ATTEMPT_LOG_0,
	OUTBOX_TABLE_ATTEMPT_LOG_1,
	OUTBOX_TABLE_ATTEMPT_LOG_2,
	OUTBOX_TABLE_ATTEMPT_RUNS,
	OUTBOX_TABLE_ATTEMPT_RUNS_0,
	OUTBOX_TABLE_ATTEMPT_RUNS_1,
	OUTBOX_TABLE_ATTEMPT_RUNS_2,
	OUTBOX_TABLE_RETENTION_HERE,
	OUTBOX_TABLE_ENDPOINT_CHANGES,
	OUTBOX_TABLE_SCHEDULED,
	OUTBOX_TABLE_DEDUP,
	OUTBOX_TABLE_FORGOTTEN,
	OUTBOX_TABLE_FIGURES,
	OUTBOX_TABLE_FIGURES_0,
	OUTBOX_TABLE_FIGURES_1,
	OUTBOX_TABLE_FIGURES_2,
	OUTBOX_TABLE_FIGURES_3,
	OUTBOX_TABLE_FIGURES_4,
	OUTBOX_TABLE_FIGURES_5,
	OUTBOX_TABLES
} OutboxTable;

/* Reads the oids.  Called when a worker starts.  Needs a transaction. */
extern void outbox_tables_look_up(void);

/* As outbox_tables_look_up() read them.  InvalidOid: there is none. */
extern Oid outbox_table_oid(OutboxTable table);
extern Oid outbox_sequence_oid(void);

/* Without the schema. */
extern const char *outbox_table_name(OutboxTable table);

/*
 * The beginning of a statement: 'newest' has the newest row of each endpoint in
 * outbox.positions, of each shared position (below 0) and of the totals (0).  The index
 * leads from one to the next, so the cost follows their number, and not that of the rows.
 * 'which' is a condition on endpoint_id.  Also for sessions of users.
 */
#define OUTBOX_NEWEST_POSITIONS(which) \
	"WITH RECURSIVE ids (id) AS (" \
	"(SELECT endpoint_id FROM outbox.positions WHERE " which \
	" ORDER BY endpoint_id LIMIT 1)" \
	" UNION ALL SELECT (SELECT endpoint_id FROM outbox.positions" \
	" WHERE endpoint_id OPERATOR(pg_catalog.>) ids.id AND " which \
	" ORDER BY endpoint_id LIMIT 1) FROM ids WHERE ids.id IS NOT NULL)," \
	" newest AS MATERIALIZED (SELECT p.* FROM ids CROSS JOIN LATERAL" \
	" (SELECT * FROM outbox.positions WHERE endpoint_id OPERATOR(pg_catalog.=) ids.id" \
	" ORDER BY number DESC LIMIT 1) p)"

#endif /* OUTBOX_TABLES_H */
