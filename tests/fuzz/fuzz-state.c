/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state file that somebody wrote: read or refused with a sentence; what is read can be written,
 * and is read again as the same. The first byte says whether the rest is a whole file or what
 * stands behind the head, which is put before it: a hash is never guessed.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "weightd/state-hash.h"
#include "weightd/state.h"

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void check_round(const struct state *s)
{
	uint8_t *data = NULL, *again = NULL;
	uint64_t n_bytes, n_again;
	struct state t = {0};

	check(state_pack(s, "b", &data, &n_bytes) == 0);
	check(state_parse(data, n_bytes, "b", NULL, &t) == 0);
	check(state_pack(&t, "b", &again, &n_again) == 0);
	check(n_again == n_bytes && !memcmp(again, data, n_bytes));
	state_fini(&t);
	free(data);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct state s = {0};
	struct err e = ERR_NULL;

	if (n_bytes < 1 || n_bytes > 1 << 16)
		return 0;
	bool is_whole = data[0] & 1;
	size_t n_head = is_whole ? 0 : STATE_HASH_HEAD_BYTES;
	uint8_t *file = malloc(n_head + n_bytes);
	check(file != NULL);
	memcpy(file + n_head, data + 1, n_bytes - 1);
	if (!is_whole)
		state_hash_write_head(file, file + n_head, n_bytes - 1);
	if (state_parse(file, n_head + n_bytes - 1, NULL, &e, &s) == 0) {
		check_round(&s);
		state_fini(&s);
	} else {
		check(e.text[0] != '\0');
	}
	free(file);
	return 0;
}
