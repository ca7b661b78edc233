// The memory that data parallelism and ZeRO hold, moment by moment, by following the course of
// parallel::Reducer, ParameterShards and BlockParameters without ranks and without their tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika::train {

struct ExchangeShape {
  int stage = 0;  // of parallel::Sharded; 0: parallel::DataParallel
  int ranks = 1;  // that share out among them
  int64_t bucket_bytes = 0;
  int64_t first_bucket_bytes = 0;
  bool reorders_buckets = true;  // after the first step, of stage 0
  bool accumulates = false;      // several passes make a step
  int64_t piece_multiple = 1;    // as ShardedOptions have it
};

// Bytes of one rank.
struct HeldBytes {
  int64_t parameters = 0;  // buffers of the module too
  int64_t gradients = 0;   // their means; of passes that are added up, whole ones
  int64_t buckets = 0;     // on their way: gradients to be averaged, and gathered parameters

  int64_t sum() const { return parameters + gradients + buckets; }
};

class ExchangeMemory {
 public:
  // `order` is that in which gradients of trained parameters come, by their numbers. Stage 3 takes
  // an nn::Model alone.
  ExchangeMemory(const torch::nn::Module& module, const ExchangeShape& shape,
                 const std::vector<size_t>& order);

  // One rank without ZeRO has no buckets: gradients stay where the backward pass makes them.
  bool is_alone() const { return shape_.stage == 0 && shape_.ranks == 1; }
  // Elements that this rank's optimizer steps.
  int64_t stepped() const;
  // In a validation, for which stage 3 has whole parameters.
  HeldBytes validation() const;
  // The most between passes: that, or buckets that are made anew after the first step.
  HeldBytes between_passes() const;
  // While parallel::DataParallel or Sharded is made of a whole model, and once it is.
  struct Start {
    int64_t peak = 0;
    int64_t left = 0;
  };
  Start start() const;
  // The same for stage 3 of a module that was made without values (parallel::ShardedOptions). Of
  // the largest parameter there are `made` times its bytes while its values are made.
  Start start_without_values(double made) const;

  // The last pass of a step: begin_pass(), then its events in their order.
  void begin_pass();
  void gradient(size_t parameter);
  void block(size_t index, int64_t next);
  HeldBytes held() const;

 private:
  struct Bucket {
    int64_t count = 0;  // of elements
    int64_t element_bytes = 0;
    size_t members = 0;
    bool shared = false;  // stage 3: whole only while `whole`
    bool whole = false;
    bool open = false;
    size_t pending = 0;

    int64_t bytes() const { return count * element_bytes; }
  };

  void open(Bucket& bucket);
  const ExchangeShape shape_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;           // of each trained parameter
  std::vector<int64_t> bytes_of_;           // of each trained parameter
  std::vector<std::vector<size_t>> needs_;  // of stage 3: buckets, by block
  int64_t trained_bytes_ = 0;
  int64_t other_bytes_ = 0;      // parameters that are not trained, and buffers
  int64_t summed_bytes_ = 0;     // gradients of earlier passes of the step
  bool buckets_change_ = false;  // after the first step
  size_t launched_ = 0;
  size_t taken_ = 0;
};

}  // namespace troika::train
