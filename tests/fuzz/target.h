/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_TARGET_H
#define TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/* What libFuzzer and replay.c call; each fuzz-<stem>.c defines it. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

#endif
