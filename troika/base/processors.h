// CPU affinity of threads. A processor is a Linux CPU number: a hardware thread of a core.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace troika {

// CPU numbers, ascending.
using Processors = std::vector<int>;

// Returns the affinity mask of the calling thread, e.g. as set by taskset, Slurm or mpirun. Empty
// if unknown.
Processors allowed_processors();

// Restricts the calling thread to `processors`, like sched_setaffinity(2). Threads that it starts
// later inherit the mask, unless new_threads_run_on() overrides it. Throws Error(usage) if the
// system refuses, for example an empty list or processors outside the process's cpuset.
void run_on(const Processors& processors);

// Sets the affinity of threads that are started later anywhere in the process with std::thread,
// std::async or pthread_create() without attributes, regardless of the starting thread's affinity.
// An empty list restores the default: new threads inherit. OpenMP passes attributes, so its threads
// always inherit. Has no effect under ThreadSanitizer, which passes its own attributes.
void new_threads_run_on(const Processors& processors);

// Conversion to and from Linux's list format, as in taskset --cpu-list: {0, 1, 2, 5} is "0-2,5".
// parse_processors() throws Error(usage) for other text.
std::string processors_text(const Processors& processors);
Processors parse_processors(const std::string& text);

// Groups `processors` by core; each element has the hardware threads of one core. Cores that share
// a package and a last-level cache are adjacent. A processor without topology information forms its
// own core. `root` is the folder that contains /sys.
std::vector<Processors> cores_of(const Processors& processors,
                                 const std::filesystem::path& root = "/");

}  // namespace troika
