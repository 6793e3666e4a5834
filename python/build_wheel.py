#!/usr/bin/env python3
"""Makes the wheel of the Python package: usage: build_wheel.py [--out DIR] [--build DIR]. Also a PEP 517 backend, for pip.

The C module is compiled against Python's limited API and the shared library of a build tree, which goes into the wheel beside it, so that
installing needs nothing else. Needs no package: a wheel is a zip with a list of its files."""
import argparse
import base64
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SUMMARY = "torch.compile(backend=\"reprise\"): tensor programs recorded once and played back, on CPU and CUDA"


def version():
    with open(os.path.join(ROOT, "include", "reprise.h")) as f:
        text = f.read()
    return ".".join(re.search(rf"RP_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def run(*command):
    subprocess.run(command, check=True, stdout=sys.stderr)


def library(build):
    """The files of the library that go into the wheel: the shared object by its soname, and the oneDNN module where it was built."""
    run("sh", os.path.join(ROOT, "scripts", "configure.sh"), build, "-DREPRISE_TESTS=OFF", "-DREPRISE_EXAMPLES=OFF", *shlex.split(os.environ.get("CMAKE_FLAGS", "")))
    listed = subprocess.run(["cmake", "--build", build, "--target", "help"], check=True, capture_output=True, text=True).stdout
    targets = ["reprise", *(["reprise-onednn"] if re.search(r"\breprise-onednn\b(?!\.)", listed) else [])]
    run("cmake", "--build", build, "-j", os.environ.get("JOBS", str(os.cpu_count())), "--target", *targets)
    names = [n for n in os.listdir(build) if re.fullmatch(r"libreprise\.so\.\d+\.\d+", n)]
    if len(names) != 1:
        raise SystemExit(f"{build} holds no library of one version: {names}")
    module = os.path.join(build, "libreprise-onednn.so")
    return os.path.join(build, names[0]), module if os.path.exists(module) else None


def compile_module(build, shared, out):
    cc = shlex.split(os.environ.get("CC", "cc"))
    sources = [os.path.join(HERE, "src", n) for n in sorted(os.listdir(os.path.join(HERE, "src"))) if n.endswith(".c")]
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", "-Wall", "-Wextra", "-Wl,-z,relro,-z,now",
             "-Wl,-rpath,$ORIGIN"]
    if os.environ.get("WERROR") == "1":
        flags.append("-Werror")
    paths = [os.path.join(ROOT, "include"), os.path.join(build, "include"), os.path.join(build, "gen", "host"), sysconfig.get_paths()["include"]]
    run(*cc, *flags, *("-I" + p for p in paths if os.path.isdir(p)), *sources, shared, "-o", out)


def metadata():
    return f"""Metadata-Version: 2.1
Name: reprise
Version: {version()}
Summary: {SUMMARY}
License: BSD-3-Clause
Requires-Python: >=3.10
Provides-Extra: torch
Requires-Dist: torch>=2.8; extra == "torch"
"""


def tag():
    return f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def write(files, out):
    """A wheel of files: [(name in the wheel, bytes)]"""
    info = f"reprise-{version()}.dist-info"
    files = [*files, (f"{info}/METADATA", metadata().encode()), (f"{info}/entry_points.txt", b"[torch_dynamo_backends]\nreprise = reprise:backend\n"),
             (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: reprise\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode())]
    with open(os.path.join(ROOT, "LICENSE"), "rb") as f:
        files.append((f"{info}/LICENSE", f.read()))
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n" for name, data in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    name = f"reprise-{version()}-{tag()}.whl"
    os.makedirs(out, exist_ok=True)
    with zipfile.ZipFile(os.path.join(out, name), "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in files:
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # the same bytes for the same files
            entry.external_attr = (0o755 if ".so" in path else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    return name


def make(out, build):
    shared, onednn = library(build)
    files = []
    for n in sorted(os.listdir(os.path.join(HERE, "reprise"))):
        if n.endswith(".py"):
            with open(os.path.join(HERE, "reprise", n), "rb") as f:
                files.append((f"reprise/{n}", f.read()))
    with tempfile.TemporaryDirectory() as work:
        module = os.path.join(work, "_c.abi3.so")
        compile_module(build, shared, module)
        for path in (module, shared, onednn):
            if path:
                with open(path, "rb") as f:
                    files.append((f"reprise/{os.path.basename(path)}", f.read()))
    return write(files, out)


# ---------------------------------------------------------------- PEP 517


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return make(wheel_directory, os.path.join(ROOT, "build", "release"))


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("the package is built inside of the repository: there is no sdist")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "wheel"))
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    o = parser.parse_args()
    print(os.path.join(o.out, make(os.path.abspath(o.out), os.path.abspath(o.build))))
