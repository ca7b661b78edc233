// The states of a rank and their exchange, for blocks of which only the bytes are known.
#pragma once

#include <cstdint>
#include <span>

namespace troika::plan {

// How the replicas of a stage share its states.
struct StateShards {
  int zero_stage = 0;
  double ranks = 1;  // that share them
  // Bytes of the optimizer's states per byte of parameters; 0 if they are offloaded.
  double optimizer_factor = 0;

  // The part of a state that a rank has, if ZeRO shards it from `stage` on.
  double part(int stage) const { return zero_stage >= stage ? 1 / ranks : 1; }
};

// The bytes of a rank between its passes.
struct StateBytes {
  double parameters = 0;  // with those that are not trained, and buffers
  double gradients = 0;
  double optimizer = 0;

  double sum() const { return parameters + gradients + optimizer; }
};

// `trained` are the bytes of trained parameters, `other` those of the rest of the state, which
// every rank has.
inline StateBytes states_of(double trained, double other, const StateShards& shards) {
  return {.parameters = trained * shards.part(3) + other,
          .gradients = trained * shards.part(2),
          .optimizer = trained * shards.optimizer_factor * shards.part(1)};
}

struct ExchangedBlocks {
  std::span<const double> parameter_bytes;  // of each block
  int zero_stage = 0;
  int ranks = 1;             // that share the states
  bool accumulates = false;  // several micro-batches make a step
  // layout::GradientExchange's.
  int64_t bucket_bytes = 0, first_bucket_bytes = 0;
};

// Returns the most bytes of whole gradients and gathered parameters that a rank has beside
// states_of() in the last backward pass of a step; 0 below stage 2. Follows ExchangeMemory through
// the pass. A block's parameters are taken to be of equal sizes, at most an eighth of a bucket.
double unsharded_bytes(const ExchangedBlocks& blocks);

}  // namespace troika::plan
