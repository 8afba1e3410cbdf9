/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/status-names.h"

#include <stdio.h>

#include "proto/manifest.h"
#include "proto/weights-client.h"

const char *status_names_placement(uint32_t placement)
{
	switch (placement) {
	case MANIFEST_PLACEMENT_DEVICE: return "device";
	case MANIFEST_PLACEMENT_PINNED: return "pinned";
	case MANIFEST_PLACEMENT_STAGED: return "staged";
	case MANIFEST_PLACEMENT_PAGED: return "paged";
	default: return "unknown";
	}
}

const char *status_names_handle(uint32_t handle_type)
{
	switch (handle_type) {
	case WEIGHTS_CLIENT_OPAQUE_FD: return "opaque_fd";
	case WEIGHTS_CLIENT_MEMFD: return "memfd";
	case WEIGHTS_CLIENT_FILE: return "file";
	case WEIGHTS_CLIENT_DMA_BUF: return "dma_buf";
	default: return "unknown";
	}
}

struct status_names_residency status_names_residency(uint32_t bits)
{
	struct status_names_residency result = {.text = "-"};
	char *at = result.text;

	for (int i = 1; i < 32; i++)
		if (bits >> i & 1)
			at += sprintf(at, "%s%d", at == result.text ? "" : ",", i - 1);
	if (bits & 1)
		sprintf(at, "%sothers", at == result.text ? "" : ",");
	return result;
}

struct status_names_uuid status_names_uuid(const uint8_t uuid[16])
{
	struct status_names_uuid result;
	char *at = result.text;

	for (int i = 0; i < 16; i++)
		at += sprintf(
			at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	return result;
}

struct status_names_identity status_names_identity(bool has_identity, const uint8_t identity[32])
{
	struct status_names_identity id = {0};

	for (unsigned i = 0; has_identity && i < 32; i++)
		snprintf(id.text + 2 * i, 3, "%02x", identity[i]);
	return id;
}
