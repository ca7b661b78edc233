#include "troika/comm/options.h"

#include "troika/base/config.h"
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
            "back end; auto: shm within a node; between nodes mpi under mpirun, otherwise tcp",
            one_of({"auto", "shm", "tcp", "gloo", "mpi"}));
  table.add("comm.protection", &options.protection,
            "tcp: protection of messages in the network; with every value, only holders of the "
            "run's secret can connect",
            one_of({"none", "authenticated", "encrypted"}));
  table.add("comm.streams", &options.streams,
            "tcp: connections of each pair of ranks for long messages; use several if one does not "
            "fill the link",
            between(int64_t{1}, int64_t{net::kMostStreams}));
  table.add("comm.algorithm", &options.algorithm,
            "algorithm of all-reduce; auto: the fastest one by measurements of the links",
            one_of({"auto", "ring", "recursive_doubling", "rabenseifner", "double_tree",
                    "hierarchical"}));
  table.add("comm.timeout_seconds", &options.timeout_seconds,
            "a collective fails after this time; its error names the ranks that did not join",
            above_to(0.0, kWeekSeconds));
  table.add("comm.stall_warning_seconds", &options.stall_warning_seconds,
            "after this time, a warning names the ranks that a collective waits for; 0: never",
            between(0.0, kWeekSeconds));
  table.add("comm.join_timeout_seconds", &options.join_timeout_seconds,
            "the start fails if not all processes have joined after this time",
            above_to(0.0, kWeekSeconds));
  table.add("comm.bucket_megabytes", &options.bucket_megabytes,
            "size of a bucket of gradients, in MiB", above_to(0.0, kMaxMegabytes));
  table.add("comm.first_bucket_megabytes", &options.first_bucket_megabytes,
            "size of the bucket that is averaged first, in MiB", above_to(0.0, kMaxMegabytes));
}

}  // namespace troika::comm
