#!/bin/sh
# compiler_without_shared_library.sh COMPILER SOURCE TORCH: CMake refuses a compiler that has its C++ standard library
# as an archive alone.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/c++" <<EOF
#!/bin/sh
case "\$*" in *-print-file-name=libstdc++.so*) echo libstdc++.so ;; *) exec "$1" "\$@" ;; esac
EOF
chmod +x "$folder/c++"
output=$(cmake -S "$2" -B "$folder/build" -DCMAKE_CXX_COMPILER="$folder/c++" -DTorch_DIR="$3" -DTROIKA_MPI=OFF 2>&1) &&
  { echo "CMake accepts it"; exit 1; }
echo "$output" | tr -s ' \n' ' ' | grep -q "got no libstdc++.so of this compiler" || { echo "$output"; exit 1; }
