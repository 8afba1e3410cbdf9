/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs every file of the directories given through a fuzz target, so that each build checks the
 * corpus without libFuzzer. No inputs at all is a failure: the test would check nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/util/cleanup.h"
#include "tests/fuzz/target.h"

static void close_dir(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

static bool replay_file(const char *path)
{
	_cleanup_(cleanup_fclose)
	FILE *f = fopen(path, "rbe");
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	struct stat st;

	if (!f || fstat(fileno(f), &st) < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return false;
	}
	/* Exactly the size, so that a sanitizer sees a read behind the end. */
	data = malloc(st.st_size > 0 ? (size_t)st.st_size : 1);
	if (!data || fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
		fprintf(stderr, "%s: cannot read\n", path);
		return false;
	}
	return LLVMFuzzerTestOneInput(data, (size_t)st.st_size) == 0;
}

static bool replay_dir(const char *path, unsigned *n_inputs)
{
	_cleanup_(close_dir)
	DIR *dir = opendir(path);
	const struct dirent *entry;
	char file[4096];

	if (!dir) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return false;
	}
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, entry->d_name) >=
				sizeof(file) ||
			!replay_file(file))
			return false;
		++*n_inputs;
	}
	return true;
}

int main(int argc, char **argv)
{
	unsigned n_inputs = 0;

	for (int i = 1; i < argc; i++)
		if (!replay_dir(argv[i], &n_inputs))
			return 1;
	printf("%u inputs\n", n_inputs);
	return n_inputs > 0 ? 0 : 1;
}
