/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <inttypes.h>

#include "proto/worker-client.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

int tokenize_run(const struct options *o, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	char *text = NULL;
	_cleanup_(cleanup_free)
	uint32_t *ids = NULL;
	struct worker_client *c = NULL;
	uint32_t n_bytes, n_ids = 0;
	int r = input_read(o->args[0], ret_err, &text, &n_bytes);

	if (r == 0)
		r = worker_client_new(o->worker, ret_err, &c);
	if (r == 0)
		r = worker_client_tokenize(c, text, n_bytes, true, ret_err, &ids, &n_ids);
	worker_client_free(c);
	if (r < 0)
		return r;
	if (o->json)
		return output_json(json_pack("{s:o}", "tokens", output_ids(ids, n_ids)));
	for (uint32_t i = 0; i < n_ids; i++)
		printf("%s%" PRIu32, i ? " " : "", ids[i]);
	putchar('\n');
	return 0;
}
