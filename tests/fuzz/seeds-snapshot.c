/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of the snapshot target into the directory given; what it writes is committed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workerd/snapshot.h"

static const char *root;

static void write_seed(
	const char *name, uint64_t n_file_bytes, const uint8_t *header, size_t n_bytes)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(&n_file_bytes, sizeof(n_file_bytes), 1, f) != 1 ||
		(n_bytes && fwrite(header, n_bytes, 1, f) != 1) || fclose(f)) {
		perror(path);
		exit(1);
	}
}

static void write_snapshot(const char *name, const struct snapshot *s)
{
	uint8_t header[SNAPSHOT_HEADER_BYTES];

	snapshot_write_header(s, header);
	write_seed(name, snapshot_get_bytes(s), header, sizeof(header));
}

int main(int argc, char **argv)
{
	struct snapshot s = {
		.shape =
			{
				.n_layers = 2,
				.n_head_kv = 2,
				.head_dim = 64,
				.n_page_tokens = 32,
				.n_page_bytes = 32768,
				.contents = {true, true, {1}, {3}},
				.tokens = {2},
			},
		.n_tokens = 100,
		.n_cached = 99,
	};
	uint8_t header[SNAPSHOT_HEADER_BYTES];

	if (argc != 2)
		return 2;
	root = argv[1];
	write_snapshot("valid", &s);
	snapshot_write_header(&s, header);
	write_seed("cut", 100, header, 100);
	write_seed("nothing", 0, header, 0);
	write_seed("shorter-file", snapshot_get_bytes(&s) - 1, header, sizeof(header));
	memset(s.shape.tokens, 0, DIGEST_BYTES);
	write_snapshot("own-tokens", &s);
	s.shape.contents.has_identity = false;
	write_snapshot("file-alone", &s);
	s.shape.contents.has_file = false;
	write_snapshot("no-identity", &s);
	s.n_tokens = s.n_cached = 0;
	write_snapshot("empty", &s);
	s.n_tokens = s.n_cached = SNAPSHOT_MAX_TOKENS;
	s.shape.n_page_bytes = UINT64_MAX / 32768 + 1;
	write_snapshot("pages-wrap", &s);
	s.n_cached = SNAPSHOT_MAX_TOKENS + 1;
	write_snapshot("more-cached", &s);
	return 0;
}
