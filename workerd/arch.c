/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/arch-llama.h"
#include "workerd/arch-qwen3.h"
#include "workerd/arch-qwen3moe.h"
#include "workerd/weights.h"

static const struct arch archs[] = {
	{"llama", arch_llama_build},
	{"qwen3", arch_qwen3_build},
	{"qwen3moe", arch_qwen3moe_build},
};

int arch_find(const struct weights *w, struct err *ret_err, const struct arch **ret_arch)
{
	const struct manifest_string s = w->manifest->hparams->architecture;
	const uint8_t *name = manifest_get_string(w->manifest, s);

	for (unsigned i = 0; i < ARRAY_SIZE(archs); i++) {
		if (strlen(archs[i].name) == s.n_bytes && !memcmp(archs[i].name, name, s.n_bytes)) {
			*ret_arch = &archs[i];
			return 0;
		}
	}
	return err_set(ret_err, ENOTSUP,
		"architecture: expected llama, qwen3 or qwen3moe, found %.*s",
		(int)(s.n_bytes < 64 ? s.n_bytes : 64), (const char *)name);
}
