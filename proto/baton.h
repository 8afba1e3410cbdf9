/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_BATON_H
#define PROTO_BATON_H

/*
 * What the workers of a device have in common to agree whose turn it is: memory of BATON_BYTES that
 * weightd makes, all zero, and gives to each that asks (TakeBaton of weightd.proto); weightd itself
 * never looks at it. Every word is a futex or a number of its own, native byte order. Whoever has
 * the memory can write anything there: a reader takes nothing of it for more than a hint.
 *
 *	0    holder            u32   worker whose turn it is; 0: nobody's
 *	4    n_arrivals        u32   how often anybody began to wait, wrapping
 *	8    places            [BATON_N_PLACES], of those who wait
 *	     + 0  worker       u32   0: nobody's
 *	     + 4  arrival      u32   n_arrivals when it began to wait: the lowest is the next
 *
 * A worker calls itself by a number that it draws, not 0.
 */
#include <stdatomic.h>
#include <stdint.h>

enum { BATON_BYTES = 4096, BATON_N_PLACES = 64 };

struct baton_place {
	_Atomic uint32_t worker;
	_Atomic uint32_t arrival;
};

struct baton_memory {
	_Atomic uint32_t holder;
	_Atomic uint32_t n_arrivals;
	struct baton_place places[BATON_N_PLACES];
};

#endif
