/*
 * packed_settings.c
 *	  Owns the memory of an endpoint's settings: one piece of exactly their size.
 *
 * They are read into a memory context, and packed when they are complete.  The piece is
 * overwritten before it is freed, because it has secrets.
 */
#include "base/outbox.h"

#include "base/pieces.h"
#include "endpoint/packed_settings.h"

typedef struct OutboxSettings
{
	struct OutboxSettings *former; /* settings that were replaced, and may be in use */
	size_t				   size;
} OutboxSettings;

static OutboxPieces pieces = {.name = "settings of endpoints"};

/* Measures, or copies. */
typedef struct Packer
{
	char  *to; /* NULL: only 'used' is wanted */
	size_t used;
} Packer;

/* Returns the copy, or 'data' itself while only its size is wanted. */
static void *
put(Packer *p, const void *data, size_t size, size_t alignment)
{
	char *to = NULL;

	p->used = TYPEALIGN(alignment, p->used);
	if (p->to && size > 0) /* memcpy() takes no NULL, also not for nothing */
		to = memcpy(p->to + p->used, data, size);
	p->used += size;
	return to ? (void *) to : unconstify(void *, data);
}

static char *
put_text(Packer *p, const char *text)
{
	return text ? put(p, text, strlen(text) + 1, 1) : NULL;
}

static char **
put_texts(Packer *p, char **texts, int n)
{
	char **to = put(p, texts, sizeof(char *) * n, MAXIMUM_ALIGNOF);

	for (int i = 0; i < n; i++)
		to[i] = put_text(p, to[i]);
	return to;
}

/* Of the last one only the bytes that it has. */
static OutboxKey *
put_keys(Packer *p, const OutboxKey *keys, int n)
{
	size_t size = n == 0 ?
		0 :
		sizeof(OutboxKey) * (n - 1) + offsetof(OutboxKey, bytes) + keys[n - 1].len;

	return put(p, keys, size, MAXIMUM_ALIGNOF);
}

static OutboxOption *
put_options(Packer *p, const OutboxOption *options, int n)
{
	OutboxOption *to = put(p, options, sizeof(OutboxOption) * n, MAXIMUM_ALIGNOF);

	for (int i = 0; i < n; i++)
	{
		to[i].name = put_text(p, to[i].name);
		to[i].value = put_text(p, to[i].value);
	}
	return to;
}

/* The standard profile is static, and stays where it is.  Any other is copied with its texts. */
static const OutboxProfile *
put_profile(Packer *p, const OutboxProfile *profile)
{
	OutboxProfile *to;

	if (profile == &outbox_profile_standard)
		return profile;
	to = put(p, profile, sizeof(*profile), MAXIMUM_ALIGNOF);
#define PUT(field) to->field = put_text(p, to->field)
	PUT(name);
	PUT(id_header);
	PUT(timestamp_header);
	PUT(type_header);
	PUT(signature_header);
	PUT(signed_text);
	PUT(value);
	PUT(next);
	PUT(agent);
	PUT(query);
#undef PUT
	return to;
}

static void
put_all(Packer *p, OutboxEndpointConfig *c, OutboxEndpointStatus *s)
{
	c->request.keys = put_keys(p, c->request.keys, c->request.nkeys);
	if (c->filter)
		c->filter = put(p, c->filter, VARSIZE(c->filter), MAXIMUM_ALIGNOF);
	c->request.shape.text = put_text(p, c->request.shape.text);
	c->request.profile = put_profile(p, c->request.profile);
	c->patterns = put_texts(p, c->patterns, c->npatterns);
	c->request.header_names = put_texts(p, c->request.header_names, c->request.nheaders);
	c->request.header_values = put_texts(p, c->request.header_values,
										 c->request.nheaders);
	c->target.config = put_options(p, c->target.config, c->target.nconfig);
	c->target.credentials = put_options(p, c->target.credentials, c->target.ncredentials);
	c->name = put_text(p, c->name);
	c->target.url = put_text(p, c->target.url);
	s->held_for = put_text(p, s->held_for);
	s->reason = put_text(p, s->reason);
}

void
outbox_settings_pack(OutboxEndpointConfig *c, OutboxEndpointStatus *s)
{
	OutboxEndpointConfig config = *c;
	OutboxEndpointStatus status = *s;
	Packer				 p = {.used = sizeof(OutboxSettings)};
	OutboxSettings		*settings;

	put_all(&p, &config, &status);

	settings = outbox_piece_alloc(&pieces, p.used);
	settings->former = c->settings;
	settings->size = p.used;
	p = (Packer){.to = (char *) settings, .used = sizeof(OutboxSettings)};
	put_all(&p, c, s);
	c->settings = settings;
}

void
outbox_settings_free_former(OutboxEndpointConfig *c)
{
	while (c->settings->former)
	{
		OutboxSettings *former = c->settings->former;

		c->settings->former = former->former;
		explicit_bzero(former, former->size);
		pfree(former);
	}
}

void
outbox_settings_free(OutboxEndpointConfig *c)
{
	if (c->settings == NULL)
		return;
	outbox_settings_free_former(c);
	explicit_bzero(c->settings, c->settings->size);
	pfree(c->settings);
	c->settings = NULL;
}

size_t
outbox_settings_memory(void)
{
	return MemoryContextMemAllocated(outbox_pieces_context(&pieces), true);
}

bool
outbox_settings_has_former(const OutboxEndpointConfig *c)
{
	return c->settings && c->settings->former;
}
