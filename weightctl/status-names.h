/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_STATUS_NAMES_H
#define WEIGHTCTL_STATUS_NAMES_H

/*
 * Words for the ids of a status. Static strings; "unknown" for an id of a later version.
 */
#include <stdbool.h>
#include <stdint.h>

struct status_names_identity {
	char text[65]; /* 64 hexadecimal digits; empty while it is not known */
};

struct status_names_uuid {
	char text[37]; /* 8-4-4-4-12 hexadecimal digits */
};

const char *status_names_placement(uint32_t placement); /* enum manifest_placement */
const char *status_names_handle(uint32_t handle_type);  /* enum weights_client_handle */
struct status_names_uuid status_names_uuid(const uint8_t uuid[16]);
struct status_names_identity status_names_identity(bool has_identity, const uint8_t identity[32]);

/* weights_client_generation.residency: "0,1,others" with the numbers of `status`; "-" for none. */
struct status_names_residency {
	char text[96];
};
struct status_names_residency status_names_residency(uint32_t bits);

#endif
