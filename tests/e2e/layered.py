# SPDX-License-Identifier: Apache-2.0
"""Daemons on devices that the simulating layer (tests/layer) makes of the software driver."""
import json
import os
import tempfile

import harness

GPU = {"HEAPS": "device:8G;device+host:256M;host,host+cached:16G",
       "QUEUES": "graphics+compute+transfer:1;transfer:1"}


def layered(site, layer, start):
    """What start() starts, under the layer, with a probe of its own; .layer_log is its log."""
    directory = os.environ.get("LAYER_DIR")
    if not directory:
        raise harness.Skip("LAYER_DIR is not set")
    cache = tempfile.mkdtemp(dir=site.dir)
    log = os.path.join(cache, "layer.log")
    plain = site.env
    # Validation belongs above the layer, where it sees the simulated device.
    site.env = dict(plain, VK_ADD_LAYER_PATH=directory, WEIGHTD_CACHE=cache,
                    VK_INSTANCE_LAYERS="VK_LAYER_WEIGHTD_simulate_validated",
                    WEIGHTD_LAYER_LOG=log,
                    **{f"WEIGHTD_LAYER_{name}": value for name, value in layer.items()})
    try:
        daemon = start()
    finally:
        site.env = plain
    daemon.layer_log = log
    return daemon


def layered_worker(site, layer, args=()):
    return layered(site, layer, lambda: site.worker("demo", args))


def layer_lines(daemon):
    """What the layer saw of the daemon itself, not of its probe."""
    with open(daemon.layer_log, encoding="utf-8") as f:
        return [line for line in map(json.loads, f) if line["pid"] == daemon.pid]
