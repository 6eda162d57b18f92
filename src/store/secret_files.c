/*
 * secret_files.c
 *	  Owns the files of outbox.secrets_directory: which may be named, and how they are
 *	  read.
 *
 * A file is opened as a place first, so that nothing happens to a file that is not
 * regular.  Symbolic links may lead to another place below the directory, because
 * Kubernetes mounts secrets so, and nowhere else.  The kernel says where the place is
 * that was opened, so nothing can be put in its way between the look and the reading.
 */
#include "base/outbox.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "port.h"

#include "base/settings.h"
#include "store/seal.h"
#include "store/secret_files.h"

#define NAME_MAX_LEN 255 /* bytes */

const char *
outbox_secret_file_name_problem(const char *name, size_t len)
{
	if (len == 0)
		return "its name is empty";
	if (len > NAME_MAX_LEN)
		return "its name has more than 255 bytes";
	if (name[0] == '.')
		return "its name begins with a dot";
	if (memchr(name, '/', len))
		return "its name has a slash";
	for (size_t i = 0; i < len; i++)
		if ((unsigned char) name[i] < 0x20 || name[i] == 0x7f)
			return "its name has a control character";
	return NULL;
}

static void
say(char *problem, const char *what, const char *name, const char *words)
{
	snprintf(problem, OUTBOX_SECRET_FILE_PROBLEM, "%s %.60s %s", what, name, words);
}

/* Returns false unless the kernel knows the path of the open file. */
static bool
path_of(int fd, char *path)
{
	char	link[64];
	ssize_t len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, PATH_MAX - 1);
	path[Max(len, 0)] = '\0';
	return len > 0 && len < PATH_MAX - 1 && path[0] == '/';
}

/* True if it is a file that has a key of the server, which no endpoint may send. */
static bool
is_key_file(const struct stat *file)
{
	const char *keys[] = {outbox_secret_key_file, outbox_ssl_key_file};

	for (size_t i = 0; i < lengthof(keys); i++)
	{
		struct stat key;

		if (keys[i][0] != '\0' && stat(keys[i], &key) == 0 &&
			key.st_dev == file->st_dev && key.st_ino == file->st_ino)
			return true;
	}
	return false;
}

/* Returns the problem with the place of an open file.  NULL: none. */
static const char *
place_problem(int directory, int file)
{
	char		real_directory[PATH_MAX];
	char		real_file[PATH_MAX];
	char		data[PATH_MAX];
	struct stat st;

	if (fstat(file, &st) < 0 || !S_ISREG(st.st_mode))
		return "is not a regular file";
	if (is_key_file(&st))
		return "is the file of a key in the settings";
	if (!path_of(directory, real_directory) || !path_of(file, real_file))
		return "is at a place that is not known, because there is no /proc";
	if (!path_is_prefix_of_path(real_directory, real_file))
		return "leads out of outbox.secrets_directory";
	if (realpath(DataDir, data) == NULL || path_is_prefix_of_path(data, real_file))
		return "is inside the data directory";
	return NULL;
}

/*
 * Opens the place of the file, which cannot be read from.  -1: it cannot be used, and
 * 'problem' says why.
 */
static int
open_place(const char *name, char *problem)
{
	const char *words = outbox_secret_file_name_problem(name, strlen(name));
	int			directory;
	int			file;

	if (outbox_secrets_directory[0] == '\0')
		words = "cannot be read: outbox.secrets_directory is not set";
	if (words)
	{
		say(problem, "the file", name, words);
		return -1;
	}
	words = outbox_private_path_problem(outbox_secrets_directory);
	if (words)
	{
		say(problem, "outbox.secrets_directory", "", words);
		return -1;
	}
	directory = open(outbox_secrets_directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
	{
		snprintf(problem, OUTBOX_SECRET_FILE_PROBLEM,
				 "outbox.secrets_directory cannot be opened: %s", strerror(errno));
		return -1;
	}
	file = openat(directory, name, O_PATH | O_CLOEXEC);
	words = file < 0 ? strerror(errno) : place_problem(directory, file);
	if (file < 0 && errno == ENOENT)
		words = "does not exist";
	close(directory);
	if (words)
	{
		say(problem, "the file", name, words);
		if (file >= 0)
			close(file);
		return -1;
	}
	return file;
}

static uint64
version_of(int fd)
{
	struct stat st;
	int64		parts[7];

	if (fstat(fd, &st) < 0)
		return 0;
	parts[0] = st.st_dev;
	parts[1] = st.st_ino;
	parts[2] = st.st_size;
	parts[3] = st.st_mtim.tv_sec;
	parts[4] = st.st_mtim.tv_nsec;
	parts[5] = st.st_ctim.tv_sec;
	parts[6] = st.st_ctim.tv_nsec;
	return hash_bytes_extended((const unsigned char *) parts, sizeof(parts), 0) | 1;
}

uint64
outbox_secret_file_version(const char *name)
{
	char   problem[OUTBOX_SECRET_FILE_PROBLEM];
	int	   place = open_place(name, problem);
	uint64 version;

	if (place < 0)
		return 0;
	version = version_of(place);
	close(place);
	return version;
}

/*
 * Removes a newline at the end of the value.  Returns the problem with the value.
 * NULL: none.
 */
static const char *
value_problem(char *value, int *len)
{
	if (*len > 0 && value[*len - 1] == '\n')
		(*len)--;
	value[*len] = '\0';
	if (*len == 0)
		return "is empty";
	if (*len > OUTBOX_SECRET_FILE_MAX)
		return "is larger than 64 kB";
	if (memchr(value, '\0', *len))
		return "has a byte that is 0";
	return NULL;
}

char *
outbox_secret_file_read(const char *name, uint64 *version, char *problem)
{
	/* One byte more for a newline, one to see that it is too large, and one for the end */
	const int	size = OUTBOX_SECRET_FILE_MAX + 3;
	int			place = open_place(name, problem);
	char		path[64];
	const char *words;
	char	   *value;
	ssize_t		n = 0;
	int			len = 0;
	int			fd;

	if (place < 0)
		return NULL;
	*version = version_of(
		place); /* before it is read: a change meanwhile is seen later */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", place);
	fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	value = palloc(size);
	while (fd >= 0 && len < size - 1 && (n = read(fd, value + len, size - 1 - len)) > 0)
		len += n;
	words = fd < 0 || n < 0 ? strerror(errno) : value_problem(value, &len);
	if (fd >= 0)
		close(fd);
	close(place);
	if (words == NULL)
		return value;
	explicit_bzero(value, size);
	pfree(value);
	say(problem, "the file", name, words);
	return NULL;
}
