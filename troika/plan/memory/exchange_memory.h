// Follows the memory of data parallelism and ZeRO over time: that of parallel::Reducer,
// ParameterShards and BlockParameters, without ranks and without tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troika::plan {

struct ExchangeShape {
  int stage = 0;  // ZeRO stage of parallel::Sharded; 0: parallel::DataParallel
  int ranks = 1;  // in a sharding group
  int64_t bucket_bytes = 0;
  int64_t first_bucket_bytes = 0;
  bool reorders_buckets = true;  // after the first step, with stage 0
  bool accumulates = false;  // several micro-batches make a step, the last of which is simulated
  bool gathers_at_once = false;  // stage 3, see ShardedOptions
  int64_t shard_multiple = 1;    // see ShardedOptions
  int64_t keep_elements = 0;     // see ShardedOptions
  bool pads_buckets = true;      // of ZeRO, see layout::padded_count()
};

// The trained parameters of a rank's blocks, and the rest of their state.
struct ExchangedState {
  struct Parameter {
    int64_t elements = 0;
    int64_t element_bytes = 1;
    int64_t kind = 0;  // layout::BucketItem::kind

    int64_t bytes() const { return elements * element_bytes; }
  };
  std::vector<Parameter> trained = {};
  int64_t other_bytes = 0;  // parameters that are not trained, and buffers
  // For stage 3 without ExchangeShape::gathers_at_once, by block: its parameters, which are a
  // bucket, and the buckets that it needs while it runs.
  std::vector<std::vector<size_t>> of_blocks = {}, needs = {};
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
  // Stage 3 requires the parameters of blocks, or ExchangeShape::gathers_at_once.
  ExchangeMemory(ExchangedState state, const ExchangeShape& shape,
                 const std::vector<size_t>& order);

  // A single rank without ZeRO has no buckets: gradients stay where the backward pass allocates
  // them.
  bool is_alone() const { return shape_.stage == 0 && shape_.ranks == 1; }
  // The bytes of the parameters and buffers before ranks share them out.
  int64_t whole() const { return trained_bytes_ + state_.other_bytes; }
  // The number of elements that this rank's optimizer steps.
  int64_t stepped() const;
  // Returns the bytes held in a validation. Stage 3 gathers all parameters for it.
  HeldBytes validation() const;
  // Returns the maximum between micro-batches: that of validation(), plus the buckets that are
  // rebuilt after the first step.
  HeldBytes between_passes() const;
  // Peak and final bytes while parallel::DataParallel or Sharded is constructed.
  struct Start {
    int64_t peak = 0;
    int64_t left = 0;
  };
  // From a whole model, which ranks make equal by messages of at most `pack_bytes`.
  Start start(int64_t pack_bytes) const;
  // The same for stage 3 of a module that was made without values (parallel::ShardedOptions), of
  // which parameters below `least_without` bytes have memory from the first. While the values of
  // the largest parameter are made, `made` times its bytes are needed.
  Start start_without_values(double made, int64_t least_without) const;

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
  void add_bucket(const std::vector<size_t>& members);
  void sum_all(bool all);
  void open(Bucket& bucket);
  // Set whether a bucket is whole or open, of which held() has the bytes.
  void set_whole(Bucket& bucket, bool value);
  void set_open(Bucket& bucket, bool value);
  const ExchangeShape shape_;
  const ExchangedState state_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // the bucket of each trained parameter
  int64_t trained_bytes_ = 0;
  std::vector<bool> summed_;     // whether a parameter has a gradient outside of buckets
  int64_t summed_bytes_ = 0;     // of these gradients
  bool buckets_change_ = false;  // after the first step
  HeldBytes always_held_;
  int64_t whole_and_open_bytes_ = 0, open_buckets_ = 0;
  size_t launched_ = 0;
  size_t taken_ = 0;
};

}  // namespace troika::plan
