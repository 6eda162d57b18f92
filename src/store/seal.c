/*
 * seal.c
 *	  Owns the key file, and seals secrets with its keys.
 *
 * A sealed text is "sealed:1:", the id of the key, ":" and the base64 of a
 * random nonce, the ciphertext and the tag of AES-256-GCM.  The tag also covers
 * the endpoint's id and the field, so a text that was moved to another row or
 * column does not open.
 */
#include "base/outbox.h"

#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "port.h"

#include "base/compat.h"
#include "base/settings.h"
#include "format/signature.h"
#include "store/seal.h"

#define NONCE_LEN 12 /* bytes, the length that GCM is made for */
#define TAG_LEN 16
#define PREFIX_LEN (sizeof(OUTBOX_SEALED) - 1)
#define HEAD_LEN (PREFIX_LEN + OUTBOX_SEAL_ID_LEN + 1)
#define FILE_MAX (64 * 1024)
#define VALUE_MAX (16 * 1024 * 1024) /* bytes, so that sizes fit into an int */

/* base64 characters for 'n' bytes */
#define BASE64_LEN(n) (((n) + 2) / 3 * 4)

/* ------------------------------------------------------------- key file */

const char *
outbox_private_path_problem(const char *path)
{
	char canonical[MAXPGPATH];

	if (!is_absolute_path(path))
		return "is not an absolute path";
	if (strlen(path) >= MAXPGPATH)
		return "has too long a path";
	strlcpy(canonical, path, sizeof(canonical));
	canonicalize_path(canonical);
	if (DataDir && path_is_prefix_of_path(DataDir, canonical))
		return "is inside the data directory";
	return NULL;
}

/*
 * True if the file is in the data directory, also where symbolic links lead there.
 */
static bool
is_in_data_directory(const char *path)
{
	char file[PATH_MAX];
	char directory[PATH_MAX];

	return realpath(path, file) && realpath(DataDir, directory) &&
		path_is_prefix_of_path(directory, file);
}

/* The rules of PostgreSQL for ssl_key_file. */
static const char *
access_problem(const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return "is not a regular file";
	if (st->st_uid != geteuid() && st->st_uid != 0)
		return "belongs neither to the server's user nor to root";
	if (st->st_uid == 0 ? st->st_mode & (S_IWGRP | S_IXGRP | S_IRWXO) :
						  st->st_mode & (S_IRWXG | S_IRWXO))
		return "has group or world access";
	if (st->st_size > FILE_MAX)
		return "is larger than 64 kB";
	return NULL;
}

/*
 * Reads the file into 'text', which has FILE_MAX + 1 bytes.  Returns its length.
 * -1: it cannot be read, and ring->problem says why.
 */
static int
read_file(OutboxKeyring *ring, char *text)
{
	struct stat st;
	const char *problem = outbox_private_path_problem(outbox_secret_key_file);
	int			fd;
	int			len = 0;
	ssize_t		n = 0;

	/* O_NONBLOCK, so that opening a pipe does not wait. */
	fd = problem ? -1 : open(outbox_secret_key_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (problem == NULL && (fd < 0 || fstat(fd, &st) < 0))
	{
		snprintf(ring->problem, sizeof(ring->problem), "cannot be opened: %s",
				 strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	if (problem == NULL)
		problem = is_in_data_directory(outbox_secret_key_file) ?
			"is inside the data directory" :
			access_problem(&st);
	if (problem)
		strlcpy(ring->problem, problem, sizeof(ring->problem));
	else
	{
		while (len <= FILE_MAX && (n = read(fd, text + len, FILE_MAX + 1 - len)) > 0)
			len += n;
		if (n < 0)
			snprintf(ring->problem, sizeof(ring->problem), "cannot be read: %s",
					 strerror(errno));
		else if (len > FILE_MAX)
			strlcpy(ring->problem, "is larger than 64 kB", sizeof(ring->problem));
	}
	if (fd >= 0)
		close(fd);
	return ring->problem[0] ? -1 : len;
}

/*
 * Reads a key from a line, which is the key's base64 and nothing else.  False: it
 * is not.
 */
static bool
read_key(const char *line, int len, OutboxSealKey *key)
{
	uint8 bytes[OUTBOX_SEAL_KEY_LEN + 2];
	uint8 digest[32];
	bool  valid = len == BASE64_LEN(OUTBOX_SEAL_KEY_LEN) &&
		outbox_b64_decode(line, len, bytes, sizeof(bytes)) == OUTBOX_SEAL_KEY_LEN;

	if (valid)
	{
		/*
		 * The id is a part of the hash of the key's hash, so it reveals nothing of
		 * the key.
		 */
		memcpy(key->bytes, bytes, OUTBOX_SEAL_KEY_LEN);
		outbox_sha256(key->bytes, OUTBOX_SEAL_KEY_LEN, digest);
		outbox_sha256(digest, sizeof(digest), digest);
		for (int i = 0; i < OUTBOX_SEAL_ID_LEN / 2; i++)
			sprintf(key->id + 2 * i, "%02x", digest[i]);
		explicit_bzero(digest, sizeof(digest));
	}
	explicit_bzero(bytes, sizeof(bytes));
	return valid;
}

static void
read_keys(OutboxKeyring *ring, const char *text, int len)
{
	int number = 0;

	for (const char *line = text, *end; line < text + len; line = end + 1)
	{
		const char *last;

		end = memchr(line, '\n', text + len - line);
		if (end == NULL)
			end = text + len;
		number++;
		for (last = end; last > line && strchr(" \t\r", last[-1]) && last[-1] != '\0';)
			last--;
		if (last == line || *line == '#')
			continue;
		if (ring->nkeys == OUTBOX_SEAL_KEYS)
			snprintf(ring->problem, sizeof(ring->problem), "has more than %d keys",
					 OUTBOX_SEAL_KEYS);
		else if (!read_key(line, last - line, &ring->keys[ring->nkeys]))
			snprintf(ring->problem, sizeof(ring->problem),
					 "has in line %d something else than the base64 of %d bytes", number,
					 OUTBOX_SEAL_KEY_LEN);
		else
		{
			ring->nkeys++;
			continue;
		}
		return;
	}
	if (ring->nkeys == 0)
		strlcpy(ring->problem, "has no key", sizeof(ring->problem));
}

/*
 * A file with any problem gives no key at all, because it may be written just now.
 */
void
outbox_keyring_load(OutboxKeyring *ring)
{
	char *text;
	int	  len;

	memset(ring, 0, sizeof(*ring));
	ring->wanted = outbox_secret_key_file[0] != '\0';
	if (!ring->wanted)
		return;
	text = palloc(FILE_MAX + 1);
	len = read_file(ring, text);
	if (len >= 0)
		read_keys(ring, text, len);
	explicit_bzero(text, FILE_MAX + 1);
	pfree(text);
	if (ring->problem[0])
	{
		explicit_bzero(ring->keys, sizeof(ring->keys));
		ring->nkeys = 0;
	}
}

void
outbox_keyring_wipe(OutboxKeyring *ring)
{
	explicit_bzero(ring, sizeof(*ring));
}

uint64
outbox_keyring_version(const OutboxKeyring *ring)
{
	uint64 hash = 0;

	if (!ring->wanted)
		return 0;
	for (int i = 0; i < ring->nkeys; i++)
		hash = hash_bytes_extended((const unsigned char *) ring->keys[i].id,
								   OUTBOX_SEAL_ID_LEN, hash);
	return hash_bytes_extended((const unsigned char *) ring->problem,
							   strlen(ring->problem), hash) |
		1;
}

/* --------------------------------------------------------- sealed texts */

/*
 * Returns where the sealed part of a value begins.  In a URL that is behind the
 * host.
 */
static const char *
sealed_part(const char *field, const char *value)
{
	const char *host;

	if (strcmp(field, OUTBOX_FIELD_URL) != 0)
		return value;

	/* libcurl accepts one slash instead of two. */
	host = value + strcspn(value, ":");
	host += strspn(host, ":/");
	return host + strcspn(host, "/?#");
}

/*
 * Returns the sealed text in a value, which is the path of a URL.  NULL: there is
 * none.
 */
static const char *
sealed_text(const char *field, const char *value)
{
	const char *part = sealed_part(field, value);

	if (part != value && *part == '/')
		part++;
	return strncmp(part, OUTBOX_SEALED, PREFIX_LEN) == 0 ? part : NULL;
}

bool
outbox_is_sealed(const char *field, const char *value)
{
	return sealed_text(field, value) != NULL;
}

bool
outbox_sealed_anew(const OutboxKeyring *ring, const char *field, const char *value)
{
	const char *text = sealed_text(field, value);

	return text && ring->nkeys > 0 && strlen(text) >= HEAD_LEN &&
		strncmp(text + PREFIX_LEN, ring->keys[0].id, OUTBOX_SEAL_ID_LEN) == 0;
}

/*
 * Adds the data that is authenticated beside the text: the endpoint's id, the field,
 * and the host of a URL.
 */
static bool
authenticate(EVP_CIPHER_CTX *ctx, int32 endpoint_id, const char *field, const char *value,
			 const char *part)
{
	char *whose = psprintf("%d:%s:%.*s", endpoint_id, field, (int) (part - value), value);
	int	  n;
	bool  done = EVP_CipherUpdate(ctx, NULL, &n, (const uint8 *) whose,
								  (int) strlen(whose)) == 1;

	pfree(whose);
	return done;
}

char *
outbox_seal(const OutboxKeyring *ring, int32 endpoint_id, const char *field,
			const char *value, char *problem)
{
	const char	   *part = sealed_part(field, value);
	size_t			head = part - value;
	int				len = (int) Min(strlen(part), VALUE_MAX + 1);
	int				total = NONCE_LEN + len + TAG_LEN;
	EVP_CIPHER_CTX *ctx;
	uint8		   *bytes;
	char		   *result;
	char		   *p;
	int				n;
	bool			done;

	/* A URL with nothing behind the host contains no secret. */
	if (!ring->wanted || (part != value && (*part == '\0' || strcmp(part, "/") == 0)))
		return pstrdup(value);
	if (ring->nkeys == 0)
	{
		snprintf(problem, OUTBOX_SEAL_PROBLEM, "the key file %s", ring->problem);
		return NULL;
	}
	if (len > VALUE_MAX)
	{
		strlcpy(problem, "it is larger than 16 MB", OUTBOX_SEAL_PROBLEM);
		return NULL;
	}

	bytes = palloc(total);
	ctx = EVP_CIPHER_CTX_new();
	done = ctx && pg_strong_random(bytes, NONCE_LEN) &&
		EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, ring->keys[0].bytes, bytes) ==
			1 &&
		authenticate(ctx, endpoint_id, field, value, part) &&
		EVP_EncryptUpdate(ctx, bytes + NONCE_LEN, &n, (const uint8 *) part, len) == 1 &&
		EVP_EncryptFinal_ex(ctx, bytes + NONCE_LEN + n, &n) == 1 &&
		EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_LEN,
							bytes + NONCE_LEN + len) == 1;
	EVP_CIPHER_CTX_free(ctx);
	if (!done)
	{
		strlcpy(problem, "AES-256-GCM or the source of random numbers failed",
				OUTBOX_SEAL_PROBLEM);
		return NULL;
	}

	result = palloc(head + 1 + HEAD_LEN + BASE64_LEN(total) + 1);
	memcpy(result, value, head);
	p = result + head;
	if (part != value)
		*p++ = '/';
	p += sprintf(p, "%s%s:", OUTBOX_SEALED, ring->keys[0].id);
	n = outbox_b64_encode(bytes, total, p, BASE64_LEN(total));
	p[n] = '\0';
	pfree(bytes);
	return result;
}

static const OutboxSealKey *
find_key(const OutboxKeyring *ring, const char *text, char *problem)
{
	if (strlen(text) < HEAD_LEN || strlen(text) > 2 * VALUE_MAX ||
		text[HEAD_LEN - 1] != ':' ||
		strspn(text + PREFIX_LEN, "0123456789abcdef") != OUTBOX_SEAL_ID_LEN)
	{
		strlcpy(problem, "a sealed value is damaged", OUTBOX_SEAL_PROBLEM);
		return NULL;
	}
	for (int i = 0; i < ring->nkeys; i++)
		if (strncmp(text + PREFIX_LEN, ring->keys[i].id, OUTBOX_SEAL_ID_LEN) == 0)
			return &ring->keys[i];
	if (!ring->wanted)
		strlcpy(problem, "sealed, and outbox.secret_key_file is not set",
				OUTBOX_SEAL_PROBLEM);
	else if (ring->problem[0])
		snprintf(problem, OUTBOX_SEAL_PROBLEM, "sealed, and the key file %s",
				 ring->problem);
	else
		snprintf(problem, OUTBOX_SEAL_PROBLEM,
				 "sealed with key %.*s, which is not in the key file", OUTBOX_SEAL_ID_LEN,
				 text + PREFIX_LEN);
	return NULL;
}

char *
outbox_unseal(const OutboxKeyring *ring, int32 endpoint_id, const char *field,
			  const char *value, char *problem)
{
	const char			*part = sealed_part(field, value);
	const char			*text = sealed_text(field, value);
	const OutboxSealKey *key;
	size_t				 head = part - value;
	EVP_CIPHER_CTX		*ctx;
	uint8				*bytes;
	char				*result;
	int					 size;
	int					 total;
	int					 len;
	int					 n;
	bool				 done = false;

	if (text == NULL)
		return pstrdup(value);
	key = find_key(ring, text, problem);
	if (key == NULL)
		return NULL;

	text += HEAD_LEN;
	size = (int) strlen(text) / 4 * 3 + 6;
	bytes = palloc(size);
	total = outbox_b64_decode(text, (int) strlen(text), bytes, size);
	len = total - NONCE_LEN - TAG_LEN;
	result = palloc(head + Max(len, 0) + 1);
	memcpy(result, value, head);
	if (len >= 0)
	{
		ctx = EVP_CIPHER_CTX_new();
		done = ctx &&
			EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, key->bytes, bytes) == 1 &&
			authenticate(ctx, endpoint_id, field, value, part) &&
			EVP_DecryptUpdate(ctx, (uint8 *) result + head, &n, bytes + NONCE_LEN, len) ==
				1 &&
			EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_LEN,
								bytes + NONCE_LEN + len) == 1 &&
			EVP_DecryptFinal_ex(ctx, (uint8 *) result + head + n, &n) == 1;
		EVP_CIPHER_CTX_free(ctx);
		result[head + len] = '\0';

		/* The value may come from a database with another encoding. */
		done = done && pg_verify_mbstr(GetDatabaseEncoding(), result + head, len, true);
	}
	pfree(bytes);
	if (!done)
	{
		/* Text that is not authenticated is wiped and not returned. */
		explicit_bzero(result, head + Max(len, 0));
		pfree(result);
		strlcpy(problem, "a sealed value is damaged", OUTBOX_SEAL_PROBLEM);
		return NULL;
	}
	return result;
}
