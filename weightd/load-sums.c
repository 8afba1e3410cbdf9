/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/load-sums.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/check.h"
#include "weightd/checksum.h"
#include "weightd/export.h"
#include "weightd/identity.h"
#include "weightd/source.h"
#include "weightd/sums.h"

/* A file that workers write to keeps its time while they do; one that is not to be had has none. */
static void load_sums_identify_file(const struct load_sums_params *p)
{
	const struct stat *file = source_get_identity(p->source);
	struct export *e = p->export;

	if (source_is_writable(p->source) || file->st_ino == 0)
		return;
	identity_make_file(p->key, check_get_description(e->check), file, e->file_identity);
	e->has_file_identity = true;
}

static int load_sums_run(const struct load_sums_params *p, struct err *ret_err)
{
	struct check_means means = {.key = p->key};
	struct check_report report;
	int rc = 0;

	load_sums_identify_file(p);
	if (p->device && !*p->checksum)
		rc = checksum_new(p->device, p->key, ret_err, p->checksum);
	if (rc)
		return rc == CHECKSUM_DEVICE_LOST ? LOAD_SUMS_DEVICE_LOST : rc;
	means.checksum = p->device ? *p->checksum : NULL;
	rc = check_run(p->export->check, p->export, &means, CHECK_MEMORY, ret_err, &report);
	if (rc)
		return rc == CHECK_DEVICE_LOST ? LOAD_SUMS_DEVICE_LOST : rc;
	if (report.n_tensors > 0)
		return err_set(ret_err, EBADMSG,
			"tensor %s%s: its bytes are not those that were loaded before",
			report.differences[0].tensor, report.n_tensors > 1 ? " and others" : "");
	rc = source_keep_sums(p->source, check_get_sums(p->export->check));
	if (rc < 0)
		return err_set(ret_err, -rc, "%s", "checksums: out of memory");
	log_debug("%llu bytes summed in %.3f ms", (unsigned long long)report.n_bytes,
		(double)report.elapsed_ns / 1e6);
	return 0;
}

int load_sums_pack(
	const struct export *e, struct err *ret_err, uint8_t **ret_bytes, uint32_t *ret_n_bytes)
{
	_cleanup_(cleanup_free)
	uint8_t *packed = NULL;
	uint64_t n_bytes = 0;
	int rc = sums_pack(check_get_sums(e->check), &packed, &n_bytes);
	uint8_t *bytes = rc == 0 && n_bytes <= UINT32_MAX - IDENTITY_BYTES
				 ? malloc(IDENTITY_BYTES + n_bytes)
				 : NULL;

	if (!bytes)
		return err_set(ret_err, ENOMEM, "%s", "checksums: out of memory");
	memcpy(bytes, check_get_description(e->check), IDENTITY_BYTES);
	memcpy(bytes + IDENTITY_BYTES, packed, n_bytes);
	*ret_bytes = bytes;
	*ret_n_bytes = (uint32_t)(IDENTITY_BYTES + n_bytes);
	return 0;
}

int load_sums_take(
	const struct load_sums_params *params, const struct gguf *gguf, struct err *ret_err)
{
	uint8_t description[IDENTITY_BYTES];
	struct export *e = params->export;
	struct sums *sums = NULL;
	/* Those of the generation's first load; a later one has the same. */
	int rc = source_get_sums(params->source, &sums);

	if (rc < 0)
		return err_set(ret_err, -rc, "%s", "checksums: out of memory");
	identity_describe(gguf, description);
	rc = check_new(e->manifest_fd, description, sums, ret_err, &e->check);
	if (rc < 0) {
		sums_free(sums);
		return rc;
	}
	rc = load_sums_run(params, ret_err);
	return rc ? rc : load_sums_pack(e, ret_err, &e->sums, &e->n_sums_bytes);
}

int load_sums_compare(const struct load_sums_params *params, struct err *ret_err)
{
	struct export *e = params->export;
	struct sums *sums = NULL;

	if (e->n_sums_bytes < IDENTITY_BYTES)
		return err_set(ret_err, ENODATA, "checksums: the state has none of this memory");
	int rc = sums_unpack(
		e->sums + IDENTITY_BYTES, e->n_sums_bytes - IDENTITY_BYTES, ret_err, &sums);
	if (rc == 0)
		rc = check_new(e->manifest_fd, e->sums, sums, ret_err, &e->check);
	if (rc < 0) {
		sums_free(sums);
		return rc;
	}
	return load_sums_run(params, ret_err);
}
