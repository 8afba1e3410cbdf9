/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "proto/weights-client.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

/* What of the model is still in memory: the generations that go with their last lease or process.
 */
struct rest {
	uint32_t n_leases;
	bool is_draining; /* a worker has a lease */
	bool is_held;     /* the last lease is given back, a process that had one lives */
};

static int find_rest(
	struct weights_client *c, const char *name, struct err *ret_err, struct rest *ret_rest)
{
	_cleanup_(weights_client_status_fini)
	struct weights_client_status s = {0};
	struct rest rest = {0};
	int r = weights_client_list(c, ret_err, &s);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < s.n_models; i++) {
		const struct weights_client_model *m = &s.models[i];

		for (uint32_t k = 0; strcmp(m->name, name) == 0 && k < m->n_generations; k++) {
			const struct weights_client_generation *g = &m->generations[k];

			rest.is_held |= strcmp(g->state, "held") == 0;
			if (strcmp(g->state, "draining") != 0)
				continue;
			rest.is_draining = true;
			rest.n_leases += g->n_leases;
		}
	}
	*ret_rest = rest;
	return 0;
}

int unload_run(const struct options *o, struct err *ret_err)
{
	struct weights_client *c = NULL;
	struct rest rest = {0};
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0 && o->has_timeout)
		r = weights_client_unload_within(
			c, o->args[0], (uint64_t)o->timeout_s * 1000000000, ret_err);
	else if (r == 0)
		r = weights_client_unload(c, o->args[0], ret_err);
	if (r == 0)
		r = find_rest(c, o->args[0], ret_err, &rest);
	weights_client_free(c);
	if (r < 0)
		return r;
	const char *state = rest.is_draining ? "draining" : rest.is_held ? "held" : "unloaded";
	if (o->json)
		return output_json(json_pack("{s:o, s:s, s:I}", "model", output_name(o->args[0]),
			"state", state, "leases", (json_int_t)rest.n_leases));
	if (rest.is_draining)
		printf("%s: draining: %" PRIu32 " lease%s\n", o->args[0], rest.n_leases,
			rest.n_leases == 1 ? "" : "s");
	else if (rest.is_held)
		printf("%s: held: a process that had a lease is still alive\n", o->args[0]);
	else
		printf("%s: unloaded\n", o->args[0]);
	return 0;
}
