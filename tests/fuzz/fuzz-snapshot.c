/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a session file from anywhere: 8 bytes that say how long the file is, then the
 * header as it is, and once more with a digest that is right. Refused with a sentence, or sizes
 * that belong together, and the same header when it is written again.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "workerd/snapshot.h"

static void read_header(const uint8_t *data, size_t n_bytes, uint64_t n_file_bytes)
{
	const struct snapshot_shape own = {.n_page_tokens = 32};
	uint8_t again[SNAPSHOT_HEADER_BYTES];
	struct snapshot s;
	struct err e = ERR_NULL;

	int r = snapshot_read_header(data, n_bytes, n_file_bytes, &e, &s);
	if (r < 0) {
		if (!e.text[0])
			abort();
		return;
	}
	if (s.n_cached > s.n_tokens || snapshot_get_bytes(&s) != n_file_bytes ||
		snapshot_get_n_pages(&s) > s.n_tokens ||
		snapshot_get_token_bytes(&s) > n_file_bytes)
		abort();
	snapshot_write_header(&s, again);
	if (memcmp(again, data, SNAPSHOT_HEADER_BYTES - DIGEST_BYTES))
		abort();
	r = snapshot_compare(&s, &own, &e);
	if (r && !e.text[0])
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	uint64_t n_file_bytes;
	struct digest d;

	if (n_bytes < sizeof(n_file_bytes))
		return 0;
	memcpy(&n_file_bytes, data, sizeof(n_file_bytes));
	data += sizeof(n_file_bytes);
	n_bytes -= sizeof(n_file_bytes);
	read_header(data, n_bytes, n_file_bytes);
	if (n_bytes < sizeof(header) - DIGEST_BYTES)
		return 0;
	memcpy(header, data, sizeof(header) - DIGEST_BYTES);
	digest_init(&d);
	digest_add(&d, header, sizeof(header) - DIGEST_BYTES);
	digest_get(&d, header + sizeof(header) - DIGEST_BYTES);
	read_header(header, sizeof(header), n_file_bytes);
	return 0;
}
