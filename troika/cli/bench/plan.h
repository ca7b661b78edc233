// The plan of `troika bench collectives`: the command-line arguments and their meaning.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troika/comm/call/call.h"

namespace troika::cli::bench {

// The arguments as typed. Lists are comma-separated.
struct Words {
  std::string operation = "all_reduce";
  std::string backends = {};  // empty: those of shm, tcp, gloo and mpi in this build
  std::string algorithms = "auto";
  std::string ranks = "2,4";
  std::string sizes = "4K,64K,1M,16M,64M";
  std::string dtype = "float32";
  std::string buffers = "shared,ordinary";
  std::string against = {};
  double min_time = 0.3;
  bool zero_copy_limit = false;
};

// Returns equivalent command-line arguments.
std::vector<std::string> arguments(const Words& words);

// The memory of a call's tensors: Group::allocate() (shared) or at::empty() (ordinary).
enum class Buffers { shared, ordinary };
std::string_view name(Buffers buffers);

struct Plan {
  comm::Operation operation = comm::Operation::all_reduce;
  std::vector<std::string> backends;
  std::vector<comm::Algorithm> algorithms;
  std::vector<int> ranks;
  std::vector<int64_t> sizes;  // bytes
  c10::ScalarType type = c10::ScalarType::Float;
  std::string dtype;  // the name of `type`
  std::vector<Buffers> buffers;
  std::vector<std::string> against;  // names of peers (peers/peer.h)
  double min_seconds = 0;            // of each measurement
  bool zero_copy_limit = false;
};

// Throws Error(usage) for invalid names and numbers, for back ends and peers that this build lacks,
// and for contradictory arguments.
Plan make_plan(const Words& words);

// Whether the ranks must be processes of an MPI job.
bool needs_mpi(const Plan& plan);

// The number of elements of a call's whole tensor (the input of reduce_scatter, the output of
// all_gather) that fit into `bytes`, in equal blocks if the operation has a block for each rank.
int64_t elements(const Plan& plan, int64_t bytes, int ranks);

}  // namespace troika::cli::bench
