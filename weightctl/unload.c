/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include "proto/weights-client.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

int unload_run(const struct options *o, struct err *ret_err)
{
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0)
		r = weights_client_unload(c, o->args[0], ret_err);
	weights_client_free(c);
	if (r < 0)
		return r;
	if (o->json)
		return output_json(json_pack("{s:o}", "model", output_name(o->args[0])));
	printf("%s: unloaded\n", o->args[0]);
	return 0;
}
