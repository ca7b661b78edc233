#!/bin/sh
# standard_library_first.sh PROGRAM: the loader must find the system's C++ standard library before LibTorch, since
# LibTorch of PyPI's torch exports parts of another one (cmake/TroikaTorchPackage.cmake).
first=$(readelf -d "$1" | grep -oE 'libstdc\+\+|libtorch[a-z_]*' | head -n 1)
[ "$first" = libstdc++ ] || { echo "$1 needs $first first; expected libstdc++" >&2; exit 1; }
