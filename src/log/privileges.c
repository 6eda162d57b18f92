/*
 * privileges.c
 *	  Owns which privileges the role of a worker needs, and which of them a role lacks.
 *
 * The role need not own anything.  The privilege to truncate the table of secrets also
 * passes that table's row-level security.
 */
#include "base/outbox.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "utils/acl.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "log/privileges.h"
#include "log/tables.h"

static const struct
{
	AclMode		mode;
	const char *name;
} table_privileges[] = {
	{ACL_SELECT, "SELECT"}, {ACL_INSERT, "INSERT"},		{ACL_UPDATE, "UPDATE"},
	{ACL_DELETE, "DELETE"}, {ACL_TRUNCATE, "TRUNCATE"},
};

static const char *const views[] = {"all_events", "content_files", "endpoint_positions"};

/* The statements of a worker call these, and so do the defaults of outbox.events. */
static const char *const functions[] = {"check_event",		 "current_epoch",
										"current_piece",	 "forgets",
										"is_pending",		 "log_xid",
										"new_event_id",		 "next_seq",
										"order_key",		 "pending_seqs",
										"stored_credentials"};

/* A table that does not exist belongs to another version, and is not reported here. */
static bool
may(Oid relation, Oid role, AclMode mode)
{
	return !OidIsValid(relation) ||
		pg_class_aclcheck(relation, role, mode) == ACLCHECK_OK;
}

static const char *
missing_of_table(Oid table, Oid role)
{
	for (size_t i = 0; i < lengthof(table_privileges); i++)
		if (!may(table, role, table_privileges[i].mode))
			return psprintf("%s on " OUTBOX_SCHEMA ".%s", table_privileges[i].name,
							get_rel_name(table));
	return NULL;
}

/* Checks all functions of that name. */
static const char *
missing_of_function(Oid schema, const char *name, Oid role)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	const char *missing = NULL;

	for (int i = 0; i < list->n_members && missing == NULL; i++)
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (form->pronamespace == schema && !outbox_function_callable(form->oid, role))
			missing = psprintf("EXECUTE on function " OUTBOX_SCHEMA ".%s", name);
	}
	ReleaseCatCacheList(list);
	return missing;
}

const char *
outbox_missing_privilege(Oid role)
{
	Oid			schema = get_namespace_oid(OUTBOX_SCHEMA, false);
	const char *missing = NULL;

	if (superuser_arg(role))
		return NULL;
	if (!outbox_schema_usable(schema, role))
		return "USAGE on schema " OUTBOX_SCHEMA;
	for (int i = 0; i < OUTBOX_TABLES && missing == NULL; i++)
		missing = missing_of_table(outbox_table_oid(i), role);
	for (size_t i = 0; i < lengthof(views) && missing == NULL; i++)
		if (!may(get_relname_relid(views[i], schema), role, ACL_SELECT))
			missing = psprintf("SELECT on " OUTBOX_SCHEMA ".%s", views[i]);

	/*
	 * Without it, since PostgreSQL 18, the sequence's value is NULL, without an error.
	 */
	if (missing == NULL && !may(outbox_sequence_oid(), role, ACL_SELECT))
		missing = "SELECT on sequence " OUTBOX_SCHEMA ".events_seq";
	for (size_t i = 0; i < lengthof(functions) && missing == NULL; i++)
		missing = missing_of_function(schema, functions[i], role);
	return missing;
}
