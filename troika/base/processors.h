// On which processors of the machine a thread may run. A processor is what Linux numbers: a
// hardware thread of a core.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace troika {

// Numbers of processors, ascending.
using Processors = std::vector<int>;

// The processors that the calling thread may run on: its affinity mask, as taskset, Slurm and
// mpirun set it. Empty where the system does not tell.
Processors allowed_processors();

// Restricts the calling thread to these, as sched_setaffinity(2); threads that it starts from then
// on inherit that, unless new_threads_run_on() says otherwise. Throws Error(usage) where the system
// refuses, as it does an empty list and processors outside of the process's cpuset.
void run_on(const Processors& processors);

// Has std::thread, std::async and others that call pthread_create() without attributes start their
// threads on these processors, whatever the thread that starts them is restricted to. An empty list
// has them inherit again, which is how a process begins. OpenMP's threads give attributes, and
// inherit always. Of the whole process. No effect under ThreadSanitizer, which gives attributes of
// its own.
void new_threads_run_on(const Processors& processors);

// Linux's format of lists, which taskset --cpu-list takes: {0, 1, 2, 5} is "0-2,5". parse_ throws
// Error(usage) for any other text.
std::string processors_text(const Processors& processors);
Processors parse_processors(const std::string& text);

// These processors by core, each core's hardware threads together. Cores that share a package and a
// last-level cache stand side by side. A processor of which the system tells nothing is a core by
// itself. `root` is where /sys is looked for.
std::vector<Processors> cores_of(const Processors& processors,
                                 const std::filesystem::path& root = "/");

}  // namespace troika
