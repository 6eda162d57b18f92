/*
 * tables.c
 *	  Owns the oids of the extension's tables, as a worker read them at its start.
 */
#include "base/outbox.h"

#include "catalog/namespace.h"
#include "utils/lsyscache.h"

#include "log/tables.h"

static const char *const table_names[OUTBOX_TABLES] = {
	[OUTBOX_TABLE_ORIGINS] = "origins",
	[OUTBOX_TABLE_EVENTS] = "events",
	[OUTBOX_TABLE_EVENTS_0] = "events_0",
	[OUTBOX_TABLE_EVENTS_1] = "events_1",
	[OUTBOX_TABLE_EVENTS_2] = "events_2",
	[OUTBOX_TABLE_KEPT_EVENTS] = "kept_events",
	[OUTBOX_TABLE_ENDPOINT_SETTINGS] = "endpoint_settings",
	[OUTBOX_TABLE_ENDPOINT_SECRETS] = "endpoint_secrets",
	[OUTBOX_TABLE_SUBSCRIPTIONS] = "subscriptions",
	[OUTBOX_TABLE_POSITIONS] = "positions",
	[OUTBOX_TABLE_POSITIONS_0] = "positions_0",
	[OUTBOX_TABLE_POSITIONS_1] = "positions_1",
	[OUTBOX_TABLE_TICKS] = "ticks",
	[OUTBOX_TABLE_TICKS_0] = "ticks_0",
	[OUTBOX_TABLE_TICKS_1] = "ticks_1",
	[OUTBOX_TABLE_TICKS_2] = "ticks_2",
	[OUTBOX_TABLE_PARKED] = "parked",
	[OUTBOX_TABLE_COMMANDS] = "commands",
	[OUTBOX_TABLE_REPLAYS] = "replays",
	[OUTBOX_TABLE_ATTEMPT_LOG] = "attempt_log",
	[OUTBOX_TABLE_ATTEMPT_LOG_0] = "attempt_log_0",
	[OUTBOX_TABLE_ATTEMPT_LOG_1] = "attempt_log_1",
	[OUTBOX_TABLE_ATTEMPT_LOG_2] = "attempt_log_2",
	[OUTBOX_TABLE_ATTEMPT_RUNS] = "attempt_runs",
	[OUTBOX_TABLE_ATTEMPT_RUNS_0] = "attempt_runs_0",
	[OUTBOX_TABLE_ATTEMPT_RUNS_1] = "attempt_runs_1",
	[OUTBOX_TABLE_ATTEMPT_RUNS_2] = "attempt_runs_2",
	[OUTBOX_TABLE_PIECES] = "pieces",
	[OUTBOX_TABLE_RETENTION_HERE] = "retention_here",
	[OUTBOX_TABLE_ENDPOINT_CHANGES] = "endpoint_changes",
	[OUTBOX_TABLE_SCHEDULED] = "scheduled",
	[OUTBOX_TABLE_DEDUP] = "dedup",
	[OUTBOX_TABLE_FORGOTTEN] = "forgotten",
	[OUTBOX_TABLE_FIGURES] = "figures",
	[OUTBOX_TABLE_FIGURES_0] = "figures_0",
	[OUTBOX_TABLE_FIGURES_1] = "figures_1",
	[OUTBOX_TABLE_FIGURES_2] = "figures_2",
	[OUTBOX_TABLE_FIGURES_3] = "figures_3",
	[OUTBOX_TABLE_FIGURES_4] = "figures_4",
	[OUTBOX_TABLE_FIGURES_5] = "figures_5",
};

static Oid sequence_oid;
static Oid tables[OUTBOX_TABLES];

void
outbox_tables_look_up(void)
{
	Oid nsp = get_namespace_oid(OUTBOX_SCHEMA, false);

	for (int i = 0; i < OUTBOX_TABLES; i++)
		tables[i] = get_relname_relid(table_names[i], nsp);
	sequence_oid = get_relname_relid("events_seq", nsp);
}

Oid
outbox_sequence_oid(void)
{
	return sequence_oid;
}

const char *
outbox_table_name(OutboxTable table)
{
	return table_names[table];
}

Oid
outbox_table_oid(OutboxTable table)
{
	return tables[table];
}
