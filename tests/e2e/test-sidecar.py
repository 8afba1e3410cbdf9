#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker in a container of its own, with its tenant's socket and nothing else, shares the weights.

The container is bubblewrap's: user, pid, network, mount, ipc and uts namespaces, no capability, as
nobody, io_uring denied, 8 MiB of locked memory. Its root has the system's libraries, the program
and the one socket.
"""
import glob
import json
import os
import shutil
import struct
import subprocess

import harness
from harness import check, check_equal

NOBODY = 65534
MEMLOCK_BYTES = 8 << 20
IO_URING_SETUP = 425  # on every architecture
QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
MOE = os.path.join(harness.DATA, "models", "atlas-moe-q8_0.gguf")
# What a program in the container finds: said by the program, not by those who made the container.
PROBE = """
import ctypes, json, os, resource
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.syscall(425, 1, None)
print(json.dumps({"uring": [failed, ctypes.get_errno()], "uid": os.getuid(), "pid": os.getpid(),
    "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], "run": os.listdir("/run"),
    "root": sorted(os.listdir("/")), "nets": sorted(os.listdir("/proc/sys/net/ipv4/conf")),
    "caps": [x.split()[1] for x in open("/proc/self/status") if x.startswith("CapEff")][0]}))
"""


def deny_uring():
    """A file with the filter of bwrap --seccomp: io_uring_setup fails with EPERM, as in Docker."""
    load, jump_equal, ret = 0x20, 0x15, 0x06  # linux/bpf_common.h
    errno, allow = 0x00050000, 0x7fff0000     # linux/seccomp.h
    code = [(load, 0, 0, 0),                  # seccomp_data.nr
            (jump_equal, 0, 1, IO_URING_SETUP),
            (ret, 0, 0, errno | 1),
            (ret, 0, 0, allow)]
    fd = os.memfd_create("filter")
    os.write(fd, b"".join(struct.pack("=HBBI", *row) for row in code))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def container_argv(site, socket, filter_fd):
    """The container, without what runs in it."""
    argv = ["prlimit", f"--memlock={MEMLOCK_BYTES}:{MEMLOCK_BYTES}"]
    if os.geteuid() == 0:
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] + argv
    argv += ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--uid", str(NOBODY),
             "--gid", str(NOBODY), "--cap-drop", "ALL", "--seccomp", str(filter_fd),
             "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/run", "--clearenv",
             "--setenv", "PATH", "/usr/bin", "--setenv", "HOME", "/tmp",
             "--setenv", "WEIGHTD_VALIDATION", site.env.get("WEIGHTD_VALIDATION", "0")]
    for path in ["/usr"] + sorted(glob.glob("/lib*")):
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        else:
            argv += ["--ro-bind", path, path]
    argv += ["--ro-bind-try", "/etc/vulkan", "/etc/vulkan"]
    for path in ["/dev/dri"] + glob.glob("/dev/nvidia*"):
        argv += ["--dev-bind-try", path, path]
    return argv + ["--ro-bind", os.path.join(site.dir, "workerd"), "/app/workerd",
                   "--bind", socket, "/run/weights.sock"]


def prepare(site):
    """What nobody may read is beside the sockets; skips where there are no containers."""
    os.chmod(site.dir, 0o755)
    for name in "workerd", "weightctl":
        copy = shutil.copy(harness.need_env(name.upper() + "_BIN"), os.path.join(site.dir, name))
        os.chmod(copy, 0o755)
    for program in "bwrap", "prlimit", "setpriv":
        if not shutil.which(program):
            raise harness.Skip(f"no {program}")
    some_socket = os.path.join(site.dir, "workerd")  # any file will do for a trial
    trial = run_in_container(site, some_socket, ["true"])
    if trial.returncode:
        raise harness.Skip(f"no namespaces: {trial.stderr.decode().strip()}")


def run_in_container(site, socket, argv):
    fd = deny_uring()
    try:
        return subprocess.run(container_argv(site, socket, fd) + argv, pass_fds=[fd], env=site.env,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False,
                              timeout=harness.CTL_SECONDS, cwd=site.dir)
    finally:
        os.close(fd)


def find_worker(pid):
    """The pid, outside, of the workerd somewhere below a process."""
    children = {}
    for other in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{other}/stat", encoding="utf-8", errors="replace") as f:
                name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # gone
        children.setdefault(int(rest.split()[1]), []).append((int(other), name))
    family = [pid]
    for parent in family:
        for child, name in children.get(parent, []):
            if name == "workerd":
                return child
            family.append(child)
    return None


class Sidecar(harness.Daemon):
    """A workerd in a container. Its own socket is in there too: outside it is below /proc."""

    def __init__(self, site, name, socket, model):
        fd = deny_uring()
        argv = container_argv(site, socket, fd) + [
            "/app/workerd", "--model", model, "--weights", "/run/weights.sock",
            "--socket", "/tmp/w.sock", "--ctx", "256"]
        try:
            super().__init__(site, name, argv, site.env, pass_fds=[fd])
        finally:
            os.close(fd)
        self.pid = find_worker(self.process.pid)
        check(self.pid, f"no workerd in the container of {name}")
        self.socket = os.path.join("/proc", str(self.pid), "root", "tmp", "w.sock")

    def signal(self, signum):
        os.kill(self.pid, signum)


def listen(site, name, options):
    """(the argument of --listen, the socket)"""
    path = os.path.join(site.dir, name + ".sock")
    uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    return f"{path},uids={uid},mode=0666,{options}", path


def tenant_ctl(site, socket, *args, user=None):
    """weightctl of the tenant, outside; or of somebody else."""
    argv = [os.path.join(site.dir, "weightctl"), "--weightd", socket, *args]
    as_user = {}
    if os.geteuid() == 0:
        as_user = {"user": NOBODY if user is None else user, "extra_groups": []}
    run = subprocess.run(argv, env=site.env, stdin=subprocess.DEVNULL, capture_output=True,
                         timeout=harness.CTL_SECONDS, check=False, cwd=site.dir, **as_user)
    return harness.Result(argv, run.returncode, run.stdout.decode(), run.stderr.decode())


def tenant_status(site, socket):
    return tenant_ctl(site, socket, "--json", "status").json()


def test_container(site):
    """It is as closed as this file says."""
    prepare(site)
    some_socket = os.path.join(site.dir, "workerd")
    run = run_in_container(site, some_socket, ["python3", "-c", PROBE])
    check_equal(run.returncode, 0, f"the probe ({run.stderr.decode()})")
    found = json.loads(run.stdout)
    check_equal(found["uring"], [-1, 1], "io_uring_setup")
    check_equal(found["uid"], NOBODY, "uid")
    check(found["pid"] < 10, f"pid {found['pid']}: of a namespace of its own")
    check_equal(found["memlock"], MEMLOCK_BYTES, "memlock")
    check_equal(found["run"], ["weights.sock"], "what is in /run")
    check_equal(int(found["caps"], 16), 0, "capabilities")
    check_equal(found["nets"], ["all", "default", "lo"], "networks")
    check(not set(found["root"]) & {"home", "root", "work", "var", "sys", "boot"},
          f"the root: {found['root']}")


def check_one_copy(status, generation, daemons):
    if not status["device"]["software"] and generation["allocations"][0]["placement"] == "device":
        return  # a GPU's memory is not in smaps
    inodes = harness.weight_inodes(generation)
    for d in daemons[1:]:
        check(harness.smaps_pss(d.pid, inodes) > 0, f"{d.name} maps none of the weights")
    copies = sum(harness.smaps_pss(d.pid, inodes) for d in daemons) / generation["weights_bytes"]
    print(f"# weights {generation['weights_bytes']}, {copies:.3f} copies in {len(daemons)} "
          "processes")
    check(1.00 <= copies <= 1.05, f"{copies:.3f} copies in memory")


def check_sidecar_shares(site, place):
    prepare(site)
    option, socket = listen(site, "tenant", "models=demo,leases=4")
    weightd = site.weightd({"demo": harness.MODEL}, ["--place", f"*={place}", "--listen", option])
    worker = site.worker("demo", ["--ctx", "256"])
    sidecar = Sidecar(site, "sidecar", socket, "demo")
    for w in worker, sidecar:
        check_equal(site.ctl("ask", QUESTION, worker=w).out, ANSWER, f"{place}: {w.name}")
    # The tenant sees the very memory that the others have, and of them nothing.
    status, inside = site.status(), tenant_status(site, socket)
    generation = harness.only_generation(status, "demo")
    check_equal(harness.only_generation(inside, "demo")["allocations"], generation["allocations"],
                "allocations as the tenant sees them")
    check_equal(generation["n_leases"], 2, "leases")
    check_equal([w["pid"] for w in inside["workers"]], [sidecar.pid], "workers of the tenant")
    check_equal([w["uid"] for w in inside["workers"]],
                [NOBODY if os.geteuid() == 0 else os.geteuid()], "uid of the sidecar")
    check_equal({w["pid"] for w in status["workers"]}, {worker.pid, sidecar.pid}, "all workers")
    check_one_copy(status, generation, [weightd, worker, sidecar])
    sidecar.stop()
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "after the sidecar's end")


def test_sidecar_shares_device_memory(site):
    check_sidecar_shares(site, "device")


def test_sidecar_shares_host_memory(site):
    check_sidecar_shares(site, "staged")


def test_two_tenants(site):
    prepare(site)
    options, sockets = zip(listen(site, "a", "models=dense"), listen(site, "b", "models=moe*"))
    site.weightd({"dense": harness.MODEL, "moe": MOE},
                 [x for option in options for x in ("--listen", option)])
    sidecars = [Sidecar(site, "a-sidecar", sockets[0], "dense"),
                Sidecar(site, "b-sidecar", sockets[1], "moe")]
    for sidecar in sidecars:
        check_equal(site.ctl("ask", QUESTION, worker=sidecar).out, ANSWER, sidecar.name)
    for socket, model, sidecar in zip(sockets, ("dense", "moe"), sidecars):
        status = tenant_status(site, socket)
        check_equal([m["name"] for m in status["models"]], [model], f"models of {socket}")
        check_equal([w["pid"] for w in status["workers"]], [sidecar.pid], f"workers of {socket}")
    # The other's model is none that there is.
    run = run_in_container(site, sockets[0], ["/app/workerd", "--model", "moe", "--weights",
                                              "/run/weights.sock", "--socket", "/tmp/w.sock"])
    check_equal(run.returncode, 1, f"a worker for another's model ({run.stderr.decode()})")
    check("no model moe on this socket: it has dense\n" in run.stderr.decode(),
          f"the refusal: {run.stderr.decode()}")
    # Control is not the tenant's.
    refused = tenant_ctl(site, sockets[0], "unload", "dense")
    check_equal(refused.status, 1, f"{refused}")
    check("not allowed on this socket" in refused.err, f"{refused}")
    if os.geteuid() == 0:
        refused = tenant_ctl(site, sockets[0], "ls", user=0)
        check_equal((refused.status, refused.err),
                    (1, "weightctl: this socket is not for uid 0 and its groups\n"), f"{refused}")


harness.run(globals())
