/*
 * json_text.c
 *	  Owns the text of jsonb.
 *
 * JsonbToCString() of PostgreSQL 15 copies each string, and then looks at each of its
 * characters by itself.  That took a sixth of the time of an event in the worker.  Here, a
 * string without characters to escape is copied once, as a whole.
 */
#include "base/json_text.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "base/encoding.h"

static void
append_scalar(StringInfo text, const JsonbValue *v)
{
	switch (v->type)
	{
		case jbvString:
			outbox_append_json_string(text, v->val.string.val, v->val.string.len);
			break;
		case jbvNumeric:
			appendStringInfoString(text,
								   DatumGetCString(DirectFunctionCall1(
									   numeric_out, NumericGetDatum(v->val.numeric))));
			break;
		case jbvBool:
			appendStringInfoString(text, v->val.boolean ? "true" : "false");
			break;
		case jbvNull:
			appendStringInfoString(text, "null");
			break;
		default:
			elog(ERROR, "jsonb has a scalar of unknown type %d", (int) v->type);
	}
}

void
outbox_json_text(StringInfo text, Jsonb *jb)
{
	/* A scalar is stored as an array of one element, which has no brackets. */
	bool			   brackets = !JB_ROOT_IS_SCALAR(jb);
	bool			   comma = false; /* before the next key or element */
	JsonbIterator	  *it = JsonbIteratorInit(&jb->root);
	JsonbIteratorToken token;
	JsonbValue		   v;

	enlargeStringInfo(text, VARSIZE(jb));
	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
	{
		bool ends = token == WJB_END_ARRAY || token == WJB_END_OBJECT;

		if (comma && !ends)
			appendBinaryStringInfo(text, ", ", 2);
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				if (brackets)
					appendStringInfoCharMacro(text, '[');
				break;
			case WJB_END_ARRAY:
				if (brackets)
					appendStringInfoCharMacro(text, ']');
				break;
			case WJB_BEGIN_OBJECT:
				appendStringInfoCharMacro(text, '{');
				break;
			case WJB_END_OBJECT:
				appendStringInfoCharMacro(text, '}');
				break;
			case WJB_KEY:
				append_scalar(text, &v);
				appendBinaryStringInfo(text, ": ", 2);
				break;
			case WJB_VALUE:
			case WJB_ELEM:
				append_scalar(text, &v);
				break;
			case WJB_DONE:
				break;
		}
		comma = ends || token == WJB_VALUE || token == WJB_ELEM;
	}
}
