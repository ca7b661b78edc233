#include <ATen/ATen.h>

#include "troika/optim/methods.h"
#include "troika/optim/optimizer.h"

namespace troika::optim {

namespace {

constexpr const char* kLargest = "_largest";
// Smaller tensors have too few states to save memory on, and often important ones.
constexpr int64_t kLeastElements = 4096;
static_assert(kAtOnce % kernels::kBlock == 0);

// One moment of all parameters. Blocks do not cross tensors, so that a tensor's codes do not depend
// on its neighbours.
struct Moment {
  Moment(const std::string& state_name, const FlatParameters& parameters, int64_t blocks,
         int64_t whole_elements)
      : name(state_name),
        codes(at::zeros({parameters.size() - whole_elements}, at::kByte)),
        largest(at::zeros({blocks}, at::kFloat)),
        whole(at::zeros({whole_elements}, parameters.type())) {}

  std::string name;
  at::Tensor codes;    // of the large tensors
  at::Tensor largest;  // [blocks] magnitude
  at::Tensor whole;    // of the small tensors
};

class AdamW8Bit final : public FlatOptimizer {
 public:
  AdamW8Bit(FlatParameters given, const OptimizerOptions& options)
      : FlatOptimizer(std::move(given), options.lr, {}, /*counts=*/true), options_(options) {
    int64_t blocks = 0, coded = 0, whole = 0;
    for (const auto& parameter : parameters().list()) {
      const int64_t count = parameter.tensor.numel();
      const bool is_coded =
          (parameter.box ? c10::multiply_integers(parameter.box->shape) : count) >= kLeastElements;
      places_.push_back({is_coded, is_coded ? coded : whole, blocks});
      (is_coded ? coded : whole) += count;
      if (is_coded) blocks += blocks_of(count);
    }
    moments_.emplace_back("exp_avg", parameters(), blocks, whole);
    moments_.emplace_back("exp_avg_sq", parameters(), blocks, whole);
  }

  int64_t elements_each(std::string_view state) const override {
    return state.ends_with(kLargest) ? kernels::kBlock : 1;
  }

 private:
  struct Place {
    bool is_coded;
    int64_t offset;  // in Moment::codes or Moment::whole
    int64_t block;   // in Moment::largest
  };

  static int64_t blocks_of(int64_t count) {
    return (count + kernels::kBlock - 1) / kernels::kBlock;
  }

  void update(const std::vector<FlatRange>& ranges) override {
    const auto parts = cut(ranges, parameters().element_bytes());
    parallel_over(parts, [&](size_t i) { update_part(parts[i]); });
  }

  void update_part(const FlatRange& part) {
    const Place& place = places_[part.index];
    const int64_t within = part.offset - parameters().offset(part.index);
    const auto factors =
        adam_factors(options_, learning_rate(), weight_decay_of(part.index, options_.weight_decay),
                     steps(part.index), /*decoupled=*/true);
    const auto count = static_cast<size_t>(part.count);
    if (place.is_coded) {
      const auto codes = [&](size_t k) {
        return moments_[k].codes.data_ptr<uint8_t>() + place.offset + within;
      };
      const auto largest = [&](size_t k) {
        return moments_[k].largest.data_ptr<float>() + place.block + within / kernels::kBlock;
      };
      kernels_.adam_8bit(kernel_type(),
                         {part.parameter, part.gradient, codes(0), largest(0), codes(1), largest(1),
                          count, static_cast<unsigned>(steps(part.index))},
                         factors);
    } else {
      const auto whole = [&](size_t k) {
        return static_cast<char*>(moments_[k].whole.data_ptr()) +
               static_cast<size_t>(place.offset + within) * parameters().element_bytes();
      };
      kernels_.adam(kernel_type(), {part.parameter, part.gradient, whole(0), whole(1), count},
                    factors);
    }
  }

  NamedTensors more_state(size_t index) const override {
    const Place& place = places_[index];
    const auto& tensor = parameters().list()[index].tensor;
    const auto shaped = [&](const at::Tensor& flat) {
      return view_like(flat, place.offset, tensor);
    };
    NamedTensors result;
    for (const Moment& moment : moments_) {
      if (place.is_coded) {
        result.emplace_back(moment.name + "_code", shaped(moment.codes));
        result.emplace_back(moment.name + kLargest,
                            moment.largest.narrow(0, place.block, blocks_of(tensor.numel())));
      } else {
        result.emplace_back(moment.name, shaped(moment.whole));
      }
    }
    return result;
  }

  const OptimizerOptions options_;
  const kernels::Kernels& kernels_ = kernels::best();
  std::vector<Place> places_;
  std::vector<Moment> moments_;
};

}  // namespace

std::unique_ptr<FlatOptimizer> make_adamw_8bit(FlatParameters parameters,
                                               const OptimizerOptions& options) {
  return std::make_unique<AdamW8Bit>(std::move(parameters), options);
}

}  // namespace troika::optim
