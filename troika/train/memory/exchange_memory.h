// Simulates the memory of data parallelism and ZeRO over time: follows parallel::Reducer,
// ParameterShards and BlockParameters without ranks and without tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika::train {

struct ExchangeShape {
  int stage = 0;  // ZeRO stage of parallel::Sharded; 0: parallel::DataParallel
  int ranks = 1;  // in a sharding group
  int64_t bucket_bytes = 0;
  int64_t first_bucket_bytes = 0;
  bool reorders_buckets = true;  // after the first step, with stage 0
  bool accumulates = false;  // several micro-batches make a step, the last of which is simulated
  bool gathers_at_once = false;  // stage 3, see ShardedOptions
  int64_t shard_multiple = 1;    // see ShardedOptions
};

// Bytes held by one rank.
struct HeldBytes {
  int64_t parameters = 0;  // and the module's buffers
  int64_t gradients = 0;   // averaged ones; also whole ones of earlier micro-batches
  int64_t buckets = 0;     // gradients to be averaged, and gathered parameters

  int64_t sum() const { return parameters + gradients + buckets; }
};

class ExchangeMemory {
 public:
  // `order` lists the indices of trained parameters in the order in which their gradients arrive.
  // Stage 3 requires an nn::Model, or ExchangeShape::gathers_at_once.
  ExchangeMemory(const torch::nn::Module& module, const ExchangeShape& shape,
                 const std::vector<size_t>& order);

  // A single rank without ZeRO has no buckets: gradients stay where the backward pass allocates
  // them.
  bool is_alone() const { return shape_.stage == 0 && shape_.ranks == 1; }
  // The bytes of the module's parameters and buffers.
  int64_t whole() const { return trained_bytes_ + other_bytes_; }
  // The number of elements that this rank's optimizer steps.
  int64_t stepped() const;
  // Returns the bytes held in a validation. Stage 3 gathers all parameters for it.
  HeldBytes validation() const;
  // Returns the maximum between micro-batches: that of validation(), plus the buckets that are
  // rebuilt after the first step.
  HeldBytes between_passes() const;
  // Peak and final bytes while parallel::DataParallel or Sharded is constructed from a whole model.
  struct Start {
    int64_t peak = 0;
    int64_t left = 0;
  };
  Start start() const;
  // The same for stage 3 of a module that was made without values (parallel::ShardedOptions). While
  // the values of the largest parameter are made, `made` times its bytes are needed.
  Start start_without_values(double made) const;

  // Simulates the last micro-batch of a step: call begin_pass(), then its events in order.
  void begin_pass();
  // The gradient is complete, and goes into its bucket.
  void gradient(size_t parameter);
  void block(size_t index, int64_t next);
  // To simulate all micro-batches of a step, call in earlier ones: the gradient stays, and later
  // ones are added to it.
  void accumulate(size_t parameter);
  // Makes room for a gradient in its bucket, which gradient() does, too.
  void open_for(size_t parameter);
  // Follow Exchange::gather_parameters() and, at the end of the last micro-batch,
  // finish_backward().
  void gather();
  void finish();
  HeldBytes held() const;

 private:
  struct Bucket {
    int64_t count = 0;  // elements
    int64_t element_bytes = 0;
    size_t members = 0;
    bool shared = false;  // stage 3: sharded, and whole only while `whole`
    bool whole = false;
    bool open = false;
    size_t pending = 0;

    int64_t bytes() const { return count * element_bytes; }
  };

  // Whether gradients of several micro-batches are added up outside of buckets.
  bool keeps_sums() const { return shape_.stage >= 2 || is_alone(); }
  void sum_all(bool all);
  void open(Bucket& bucket);
  const ExchangeShape shape_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;           // the bucket of each trained parameter
  std::vector<int64_t> bytes_of_;           // the bytes of each trained parameter
  std::vector<std::vector<size_t>> needs_;  // stage 3: the buckets that each block needs
  int64_t trained_bytes_ = 0;
  int64_t other_bytes_ = 0;      // parameters that are not trained, and buffers
  std::vector<bool> summed_;     // whether a parameter has a gradient outside of buckets
  int64_t summed_bytes_ = 0;     // of these gradients
  bool buckets_change_ = false;  // after the first step
  size_t launched_ = 0;
  size_t taken_ = 0;
};

}  // namespace troika::train
