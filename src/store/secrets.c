/*
 * secrets.c
 *	  Owns the SQL-callable side of sealing: the values that create_endpoint() and its
 *	  relatives store, and the form in which they and the view outbox.endpoints show
 *	  them.
 *
 * The key file is read for each call, and its keys are wiped before anything else
 * is done with the result.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "base/compat.h"
#include "base/version.h"
#include "store/seal.h"

/*
 * Turns a value into another one, palloc'd.  NULL: it cannot, and 'problem' says
 * why.
 */
typedef char *(*Change)(const OutboxKeyring *ring, int32 endpoint_id, const char *field,
						const char *value, char *problem);

static _Noreturn void
refuse_to_seal(const char *problem)
{
	if (problem[0] == '\0')
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a value must not begin with \"%s\"", OUTBOX_SEALED),
			 errhint(
				 "Pass the value in clear text. Values that begin like this are sealed.")));
	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("secrets cannot be sealed: %s", problem),
		 errhint(
			 "outbox.secret_key_file must name a file that belongs to the server's user, has mode 0600, and has a key in base64 on each line. Nothing is stored in clear text while it is set.")));
}

/*
 * Seals a value.  A value with the form of a sealed one is refused, so that every
 * value of that form is sealed.  'problem' is empty then.
 */
static char *
seal(const OutboxKeyring *ring, int32 endpoint_id, const char *field, const char *value,
	 char *problem)
{
	if (outbox_is_sealed(field, value))
	{
		problem[0] = '\0';
		return NULL;
	}
	return outbox_seal(ring, endpoint_id, field, value, problem);
}

/*
 * Seals a value with the first key of the file, unless it is sealed with that key
 * already.
 */
static char *
reseal(const OutboxKeyring *ring, int32 endpoint_id, const char *field, const char *value,
	   char *problem)
{
	char *clear = outbox_unseal(ring, endpoint_id, field, value, problem);
	char *result;

	if (clear == NULL)
		return NULL;
	if (outbox_sealed_anew(ring, field, value))
		result = pstrdup(value);
	else
		result = outbox_seal(ring, endpoint_id, field, clear, problem);
	explicit_bzero(clear, strlen(clear));
	return result;
}

/* Opens a value, or returns it as it is stored if it cannot be opened. */
static char *
show(const OutboxKeyring *ring, int32 endpoint_id, const char *field, const char *value,
	 char *problem)
{
	char *clear = outbox_unseal(ring, endpoint_id, field, value, problem);

	return clear ? clear : pstrdup(value);
}

/*
 * Changes the string values of an object.  Their fields are named 'kind', which is
 * "header" or "credential", and their own name.  Whatever else the column has is
 * returned as it is.
 */
static Jsonb *
change_object(Change change, const OutboxKeyring *ring, int32 endpoint_id,
			  const char *kind, Jsonb *values, char *problem)
{
	JsonbIterator	  *it = JsonbIteratorInit(&values->root);
	JsonbIteratorToken token;
	OutboxJsonbInState state = {0};
	JsonbValue		   v;
	char			  *field = NULL;

	if (!JB_ROOT_IS_OBJECT(values))
		return values;
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			field = psprintf("%s:%.*s", kind, v.val.string.len, v.val.string.val);
		else if (token == WJB_VALUE && v.type == jbvString)
		{
			v.val.string.val = change(ring, endpoint_id, field,
									  pnstrdup(v.val.string.val, v.val.string.len),
									  problem);
			if (v.val.string.val == NULL)
				return NULL;
			v.val.string.len = (int) strlen(v.val.string.val);
		}
		outbox_push_jsonb_value(&state, token,
								token == WJB_KEY || token == WJB_VALUE ? &v : NULL);
	}
	return JsonbValueToJsonb(state.result);
}

/*
 * Changes the argument 'value': a text, which is the field, or a jsonb, each of whose
 * values is one.  'field' NULL: the URL and the headers of an endpoint.  Returns false if
 * it cannot.
 */
static bool
change_argument(FunctionCallInfo fcinfo, Change change, const char *field, Datum *result,
				char *problem)
{
	int			  n = field ? 2 : 1;
	Oid			  type = get_fn_expr_argtype(fcinfo->flinfo, n);
	int32		  endpoint_id = PG_GETARG_INT32(0);
	OutboxKeyring ring;
	char		 *value;
	Jsonb		 *object;

	if (type != TEXTOID && type != JSONBOID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("the value is neither text nor jsonb"),
				 errhint("Pass the URL as text, or the headers as jsonb.")));
	outbox_keyring_load(&ring);
	if (type == TEXTOID)
	{
		value = change(&ring, endpoint_id, field ? field : OUTBOX_FIELD_URL,
					   text_to_cstring(PG_GETARG_TEXT_PP(n)), problem);
		*result = value ? CStringGetTextDatum(value) : 0;
	}
	else
	{
		object = change_object(change, &ring, endpoint_id, field ? field : "header",
							   PG_GETARG_JSONB_P(n), problem);
		*result = JsonbPGetDatum(object);
	}
	outbox_keyring_wipe(&ring);
	return *result != 0;
}

/*
 * seal(endpoint_id int, field text, value anyelement, again bool): the value as it is to be
 * stored, or an error.  With 'again' a stored value, sealed with the first key of the file,
 * or NULL if it cannot be opened or sealed.
 */
OUTBOX_FUNCTION(outbox_seal_1_0, 4)
{
	bool  again = PG_GETARG_BOOL(3);
	char  problem[OUTBOX_SEAL_PROBLEM];
	Datum result;

	if (change_argument(fcinfo, again ? reseal : seal,
						text_to_cstring(PG_GETARG_TEXT_PP(1)), &result, problem))
		return result;
	if (!again)
		refuse_to_seal(problem);
	PG_RETURN_NULL();
}

/*
 * unseal(endpoint_id int, field text, value text): the value in clear text, or an
 * error.
 */
OUTBOX_FUNCTION(outbox_unseal_1_0, 3)
{
	char  problem[OUTBOX_SEAL_PROBLEM];
	Datum result;

	if (!change_argument(fcinfo, outbox_unseal, text_to_cstring(PG_GETARG_TEXT_PP(1)),
						 &result, problem))
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the secret of the endpoint cannot be opened: %s", problem),
			 errhint(
				 "Put the key back into outbox.secret_key_file. If it is lost, outbox.rotate_secret(name, grace => '0') sets a new secret, and outbox.alter_endpoint() the URL and the headers.")));
	return result;
}

/* shown(endpoint_id int, value anyelement), for the view: a URL, or headers. */
OUTBOX_FUNCTION(outbox_shown_1_0, 2)
{
	char  problem[OUTBOX_SEAL_PROBLEM];
	Datum result;

	(void) change_argument(fcinfo, show, NULL, &result, problem);
	return result;
}
