/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reseal FILE OFFSET...: turns a bit over in each of these bytes of a session file and makes its
 * digests right again: a file that is whole, and was written by somebody who says something else.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workerd/snapshot.h"

static void seal(uint8_t *data, size_t n_bytes)
{
	struct digest d;

	digest_init(&d);
	digest_add(&d, data, n_bytes);
	digest_get(&d, data + n_bytes);
}

int main(int argc, char **argv)
{
	enum { MAX_BYTES = 64 << 20 };
	uint8_t *data = malloc(MAX_BYTES);
	FILE *f = argc >= 3 ? fopen(argv[1], "r+b") : NULL;

	if (!f || !data)
		return 2;
	size_t n = fread(data, 1, MAX_BYTES, f);
	if (n < SNAPSHOT_HEADER_BYTES + DIGEST_BYTES)
		return 2;
	for (int i = 2; i < argc; i++) {
		size_t at = strtoul(argv[i], NULL, 10);

		if (at >= n)
			return 2;
		data[at] ^= 0x40;
	}
	seal(data, SNAPSHOT_HEADER_BYTES - DIGEST_BYTES);
	seal(data, n - DIGEST_BYTES);
	rewind(f);
	bool is_written = fwrite(data, 1, n, f) == n;
	free(data);
	return fclose(f) == 0 && is_written ? 0 : 1;
}
