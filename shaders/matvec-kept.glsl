/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATVEC_KEPT_GLSL
#define SHADERS_MATVEC_KEPT_GLSL

/*
 * What takes the place of compute_tiles() with HOLD: one row of x, whose bytes stay in registers
 * while the subgroups walk over their tiles. With AHEAD each load of a tile's row is started when
 * what was in its registers has been summed, so that as much as a tile is under way at any time.
 *
 * Where k is more than a subgroup has registers for, SPLIT subgroups share each tile: a team. They
 * leave their lanes' sums in shared memory, and when a run of tiles is complete they are added up by
 * whoever is next, in the order of k: what all else adds up in registers. Included behind
 * matvec.glsl and matvec-dot.glsl.
 */
const uint N_SHARED_UNITS = SPLIT > 1 ? SPLIT * HOLD : 0;
shared float unit_sums[SPLIT > 1 ? N_RUN * N_TEAMS * ROWS * N_SHARED_UNITS * SUBGROUP : 1];

/* The lane's place, of tile q of the run. */
uint unit_sum_place(uint q, int r, uint unit)
{
	return ((q * ROWS + r) * N_SHARED_UNITS + unit) * SUBGROUP + lane();
}

uint run_number(uint i)
{
	return gl_WorkGroupID.x + i / N_RUN * gl_NumWorkGroups.x;
}

/*
 * The team's i-th tile. One that has none in a run makes the first of the run again, for nobody: all
 * of a workgroup meet behind it.
 */
bool find_kept_tile(uint i, out tile ret)
{
	if (find_tile(tile_number(i), ret))
		return true;
	return SPLIT > 1 && find_tile(run_number(i) * N_RUN * N_TEAMS, ret);
}

void fetch_kept(int r, int h)
{
	fetch_slot(h * ROWS + r, r, kept_round(h));
}

void fetch_tile()
{
	[[unroll]] for (int h = 0; h < HOLD; h++)
		[[unroll]] for (int r = 0; r < ROWS; r++)
			fetch_kept(r, h);
}

/* Tile q of the run; w_rows are those of the next one, where there is one. */
void add_tile(uint q)
{
	[[unroll]] for (int h = 0; h < HOLD; h++) {
		[[unroll]] for (int r = 0; r < ROWS; r++) {
			hold_slots(h * ROWS + r);
			if (AHEAD != 0 && has_next)
				fetch_kept(r, h);
			float sum = sum_kept(h);
			if (SPLIT > 1)
				unit_sums[unit_sum_place(q, r, kept_round(h))] = sum;
			else
				sums[r][0] = add_sums(sums[r][0], sum);
		}
	}
}

/* The tiles of a run that all subgroups have left their sums of. */
void finish_run(uint run, uint i0, uint m)
{
	barrier();
	for (uint q = gl_SubgroupID; q < N_RUN * N_TEAMS; q += N_SUBGROUPS) {
		tile t;
		if (!find_tile(run * N_RUN * N_TEAMS + q, t))
			break;
		clear_sums();
		[[unroll]] for (int r = 0; r < ROWS; r++)
			[[unroll]] for (uint unit = 0; unit < N_SHARED_UNITS; unit++)
				sums[r][0] = add_sums(
					sums[r][0], unit_sums[unit_sum_place(q, r, unit)]);
		finish_tile(t, run * N_RUN * N_TEAMS + q, i0, m);
	}
	if (NEXT == 0 && has_next)
		barrier();
}

void compute_kept()
{
	uint i0 = gl_WorkGroupID.y, m;
	tile t;
	bool has_tile = find_kept_tile(0, t);

	/* With the row chosen by want it has to be known whether there is one. */
	if (needs_m() && i0 >= Words(push.m).at[0])
		return;
	start_tile(t);
	fetch_tile();
	begin_column(i0);
	/* Which may lie in the host's memory: far, and not needed before the end. */
	m = Words(push.m).at[0];
	end_column(i0);
	for (uint i = 0; has_tile; i++) {
		has_next = find_kept_tile(i + 1, next_tile);
		if (has_next)
			start_tile(next_tile);
		clear_sums();
		add_tile(i % N_RUN * N_TEAMS + gl_SubgroupID / SPLIT);
		if (AHEAD == 0 && has_next)
			fetch_tile();
		if (SPLIT == 1)
			finish_tile(t, tile_number(i), i0, m);
		else if ((i + 1) % N_RUN == 0)
			finish_run(run_number(i), i0, m);
		if (NEXT != 0 && (i + 1) % N_RUN == 0)
			stage_run(run_number(i), i0, m);
		t = next_tile;
		has_tile = has_next;
	}
}

#endif
