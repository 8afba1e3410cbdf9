/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "weightctl/number.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

int detokenize_run(const struct options *o, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	uint32_t *ids = calloc(o->n_args, sizeof(*ids));
	_cleanup_(cleanup_free)
	char *text = NULL;
	struct worker_client *c = NULL;
	uint32_t n_bytes = 0;

	if (!ids)
		return -ENOMEM;
	for (uint32_t i = 0; i < o->n_args; i++) {
		if (number_parse_u32(o->args[i], &ids[i]) == 0)
			continue;
		(void)err_set(ret_err, EINVAL, "detokenize: expected the id of a token, found %s",
			o->args[i]);
		return COMMANDS_USAGE;
	}
	int r = worker_client_new(o->worker, ret_err, &c);
	if (r == 0)
		r = worker_client_detokenize(c, ids, o->n_args, ret_err, &text, &n_bytes);
	worker_client_free(c);
	if (r < 0)
		return r;
	if (o->json)
		return output_json(json_pack("{s:o}", "text", output_string(text, n_bytes)));
	fwrite(text, 1, n_bytes, stdout);
	putchar('\n');
	return 0;
}
