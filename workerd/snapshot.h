/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SNAPSHOT_H
#define WORKERD_SNAPSHOT_H

/*
 * A session in a file. Numbers are little-endian.
 *
 *	offset  bytes
 *	     0      8  magic "WDSESSN\0"
 *	     8      4  version, 1
 *	    12      4  bytes of this header, 192
 *	    16      4  tokens
 *	    20      4  of them, those whose keys and values follow
 *	    24      4  type of keys and values, enum kv_layout_type
 *	    28      4  layers
 *	    32      4  heads of keys and values
 *	    36      4  numbers a head
 *	    40      4  tokens a page
 *	    44      4  1: has an identity of the weights, 2: of their file
 *	    48      8  bytes a page
 *	    56     32  the one, or 0
 *	    88     32  what the token ids mean
 *	   120     32  the other, or 0
 *	   152      8  0
 *	   160     32  digest (proto/util/digest.h) of the 160 bytes before it
 *	   192         tokens, u32 each, and zeros up to a multiple of 32
 *	     .         pages (workerd/kv-layout.h), as many as hold those tokens
 *	     .     32  digest of all before it
 *
 * The digests find what was torn or has rotted. Whoever can write the file can write the digests:
 * nothing in it is trusted for more than its own session. Pure; any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/util/digest.h"
#include "proto/weights-client.h"

struct err;

enum {
	SNAPSHOT_VERSION = 1,
	SNAPSHOT_HEADER_BYTES = 192,
	SNAPSHOT_MAX_TOKENS = 1 << 20, /* of a session, as --ctx */
};

/* What keys and values are of. */
struct snapshot_shape {
	uint32_t type;
	uint32_t n_layers;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_page_tokens;
	uint64_t n_page_bytes;
	struct weights_client_contents contents;
	uint8_t tokens[DIGEST_BYTES];
};

struct snapshot {
	struct snapshot_shape shape;
	uint32_t n_tokens;
	uint32_t n_cached;
};

void snapshot_write_header(const struct snapshot *s, uint8_t ret_header[SNAPSHOT_HEADER_BYTES]);

/*
 * data is the beginning of a file of n_file_bytes. -EBADMSG with ret_err for what is no such file,
 * or is damaged; -ENOTSUP for another version. What comes out has sizes that belong together and to
 * the file, whatever it said.
 */
int must_check snapshot_read_header(const uint8_t *data, uint64_t n_bytes, uint64_t n_file_bytes,
	struct err *ret_err, struct snapshot *ret_snapshot);

/* Bytes of the tokens with the zeros behind them; of a whole file. Of sizes that belong together.
 */
uint64_t snapshot_get_token_bytes(const struct snapshot *s);
uint64_t snapshot_get_bytes(const struct snapshot *s);

/* Pages behind the tokens. */
uint32_t snapshot_get_n_pages(const struct snapshot *s);

/* Condition of snapshot_compare. */
enum { SNAPSHOT_TOKENS_ONLY = 1 };

/*
 * Can a worker whose keys and values are of own use it? -ESTALE where its token ids mean something
 * else. SNAPSHOT_TOKENS_ONLY: its keys and values are of weights that are not known to be the same,
 * or lie differently; ret_why says so.
 */
int must_check snapshot_compare(
	const struct snapshot *s, const struct snapshot_shape *own, struct err *ret_why);

#endif
