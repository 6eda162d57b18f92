/*
 * as_text.c
 *	  Owns the text of a value, which must not depend on the session.  Otherwise events of
 *	  one row would have several keys, and no order.
 */
#include "base/outbox.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "emit/as_text.h"

/* The settings that PostgreSQL's output functions use. */
static const char *const formats[][2] = {
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "UTC"},
	{"extra_float_digits", "1"},
	{"bytea_output", "hex"},
	{"lc_monetary", "C"},
	{"quote_all_identifiers", "off"},
	{"search_path", "pg_catalog, pg_temp"}, /* for regclass and similar types */
};

int
outbox_formats_fix(void)
{
	int level = NewGUCNestLevel();

	for (size_t i = 0; i < lengthof(formats); i++)
		if (strcmp(GetConfigOption(formats[i][0], false, false), formats[i][1]) != 0)
			(void) set_config_option(formats[i][0], formats[i][1], PGC_USERSET,
									 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return level;
}

bool
outbox_type_has_formats(Oid type)
{
	switch (type)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case UUIDOID:
		case JSONOID:
		case JSONBOID:
			return false;
		default:
			return true;
	}
}

void
outbox_as_text_init(OutboxAsText *as, Oid type, MemoryContext cxt)
{
	Oid	 output;
	bool varlena;

	getTypeOutputInfo(type, &output, &varlena);
	fmgr_info_cxt(output, &as->output, cxt);
	as->has_formats = outbox_type_has_formats(getBaseType(type));
}

text *
outbox_as_text(OutboxAsText *as, Datum value)
{
	int	  level = as->has_formats ? outbox_formats_fix() : 0;
	text *result = cstring_to_text(OutputFunctionCall(&as->output, value));

	if (as->has_formats)
		AtEOXact_GUC(true, level);
	return result;
}
