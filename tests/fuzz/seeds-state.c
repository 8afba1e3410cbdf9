/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of the state target into the directory given. What it writes is committed. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/state-sample.h"
#include "weightd/state-hash.h"
#include "weightd/state.h"

static const char *seeds_root;

/* first: whether the head is there, see fuzz-state.c. */
static void write_seed(const char *name, char first, const void *data, uint64_t n_bytes)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", seeds_root, name);
	FILE *f = fopen(path, "wb");
	if (!f || fputc(first, f) == EOF || fwrite(data, 1, n_bytes, f) != n_bytes ||
		fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

static void write_state(const char *name, const struct state *s)
{
	uint8_t *data = NULL;
	uint64_t n_bytes;
	char whole[64];

	if (state_pack(s, "boot", &data, &n_bytes) < 0)
		abort();
	write_seed(name, 0, data + STATE_HASH_HEAD_BYTES, n_bytes - STATE_HASH_HEAD_BYTES);
	snprintf(whole, sizeof(whole), "%s-whole", name);
	write_seed(whole, 1, data, n_bytes);
	snprintf(whole, sizeof(whole), "%s-cut", name);
	write_seed(whole, 0, data + STATE_HASH_HEAD_BYTES, (n_bytes - STATE_HASH_HEAD_BYTES) / 2);
	free(data);
}

static void write_lost(void)
{
	struct state s;

	state_sample(&s);
	struct state_generation *g = &s.generations[0];
	g->lost_why = strdup("tensor a changed");
	g->is_corrupt = true;
	g->clean_ns = 77;
	g->is_replaced = g->has_memfd = false;
	free(g->staged.data);
	g->staged = (struct state_bytes){0};
	for (uint32_t i = 0; i < g->n_residencies; i++) {
		g->residencies[i].n_allocs = 0;
		g->residencies[i].n_lost_bytes = 5000;
	}
	write_state("lost", &s);
	state_fini(&s);
}

int main(int argc, char **argv)
{
	struct state s, none = {.last_id = 3};

	if (argc != 2) {
		fprintf(stderr, "usage: fuzz-seeds-state DIRECTORY\n");
		return 2;
	}
	seeds_root = argv[1];
	state_sample(&s);
	write_state("everything", &s);
	s.generations[0].residencies[0].allocs[0].file_offset = 1 << 20;
	write_state("window-outside", &s);
	s.generations[0].residencies[0].n_allocs = 0;
	write_state("no-allocations", &s);
	state_fini(&s);
	write_lost();
	write_state("nothing", &none);
	write_seed("no-protobuf", 0, "\xff\xff\xff", 3);
	write_seed("empty", 0, "", 0);
	return 0;
}
