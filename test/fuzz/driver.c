/*
 * driver.c
 *	  Runs a fuzz target without libFuzzer (TAP), with the inputs of its corpus and
 *	  then with random changes of them.
 *
 *	  OUTBOX_TOP	the directory that test/fuzz/corpus/<target> is in (".")
 *	  FUZZ_RUNS		number of changed inputs (20000)
 *	  FUZZ_SEED		decides which changes are made (the time)
 */
#include "fuzz.h"

#include <dirent.h>
#include <time.h>

#define INPUTS_MAX 1000
#define LENGTH_MAX 4096

typedef struct Input
{
	uint8_t *data;
	size_t	 size;
} Input;

static Input	inputs[INPUTS_MAX];
static int		ninputs;
static uint64_t state;

/* xorshift64*: the same seed gives the same inputs everywhere */
static uint32_t
random_below(uint32_t n)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint32_t) ((state * UINT64_C(0x2545F4914F6CDD1D)) >> 32) % n;
}

static void
read_inputs(const char *dir)
{
	DIR			  *listing = opendir(dir);
	struct dirent *entry;

	if (listing == NULL)
		return;
	while ((entry = readdir(listing)) != NULL && ninputs < INPUTS_MAX)
	{
		char   path[4096];
		FILE  *file;
		Input *input = &inputs[ninputs];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		file = fopen(path, "rb");
		if (file == NULL)
			continue;
		input->data = malloc(LENGTH_MAX);
		input->size = fread(input->data, 1, LENGTH_MAX, file);
		fclose(file);
		ninputs++;
	}
	closedir(listing);
}

/*
 * Makes one change to the input, in a buffer of LENGTH_MAX bytes.  Returns the new
 * length.
 */
static size_t
change(uint8_t *data, size_t size)
{
	static const uint8_t interesting[] = "\0\r\n\t \"%*,-./0:=@[]~\x7f\x80\xc3\xff";
	const Input			*other = &inputs[random_below(ninputs)];
	size_t				 at = size ? random_below(size) : 0;
	size_t				 n = 1 + random_below(8);

	switch (random_below(6))
	{
		case 0: /* a bit */
			if (size)
				data[at] ^= 1 << random_below(8);
			return size;
		case 1: /* a byte */
			if (size)
				data[at] = interesting[random_below(sizeof(interesting) - 1)];
			return size;
		case 2: /* some bytes less */
			if (n > size - at)
				n = size - at;
			memmove(data + at, data + at + n, size - at - n);
			return size - n;
		case 3: /* some bytes more */
			if (size + n > LENGTH_MAX)
				return size;
			memmove(data + at + n, data + at, size - at);
			for (size_t i = 0; i < n; i++)
				data[at + i] = random_below(2) ?
					(uint8_t) random_below(256) :
					interesting[random_below(sizeof(interesting) - 1)];
			return size + n;
		case 4: /* a part of it again */
			n = size - at;
			if (size + n > LENGTH_MAX)
				return size;
			memmove(data + at + n, data + at, n);
			return size + n;
		default: /* the end of another one */
			if (other->size == 0)
				return size;
			n = random_below(other->size);
			if (at + other->size - n > LENGTH_MAX)
				return size;
			memcpy(data + at, other->data + n, other->size - n);
			return at + other->size - n;
	}
}

int
main(int argc, char **argv)
{
	const char *top = getenv("OUTBOX_TOP");
	const char *name = strrchr(argv[0], '/');
	const char *runs = getenv("FUZZ_RUNS");
	const char *seed = getenv("FUZZ_SEED");
	long		n = runs ? atol(runs) : 20000;
	uint8_t	   *data = malloc(LENGTH_MAX);
	char		dir[4096];

	(void) argc;
	setvbuf(stdout, NULL, _IOLBF, 0);
	name = name ? name + 1 : argv[0];
	if (strncmp(name, "test_fuzz_", 10) == 0)
		name += 10;
	snprintf(dir, sizeof(dir), "%s/test/fuzz/corpus/%s", top ? top : ".", name);
	read_inputs(dir);
	printf("1..2\n");
	for (int i = 0; i < ninputs; i++)
		LLVMFuzzerTestOneInput(inputs[i].data, inputs[i].size);
	printf("%sok 1 - %s: %d inputs of the corpus\n", ninputs ? "" : "not ", name,
		   ninputs);
	if (ninputs == 0)
		return 1;

	state = seed ? strtoull(seed, NULL, 10) : (uint64_t) time(NULL);
	printf("# %s: FUZZ_SEED=%llu\n", name, (unsigned long long) state);
	state = (state + 1) * UINT64_C(0x9E3779B97F4A7C15);
	if (state == 0)
		state = 1;
	for (long run = 0; run < n; run++)
	{
		const Input *input = &inputs[random_below(ninputs)];
		size_t		 size = input->size;

		memcpy(data, input->data, size);
		for (uint32_t i = 1 + random_below(6); i > 0; i--)
			size = change(data, size);
		LLVMFuzzerTestOneInput(data, size);
	}
	printf("ok 2 - %s: %ld changed inputs\n", name, n);
	free(data);
	for (int i = 0; i < ninputs; i++)
		free(inputs[i].data);
	return 0;
}
