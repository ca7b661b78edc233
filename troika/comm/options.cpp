#include "troika/comm/options.h"

#include "troika/net/hello.h"

namespace troika::comm {

namespace {

using config::above_to;
using config::between;
using config::one_of;

// Larger values are more likely mistakes, and milliseconds would overflow.
constexpr double kWeekSeconds = 7 * 24 * 3600;
constexpr double kMaxMegabytes = 1e6;

}  // namespace

void add_options(config::Table& table, CommOptions& options) {
  table.add("comm.backend", &options.backend,
            "auto: shared memory in a node; mpi under mpirun, else tcp, between nodes",
            one_of({"auto", "shm", "tcp", "gloo", "mpi"}));
  table.add("comm.protection", &options.protection,
            "of tcp: how messages are protected from who can read the network; nobody without the "
            "run's secret can connect in any case",
            one_of({"none", "authenticated", "encrypted"}));
  table.add("comm.streams", &options.streams,
            "of tcp: connections of each pair of ranks for long messages; more than one where one "
            "does not fill the link",
            between(int64_t{1}, int64_t{net::kMostStreams}));
  table.add("comm.algorithm", &options.algorithm,
            "algorithm of all-reduce; auto: the fastest one by measurements of the links",
            one_of({"auto", "ring", "recursive_doubling", "rabenseifner", "double_tree",
                    "hierarchical"}));
  table.add("comm.timeout_seconds", &options.timeout_seconds,
            "a collective fails after this time, and names the ranks that did not come",
            above_to(0.0, kWeekSeconds));
  table.add("comm.stall_warning_seconds", &options.stall_warning_seconds,
            "a warning names the ranks that a collective waits for after this time; 0: never",
            between(0.0, kWeekSeconds));
  table.add("comm.join_timeout_seconds", &options.join_timeout_seconds,
            "the start fails if not all processes have come after this time",
            above_to(0.0, kWeekSeconds));
  table.add("comm.bucket_megabytes", &options.bucket_megabytes,
            "size of the buckets of gradients, in MiB", above_to(0.0, kMaxMegabytes));
  table.add("comm.first_bucket_megabytes", &options.first_bucket_megabytes,
            "MiB of the bucket that is averaged first", above_to(0.0, kMaxMegabytes));
}

}  // namespace troika::comm
