/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed sums from anywhere, with a digest that is right: refused, or the same bytes when they are
 * packed again.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "weightd/sha256.h"
#include "weightd/sums.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	uint64_t n_all = n_bytes + SHA256_BYTES, n_again = 0;
	uint8_t *copy = malloc(n_all), *again = NULL;
	struct sums *s = NULL;
	struct err e = ERR_NULL;
	struct sha256 h;

	if (!copy)
		return 0;
	memcpy(copy, data, n_bytes);
	sha256_init(&h);
	sha256_add(&h, copy, n_bytes);
	sha256_end(&h, copy + n_bytes);
	if (sums_unpack(copy, n_all, &e, &s) < 0) {
		if (!e.text[0])
			abort();
	} else if (sums_pack(s, &again, &n_again) == 0 &&
		   (n_again != n_all || memcmp(again, copy, n_all) != 0)) {
		abort();
	}
	free(again);
	sums_free(s);
	free(copy);
	return 0;
}
