// How summation servers share the gradients of data-parallel workers (BytePS: Jiang et al., A
// Unified Architecture for Accelerating Distributed DNN Training, OSDI 2020, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

// The parts of the gradients that each summation server sums; all of them together are 1.
struct SummationSplit {
  std::vector<double> spares;   // servers on machines without a worker
  std::vector<double> workers;  // servers beside the workers
  // The time of one exchange, in seconds for each byte of gradients, if links are the only limit.
  double seconds_per_byte = 0;

  // Returns the parts in the order of servers: those of spares, then those of workers.
  std::vector<double> shares() const;
};

// Returns the split with the least time, for the bandwidths of the machines' links in bytes per
// second each way.
//
// A worker sends its gradients to the other machines' servers, and its server returns sums to the
// n - 1 other workers. With a part x of M bytes, a worker's link carries M + (n - 2) x each way,
// and a spare's link n x. The least time t of this linear programme is the least one at which the
// most that machines can sum in t comes to M. That most is (t B - M) / (n - 2) for workers and t B
// / n for spares, which is linear in t, so t has a closed form. It is at least M / B of each
// worker, whose own gradients cross its link. Where that is what limits t, all parts are reduced in
// proportion. For equal links and k <= n spares, t = 2n(n-1)M / ((n^2 + kn - 2k) B), as in section
// 4.1 of the paper. With two workers t does not depend on the parts of workers, which are then
// equal. A single worker sums all itself. Throws Error(usage) without workers and unless all
// bandwidths are finite and above 0.
SummationSplit split_sums(std::span<const double> workers, std::span<const double> spares);
// The same for equal links of 1 byte per second.
SummationSplit split_sums(int workers, int spares);
// The same for the bandwidths of the links of `spares` machines and then of workers.
SummationSplit split_by_links(std::span<const double> links, int64_t spares);

// How workers exchange gradients with summation servers.
struct SummationExchange {
  int64_t partition_bytes = 4'096'000;  // at most, of a piece that one server sums
  // Limits the pushed partitions that servers have not confirmed, in bytes; a larger one goes
  // alone. 0: no limit.
  int64_t credit_bytes = 0;
  // Whether the partition goes first whose parameters the next forward pass uses first.
  bool priorities = true;
  // Bandwidths of the machines' links, as numbers with commas: those of spare machines, then those
  // of workers, which are ranks, or machines with local_sums. "measured": they are measured at the
  // start. Empty: they are equal.
  std::string links = {};
  // Whether the optimizer steps a bucket's parameters when its mean is there, while the next
  // forward pass runs, instead of when all means are there.
  bool cross_barrier = false;
  // Whether servers keep the parameters and add each worker's update at once.
  bool asynchronous = false;
  // Where several machines have ranks: the form in which the ranks of one machine sum their
  // gradients, before one of them exchanges these sums with the servers; "plain", "fp16" or "bf16".
  // "none": each rank exchanges its own gradients. An asynchronous exchange has none.
  std::string local_sums = "plain";
  // A rank, or a machine's first rank, sends momentum m + g in place of its gradient g, with m =
  // momentum m + g. 0: gradients are sent as they are. An asynchronous exchange has none.
  double momentum = 0;
  // The scale of a block of codecs dither and natural: "max", its largest magnitude, or "l2".
  std::string dither_norm = "max";

  bool operator==(const SummationExchange&) const = default;
};

// The value of SummationExchange::links for measured bandwidths.
inline constexpr std::string_view kMeasuredBandwidths = "measured";

// Reads another value of SummationExchange::links: the bandwidths of the links of spare machines
// and then of workers; equal ones if it is empty. Throws Error(usage) unless it has a number for
// each.
std::vector<double> read_links(const std::string& text, int workers, int64_t spares);

// Returns the bytes of sums inside a machine for each byte of gradients of this precision.
double local_sum_share(const SummationExchange& sums, std::string_view precision);

// A piece of a bucket of gradients that is pushed, summed and pulled by itself.
struct Partition {
  size_t bucket = 0;
  int64_t offset = 0;  // bytes from the beginning of the bucket, a multiple of 64
  int64_t bytes = 0;
  size_t server = 0;  // index into the shares

  bool operator==(const Partition&) const = default;
};

// Cuts buckets of these sizes, in bytes, into partitions of at most `partition_bytes` (at least
// 64), and gives each to a server, so that the bytes of each server differ from its share of all
// bytes by less than one partition. The servers of consecutive partitions differ where that is
// possible. The result depends on the arguments only, so all ranks compute the same one. Buckets
// are in the order of the result. Throws Error(usage) for other sizes and without shares.
std::vector<Partition> partition_sums(std::span<const int64_t> bucket_bytes,
                                      int64_t partition_bytes, std::span<const double> shares);

}  // namespace troika::layout
