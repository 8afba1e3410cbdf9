/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile client of weightd: a packet is scanned for what unpacking would lose. What was unpacked
 * and packed again has C strings alone, in which there is nothing to find.
 */
#include "weightd/rpc-scan.h"

#include <stdbool.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "proto/wire.h"
#include "tests/fuzz/target.h"

static void check(bool ok)
{
	if (!ok)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct err e = ERR_NULL;

	if (n_bytes > WIRE_MAX_BYTES)
		return 0;
	int rc = rpc_scan_request(data, (uint32_t)n_bytes, &e);
	check((rc < 0) == (e.text[0] != '\0'));
	Wd__Request *request = wd__request__unpack(NULL, n_bytes, data);
	if (!request)
		return 0;
	size_t n_again = wd__request__get_packed_size(request);
	uint8_t *again = malloc(n_again + 1);
	check(again != NULL);
	check(wd__request__pack(request, again) == n_again);
	/* Fields that nobody knows stay as they came, and are nobody's text. */
	check(rpc_scan_request(again, (uint32_t)n_again, &e) == 0);
	free(again);
	wd__request__free_unpacked(request, NULL);
	return 0;
}
