/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <stdbool.h>

#include "proto/weights-client.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

static int set(const struct options *o, bool pinned, struct err *ret_err)
{
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0)
		r = weights_client_pin(c, o->args[0], pinned, ret_err);
	weights_client_free(c);
	if (r < 0)
		return r;
	if (o->json)
		return output_json(json_pack(
			"{s:o, s:b}", "model", output_name(o->args[0]), "pinned", pinned));
	printf("%s: %s\n", o->args[0], pinned ? "pinned" : "not pinned");
	return 0;
}

int pin_run(const struct options *o, struct err *ret_err)
{
	return set(o, true, ret_err);
}

int pin_run_undo(const struct options *o, struct err *ret_err)
{
	return set(o, false, ret_err);
}
