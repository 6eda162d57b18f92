/*
 * reload.c
 *	  Owns how settings are read from the tables, and endpoints loaded.
 *
 * When settings have changed, the settings of the endpoints in outbox.endpoint_changes
 * are read.  So a change costs the same whatever the number of endpoints.  All settings
 * are read at the start, when the worker takes a share, and when a change may concern any
 * endpoint.  Where many endpoints have changed, some are read at a time, because deliveries
 * wait meanwhile.  The same holds where a rotation of secrets ends, and after a reload of the
 * configuration.
 */
#include "base/outbox.h"

#include "base/crash_point.h"
#include "base/query.h"
#include "base/settings.h"
#include "endpoint/status.h"
#include "endpoint/subscribers.h"
#include "endpoint/tally.h"
#include "endpoint/window.h"
#include "log/forgotten.h"
#include "log/retention.h"
#include "log/step.h"
#include "log/transaction.h"
#include "server/shares.h"
#include "store/endpoint_settings.h"
#include "store/parked.h"
#include "store/positions.h"
#include "worker/busy.h"
#include "worker/challenges.h"
#include "worker/changes.h"
#include "worker/forget.h"
#include "worker/loop.h"
#include "worker/others.h"
#include "worker/publish.h"
#include "worker/head.h"
#include "worker/leftovers.h"
#include "worker/links.h"
#include "worker/reload.h"
#include "worker/roster.h"
#include "worker/slots.h"
#include "worker/source_keeper.h"

static OutboxEndpoint *meeting;				  /* the endpoint that is being loaded */
static uint16		   weight[OUTBOX_SHARES]; /* endpoints of each share */

/*
 * The changes that are visible in this snapshot were read, as text.  NULL: all settings
 * are to be read.
 */
static char *changes_seen;

void
outbox_reload_init(void)
{
	pg_atomic_write_u64(&outbox_self->forgot, 0);
	pg_atomic_write_u64(&outbox_self->seen_changes, 1); /* all changes are needed */
	outbox_loop.changed = &outbox_db->changed;
	outbox_loop.seen_changed = pg_atomic_read_u64(&outbox_db->changed);
}

/*
 * Returns this worker's part of the requests that a tenant may have in flight in all.
 * The parts of all workers add up to that limit, unless it is less than one for each.
 */
static int
part_of_tenant(int in_flight)
{
	int parts = outbox_workers_per_database;

	if (in_flight == 0)
		return 0;
	return Max(in_flight / parts + (outbox_worker_number < in_flight % parts), 1);
}

static void
set_tenant(OutboxEndpoint *ep, const OutboxEndpointRow *s)
{
	if (s->tenant == NULL)
		return;
	if (ep->tenant == NULL)
		ep->tenant = outbox_tenant_join(s->tenant);
	outbox_tenant_set_limits(ep->tenant, part_of_tenant(s->tenant_in_flight),
							 s->tenant_rate / outbox_workers_per_database,
							 s->tenant_kept);
	outbox_slots_limits_changed(ep->tenant);
}

/*
 * True if the endpoint is idle, as an endpoint is that was just made.  Then it need not be
 * examined, unless it does not follow the row that this worker moves.
 */
static bool
may_rest(const OutboxEndpoint *ep)
{
	return ep->place.stored_version == ep->config.version && !ep->place.dirty &&
		ep->status.failing_since == 0 && ep->pace.breaker == OUTBOX_BREAKER_CLOSED &&
		!outbox_target_has_link(&ep->config.target) && outbox_loop.head.reading == NULL &&
		!outbox_tally_is_recent(ep, GetCurrentTimestamp()) &&
		outbox_endpoint_may_rest(ep);
}

/*
 * Loads an endpoint that this worker did not have: its settings, position and parked
 * rows.  NULL: rows have to be deleted before.
 */
static OutboxEndpoint *
load_endpoint(const OutboxEndpointRow *s)
{
	OutboxEndpoint *ep;
	OutboxPosition	p;
	bool moved = !outbox_position_read(s->position, &p) || p.generation != s->generation;

	if (moved && s->generation > 1 &&
		!outbox_leftovers_may_load(s->id, s->generation, s->start))
	{
		outbox_cursor_clear(&p.cursor);
		return NULL;
	}
	ep = outbox_endpoint_create(outbox_roster_cxt, s->id);
	meeting = ep;
	outbox_endpoint_settings_assign(ep, s);
	outbox_links_note(ep);
	outbox_challenges_note(ep);
	set_tenant(ep, s);
	ep->config.generation = s->generation;
	ep->place.stored_version = s->subscription;
	ep->place.dirty = s->subscription != s->version; /* it reads once that is stored */

	if (moved)
	{
		/* The counters still count, at the new place in the log. */
		outbox_cursor_clear(&p.cursor);
		p.npending = 0;
		outbox_cursor_set(&p.cursor, s->start, NULL, 0);
	}
	else
		ep->place.follows = p.follows;
	ep->status.state_since = Max(ep->status.state_since, p.state_since);
	if (p.failing_since != 0)
		outbox_status_failing_since(ep, p.failing_since, p.settled_at);
	ep->status.failing_told = p.failing_told;
	ep->status.stuck_until = outbox_step_stuck_until(ep->id,
													 outbox_tenant_number(ep->tenant),
													 &ep->status.state_since);
	if (p.probes >= 0)
		outbox_pace_reopen(&ep->pace, p.probes);
	ep->tally->delivered = p.delivered;
	ep->tally->failed_attempts = p.failed_attempts;
	memcpy(ep->tally->count, p.counters, sizeof(ep->tally->count));
	memcpy(ep->tally->shown, p.counters, sizeof(ep->tally->shown));
	ep->tally->shown[OUTBOX_COUNT_DELIVERED] = p.delivered;
	if (ep->tally->delivered > 0) /* else it is new, and its id may have been another
								  * endpoint's */
		outbox_tally_resume(ep);
	ep->tally->last_active_at = GetCurrentTimestamp();
	outbox_cursor_copy(&ep->feed->cursor, &p.cursor);
	if (!ep->place.dirty && outbox_head_has_place(&ep->feed->cursor))
		outbox_cursor_clear(&ep->feed->cursor);
	else
		outbox_window_count_again(ep, &outbox_loop.head);
	outbox_cursor_clear(&p.cursor);

	/*
	 * Parked rows are loaded first, because they may come before pending events of
	 * their lane.
	 */
	outbox_parked_load(ep);
	outbox_position_load_pending(ep, p.pending, p.npending);
	OUTBOX_CRASH_POINT("endpoint.loaded");
	if (!may_rest(ep))
		outbox_busy_add(ep);
	else
	{
		outbox_publish_one(ep, GetCurrentTimestamp());
		outbox_endpoint_rest(ep, GetCurrentTimestamp());
	}
	meeting = NULL;
	return ep;
}

typedef struct Reload
{
	bool			 begun; /* false: nothing has changed in memory yet */
	bool			 all;	/* true if the settings of all are read */
	List			*ids;	/* else of these endpoints ... */
	List			*left;	/* ... and later of these */
	int				 nread; /* endpoints whose settings were read */
	OutboxEndpoint **list;	/* all endpoints, or the new endpoints */
	int				 n;
	int				 max;
	bool			 some_left_out; /* true if an endpoint is another worker's, or held */
	uint16			 weight[OUTBOX_SHARES];
} Reload;

static Reload reload; /* the current reload, or the reload that failed */

/* True if the weight of its share counts the endpoint already. */
static bool
is_weighed(int32 id)
{
	return outbox_loop_find(id) || outbox_others_have(id) ||
		outbox_leftovers_seeking(id) || list_member_int(outbox_roster_to_load(), id);
}

/* Until its settings are read, an endpoint reads no events, which the old ones would judge. */
static void
put_off(OutboxEndpoint *ep)
{
	if (ep == NULL || ep->member.put_off)
		return;
	outbox_busy_add(ep);
	outbox_window_drop(ep, &outbox_loop.head);
	ep->member.put_off = true;
	ep->place.dirty = true;
}

/* An endpoint that is switched off and has nothing leaves the head with its next event. */
static void
switch_off(OutboxEndpoint *ep)
{
	if (!outbox_is_attached(ep) || ep->feed->window_count > 0 || ep->queue->nheld > 0)
		outbox_window_drop(ep, &outbox_loop.head);
}

static void
apply_settings(void *arg, const OutboxEndpointRow *s)
{
	Reload		   *r = arg;
	OutboxEndpoint *ep = outbox_loop_find(s->id);
	int				share = outbox_share_of(s->id);
	bool			held = outbox_step_held(OUTBOX_STEP_RELOAD, s->id);

	r->nread++;
	if (r->all || (!held && !is_weighed(s->id)))
		r->weight[share] = Min(r->weight[share] + 1, PG_UINT16_MAX);
	if (held)
	{
		/*
		 * Its settings could not be read.  It stays as it is, or unknown.  If they have
		 * changed, it reads no events, because the old ones do not hold for these.
		 */
		outbox_changes_read_at(s->id, outbox_step_next_try(OUTBOX_STEP_RELOAD, s->id));
		r->some_left_out = true;
		if (ep == NULL)
			return;
		if (ep->config.row_version != s->row_version)
			put_off(ep);
	}
	else if (!outbox_share_served(share))
	{
		outbox_others_note(s);
		r->some_left_out = true;
		if (ep == NULL)
			return;
		/* It is about to leave, so its settings do not matter here any more. */
	}
	else if (ep == NULL)
	{
		ep = load_endpoint(s);
		if (ep == NULL)
		{
			r->some_left_out = true;
			return;
		}
	}
	else if (ep->config.generation != s->generation ||
			 ep->config.ordering != s->ordering ||
			 ep->config.block_on_dead != s->block_on_dead)
	{
		/* Another position, or other lanes: it has to be loaded again. */
		outbox_roster_load_again(ep);
	}
	else if (ep->config.row_version != s->row_version ||
			 ep->config.keys_version != s->keys_version ||
			 ep->config.previous_until != s->previous_until || ep->member.put_off)
	{
		bool other = ep->config.version != s->version;

		outbox_busy_add(ep);
		if (other)
			outbox_window_drop(ep, &outbox_loop.head);
		else if (s->paused || s->disabled)
			switch_off(ep);
		outbox_endpoint_settings_assign(ep, s);
		outbox_links_note(ep);
		outbox_challenges_note(ep);
		ep->member.put_off = false;

		/* At once, because it has these settings even if the reload fails later. */
		outbox_subscribers_add(ep);
		if (other)
			outbox_window_count_again(ep, &outbox_loop.head);
		if (ep->status.held_for)
			switch_off(ep);
		ep->place.dirty = true;
	}
	ep->member.seen = true;
	set_tenant(ep, s);
	if (!held)
		outbox_changes_read_at(s->id, s->previous_until); /* a rotation of secrets ends */
	if (!r->all && outbox_loop_find(s->id) == ep)
		return; /* it is on the list of endpoints already */
	outbox_room(r->list, r->n, r->max, outbox_roster_cxt);
	r->list[r->n++] = ep;
}

/* An endpoint that has no settings any more is freed after the commit, or lingers. */
static bool
drop_if_gone(OutboxEndpoint *ep)
{
	if (ep->member.seen)
		return false;
	ep->member.dropped = true;
	outbox_leftovers_dropped(ep->id);
	return true;
}

/* True if the endpoint's settings were found, here or as another worker's. */
static bool
was_read(const Reload *r, int32 id)
{
	for (int i = 0; i < r->n; i++)
		if (r->list[i]->id == id)
			return true;
	return outbox_others_noted(id) || outbox_leftovers_seeking(id);
}

static void
look_if_dropped(Reload *r, int32 id)
{
	OutboxEndpoint *ep = outbox_loop_find(id);
	int				share = outbox_share_of(id);

	if (ep ? (ep->member.dropped || !drop_if_gone(ep)) : was_read(r, id))
		return;
	if (is_weighed(id) && r->weight[share] > 0)
		r->weight[share]--;

	/*
	 * An endpoint that was made and dropped between two reloads was never loaded.  The
	 * rows of another worker's endpoint are deleted by that worker.
	 */
	if (ep == NULL && outbox_share_served(share))
		outbox_leftovers_dropped(id);
}

static void
look_for_dropped(Reload *r)
{
	const ListCell *cell;

	if (r->all)
		for (int i = 0; i < outbox_loop.roster.n; i++)
			(void) drop_if_gone(outbox_loop.roster.endpoints[i]);
	else
		foreach (cell, r->ids)
			look_if_dropped(r, lfirst_int(cell));
}

static void
begin_reload(Reload *r)
{
	const ListCell *cell;

	if (r->all)
	{
		outbox_loop.roster.reload_at = DT_NOEND;
		for (int i = 0; i < outbox_loop.roster.n; i++)
			outbox_loop.roster.endpoints[i]->member.seen = false;
		return;
	}
	memcpy(r->weight, weight, sizeof(weight));
	foreach (cell, r->left)
		put_off(outbox_loop_find(lfirst_int(cell)));
	foreach (cell, r->ids)
	{
		OutboxEndpoint *ep = outbox_loop_find(lfirst_int(cell));

		if (ep)
			ep->member.seen = false;
	}
}

/* The endpoint's settings are read, unless that is on hold. */
static void
pass(int32 id)
{
	if (!outbox_step_held(OUTBOX_STEP_RELOAD, id))
		outbox_step_passed(OUTBOX_STEP_RELOAD, id);
}

/* The reload of all settings is committed. */
static void
take_all(Reload *r)
{
	OutboxEndpoint **former = outbox_loop.roster.endpoints;
	int				 nformer = outbox_loop.roster.n;

	outbox_loop.roster.endpoints = r->list;
	outbox_loop.roster.n = r->n;
	outbox_loop.roster.max = r->max;
	r->list = NULL;
	outbox_others_end_all();

	/* A worker that starts again leaves its idle endpoints as they are stored. */
	if (changes_seen == NULL && !r->some_left_out)
		outbox_positions_continue_shared(outbox_loop.roster.endpoints,
										 outbox_loop.roster.n);
	for (int i = 0; i < outbox_loop.roster.n; i++)
	{
		OutboxEndpoint *ep = outbox_loop.roster.endpoints[i];

		pass(ep->id);
		outbox_subscribers_add(ep);
		outbox_busy_note_loaded(ep);
	}
	for (int i = 0; i < nformer; i++)
		if (former[i]->member.dropped && outbox_roster_lingers(former[i]))
			outbox_roster_add(former[i]);
		else if (former[i]->member.dropped)
			outbox_roster_forget(former[i]);
	if (former)
		pfree(former);
}

/* The reload of some is committed. */
static void
take_some(Reload *r)
{
	const ListCell *cell;
	List		   *gone = NIL;

	for (int i = 0; i < r->n; i++)
		outbox_roster_add(r->list[i]);
	foreach (cell, r->ids)
	{
		OutboxEndpoint *ep = outbox_loop_find(lfirst_int(cell));

		pass(lfirst_int(cell));
		if (ep && ep->member.dropped && !outbox_roster_lingers(ep))
			gone = list_append_unique_ptr(gone, ep);
		else if (ep && !ep->member.dropped)
		{
			outbox_subscribers_add(ep);
			outbox_busy_note_loaded(ep);
		}
	}
	if (gone)
		outbox_roster_remove(gone);
	outbox_others_end(r->ids);
}

static ArrayType *
id_array(const List *ids)
{
	Datum		   *values = palloc(sizeof(Datum) * Max(list_length(ids), 1));
	const ListCell *cell;
	int				n = 0;

	foreach (cell, ids)
		values[n++] = Int32GetDatum(lfirst_int(cell));
	return DatumGetArrayTypeP(outbox_array(values, n, INT4OID));
}

/* 'tidy' is for endpoints that were dropped while no worker had them. */
void
outbox_reload(bool tidy)
{
	Reload *r = &reload;
	uint64	changed = pg_atomic_read_u64(&outbox_db->changed);
	bool	all = tidy || GetCurrentTimestamp() >= outbox_loop.roster.reload_at;
	bool	takes = tidy || outbox_loop.roster.reload_at == 0; /* endpoints of others */
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext old;
	char		 *snapshot;
	uint64		  seen;
	int64		  nendpoints;

	r->begun = false;
	outbox_txn_begin_step();
	outbox_lock_indexes(OUTBOX_TABLE_EVENTS_0, OUTBOX_TABLE_KEPT_EVENTS);
	if (!outbox_forgotten_read())
		outbox_throw_locked(OUTBOX_TABLE_FORGOTTEN);
	outbox_positions_read_again();
	memset(r, 0, sizeof(Reload));
	r->begun = true;
	outbox_query("SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text,"
				 " pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())");
	outbox_read_row(0, into_text(&snapshot), into_xid8(&seen));
	snapshot = MemoryContextStrdup(caller, snapshot);
	r->all = all || !outbox_changes_find(changes_seen, is_weighed, &r->ids, &r->left);
	outbox_changes_take_due(r->all, &r->ids);
	outbox_others_begin();
	begin_reload(r);
	nendpoints = outbox_loop.roster.n + outbox_others_count();
	if (r->all)
	{
		outbox_query("SELECT pg_catalog.count(*) FROM outbox.endpoint_settings");
		outbox_read_row(0, into_int8(&nendpoints));
	}
	outbox_parked_share_room(nendpoints);
	if (outbox_endpoint_settings_read(r->all ? NULL : id_array(r->ids), apply_settings,
									  r))
		outbox_leftovers_secret();
	outbox_step_blame(0);
	outbox_retention_configure();
	outbox_sources_configure();
	look_for_dropped(r);
	ereport(DEBUG1,
			(errmsg_internal("outbox worker read the settings of %d endpoints",
							 r->nread)));
	outbox_changes_leave(r->all ? NIL : r->left); /* after an error, all are read */
	old = MemoryContextSwitchTo(caller);
	r->ids = list_copy(r->ids); /* for after the commit */
	MemoryContextSwitchTo(old);
	OUTBOX_CRASH_POINT("reload.read");
	outbox_txn_commit();
	OUTBOX_CRASH_POINT("reload.committed");

	if (r->all)
		take_all(r);
	else
		take_some(r);
	if (r->list)
		pfree(r->list);
	r->list = NULL;
	r->n = 0;
	outbox_roster_loaded(r->all, r->ids);
	outbox_forget_copies();
	if (changes_seen)
		pfree(changes_seen);
	changes_seen = MemoryContextStrdup(TopMemoryContext, snapshot);
	pg_atomic_write_u64(&outbox_self->seen_changes, seen);
	outbox_loop.seen_changed = changed;
	outbox_loop.reloads++;
	outbox_leftovers_reloaded();
	if (takes)
		outbox_leftovers_search();
	memcpy(weight, r->weight, sizeof(weight));
	if (outbox_serves_database())
		outbox_shares_weigh(weight);
	outbox_loop.traffic.refill_all = true;
}

/* An endpoint whose settings could not be read may not be in the roster. */
void
outbox_reload_by_and_by(void)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < outbox_loop.roster.n; i++)
		outbox_changes_read_at(outbox_loop.roster.endpoints[i]->id, now);
	outbox_changes_hurry(now);
}

/*
 * Endpoints that were loaded by the failed reload are freed.  The next reload loads
 * them again.
 */
void
outbox_reload_failed(void)
{
	for (int i = 0; i < outbox_loop.roster.n; i++)
		outbox_loop.roster.endpoints[i]
			->member.dropped &= outbox_loop.roster.endpoints[i]->member.recreate;
	for (int i = 0; i < reload.n; i++)
		if (outbox_loop_find(reload.list[i]->id) == NULL)
			outbox_roster_forget(reload.list[i]);
	if (reload.list)
		pfree(reload.list);
	reload.list = NULL;
	reload.n = 0;
	if (meeting)
		outbox_endpoint_free(meeting);
	meeting = NULL;
	if (reload.begun)
		outbox_loop.roster.reload_at = 0;
}

bool
outbox_reload_put_off(void)
{
	List  *ids = NIL;
	List  *left = NIL;
	bool   all;
	uint64 n;

	if (!outbox_forgotten_read())
		return false;
	outbox_lock_indexes(OUTBOX_TABLE_ENDPOINT_SETTINGS, OUTBOX_TABLE_ENDPOINT_SETTINGS);
	outbox_lock_indexes(OUTBOX_TABLE_ENDPOINT_SECRETS, OUTBOX_TABLE_ENDPOINT_SECRETS);
	all = !outbox_changes_find(changes_seen, is_weighed, &ids, &left);
	n = outbox_query(
		"SELECT s.endpoint_id, s.xmin, k.xmin FROM outbox.endpoint_settings s"
		" LEFT JOIN outbox.endpoint_secrets k ON k.endpoint_id = s.endpoint_id"
		" AND k.part = 0"
		" WHERE $1 IS NULL OR s.endpoint_id = ANY ($1)",
		arg_or_null(INT4ARRAYOID, PointerGetDatum(id_array(list_concat(ids, left))),
					all));
	for (uint64 i = 0; i < n; i++)
	{
		OutboxEndpoint *ep;
		int32			id;
		TransactionId	settings, secrets;

		outbox_read_row(i, into_int4(&id), into_xid(&settings), into_xid(&secrets));
		ep = outbox_loop_find(id);
		if (ep &&
			ep->config.row_version != outbox_endpoint_row_version(settings, secrets))
			put_off(ep);
	}
	return true;
}
