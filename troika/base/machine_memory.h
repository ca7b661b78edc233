// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troika::memory {

struct Available {
  int64_t bytes = 0;
  std::string limit;  // by what: "this machine's memory", "the limit of cgroup /job"
};

// The least of what the kernel says is available on this machine (MemAvailable of proc(5)) and of
// what the limits of this process's cgroup and of those above it leave. Files that are cached count
// as free. Both versions of cgroups are understood. Nothing where the system does not tell. `root`
// is where /proc and /sys are looked for. Takes about 0.1 ms; any thread may call it.
std::optional<Available> available(const std::filesystem::path& root = "/");

// Bytes of this process in memory; 0 where the system does not tell.
int64_t resident();
// The part of them that is of files, as libraries, and of shared memory: processes that map the
// same have it in memory once.
int64_t resident_files();

}  // namespace troika::memory
