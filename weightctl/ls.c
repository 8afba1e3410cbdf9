/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <inttypes.h>

#include "proto/weights-client.h"
#include "weightctl/figure.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/status-json.h"
#include "weightctl/status-names.h"

static int print(const struct weights_client_status *s)
{
	printf("%-24s %10s  %-8s %-8s %12s %7s %6s %6s %11s  %-12s %s\n", "NAME", "GENERATION",
		"STATE", "FORMAT", "WEIGHTS", "LEASES", "HOLDS", "PINNED", "UNUSED", "DEVICES",
		"IDENTITY");
	for (uint32_t i = 0; i < s->n_models; i++) {
		const struct weights_client_model *m = &s->models[i];

		/* Names are letters, digits and "._-": weightd takes no others. */
		for (uint32_t k = 0; k < m->n_generations; k++) {
			const struct weights_client_generation *g = &m->generations[k];

			printf("%-24s %10" PRIu64 "  %-8s %-8s %12s %7" PRIu32 " %6" PRIu32
			       " %6s %11s  %-12s %.12s\n",
				m->name, g->id, g->state, g->format,
				figure_bytes(g->weights_bytes + g->paged_bytes).text, g->n_leases,
				g->n_holds, g->pinned ? "yes" : "no",
				g->idle_ns ? figure_time(g->idle_ns).text : "-",
				status_names_residency(g->residency).text,
				g->has_identity
					? status_names_identity(g->has_identity, g->identity).text
					: "-");
		}
	}
	return 0;
}

int ls_run(const struct options *o, struct err *ret_err)
{
	_cleanup_(weights_client_status_fini)
	struct weights_client_status s = {0};
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0)
		r = weights_client_list(c, ret_err, &s);
	weights_client_free(c);
	if (r < 0)
		return r;
	return o->json ? output_json(json_pack("{s:o}", "models", status_json_models(&s)))
		       : print(&s);
}
