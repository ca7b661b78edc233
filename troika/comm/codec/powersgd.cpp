#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/low_rank.h"
#include "troika/comm/codec/memory.h"
#include "troika/comm/codec/orthonormal.h"

namespace troika::comm::codec {

namespace {

// A compressed part of a bucket.
struct Matrix {
  size_t part = 0;
  int64_t begin = 0;  // in flat
  MatrixShape shape;

  at::Tensor of(const at::Tensor& flat) const {
    return flat.narrow(0, begin, shape.rows * shape.columns).view({shape.rows, shape.columns});
  }
};

struct Raw {
  int64_t begin = 0;
  int64_t count = 0;

  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, count); }
};

struct Plan {
  std::vector<Matrix> matrices;
  std::vector<Raw> raw;
};

Plan make_plan(const GradientBucket& bucket, int64_t rank) {
  Plan plan;
  int64_t begin = 0;
  for (size_t i = 0; i < bucket.parts.size(); ++i) {
    const at::Tensor& part = bucket.parts[i];
    const int64_t count = part.numel();
    const auto shape = MatrixShape::of(part.sizes(), rank);
    if (shape.pays()) {
      plan.matrices.push_back({i, begin, shape});
    } else {
      plan.raw.push_back({begin, count});
    }
    begin += count;
  }
  TROIKA_CHECK(begin == bucket.flat.numel(), "the parts of a bucket fill it");
  return plan;
}

// Averages several tensors in one all-reduce, and returns them in the same shapes.
std::vector<at::Tensor> average_fused(const Group& group, const std::vector<at::Tensor>& tensors,
                                      const std::string& label) {
  if (tensors.empty()) return {};
  std::vector<at::Tensor> flattened;
  for (const at::Tensor& tensor : tensors) flattened.push_back(tensor.reshape(-1));
  const at::Tensor fused = at::cat(flattened);
  group.all_reduce(fused, ReduceOp::average, {.label = label}).wait();
  std::vector<at::Tensor> means;
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    means.push_back(fused.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return means;
}

class PowerSgd : public Codec {
 public:
  explicit PowerSgd(const CodecOptions& options)
      : options_(options), errors_(options.error_feedback) {}

  std::string_view name() const override { return "powersgd"; }

  void average(const Group& group, const GradientBucket& bucket) override {
    require_names(bucket);
    int64_t step = std::numeric_limits<int64_t>::max();  // of the newest part
    for (const auto& part : bucket.names) step = std::min(step, kept_[part].step);
    if (step < options_.start_step) {
      const std::string label = fmt::format("bucket {}", bucket.index);
      group.all_reduce(bucket.flat, ReduceOp::average, {.label = label}).wait();
    } else {
      compress(group, bucket, step);
    }
    for (const auto& part : bucket.names) ++kept_[part].step;
  }

  state::StateDict state() const override;
  void load_state(const state::StateDict& state, double weight) override;

 private:
  // The state of a part.
  struct Kept {
    int64_t step = 0;  // number of averages so far
    at::Tensor q;      // undefined: none
  };

  void compress(const Group& group, const GradientBucket& bucket, int64_t step);
  at::Tensor query(const GradientBucket& bucket, const Matrix& matrix, int64_t step) const;

  const CodecOptions options_;
  ErrorMemory errors_;
  std::map<std::string, Kept> kept_;  // by parameter
};

void PowerSgd::compress(const Group& group, const GradientBucket& bucket, int64_t step) {
  const at::Tensor input = errors_.added_to(bucket, bucket.flat.device());
  const Plan plan = make_plan(bucket, options_.rank);
  const auto label = [&](std::string_view what) {
    return fmt::format("bucket {} {}", bucket.index, what);
  };

  std::vector<at::Tensor> raw;
  for (const Raw& part : plan.raw) raw.push_back(part.of(bucket.flat));
  std::vector<at::Tensor> p;
  for (const Matrix& matrix : plan.matrices) {
    p.push_back(at::mm(matrix.of(input), query(bucket, matrix, step)));
  }
  raw = average_fused(group, raw, label("uncompressed"));
  p = average_fused(group, p, label("P"));
  std::vector<at::Tensor> q;
  for (size_t i = 0; i < p.size(); ++i) {
    orthonormalise(p[i]);
    q.push_back(at::mm(plan.matrices[i].of(input).t(), p[i]));
  }
  q = average_fused(group, q, label("Q"));

  for (size_t i = 0; i < raw.size(); ++i) plan.raw[i].of(bucket.flat).copy_(raw[i]);
  for (size_t i = 0; i < p.size(); ++i) {
    plan.matrices[i].of(bucket.flat).copy_(outer_product(p[i], q[i]));
  }
  if (!all_finite(bucket.flat)) return;
  if (errors_.on()) {
    for (const Raw& part : plan.raw) part.of(input).zero_();
    for (const Matrix& matrix : plan.matrices) matrix.of(input).sub_(matrix.of(bucket.flat));
    errors_.keep(bucket, input);
  }
  if (options_.warm_start) {
    for (size_t i = 0; i < q.size(); ++i) kept_[bucket.names[plan.matrices[i].part]].q = q[i];
  }
}

// Returns the orthonormal Q for this step, the same on all ranks.
at::Tensor PowerSgd::query(const GradientBucket& bucket, const Matrix& matrix, int64_t step) const {
  const auto type = computation_type(bucket.flat.scalar_type());
  const at::Tensor q = at::zeros({matrix.shape.columns, matrix.shape.rank}, at::kDouble);
  const auto& name = bucket.names[matrix.part];
  if (const auto& last = kept_.at(name).q; last.defined()) {
    check_fits({"q", name}, last, q.sizes(), type);
    q.copy_(last);
  }
  make_query(q, mix(options_.seed, static_cast<uint64_t>(step),
                    mix(static_cast<uint64_t>(bucket.index), uint64_t{matrix.part})));
  return q.to(bucket.flat.options().dtype(type));
}

state::StateDict PowerSgd::state() const {
  auto state = errors_.state();
  for (const auto& [parameter, kept] : kept_) {
    state.emplace_back(StateKey{"step", parameter}.to_text(), at::full({1}, kept.step, at::kLong));
    if (kept.q.defined()) state.emplace_back(StateKey{"q", parameter}.to_text(), kept.q);
  }
  return state;
}

void PowerSgd::load_state(const state::StateDict& state, double weight) {
  state::StateDict errors;
  std::map<std::string, Kept> loaded;
  for (const auto& [name, tensor] : state) {
    const auto key = StateKey::from_text(name);
    if (key.field == "q" && !key.parameter.empty() && options_.warm_start) {
      loaded[key.parameter].q = tensor.detach().clone();
    } else if (key.field == "step" && !key.parameter.empty() && tensor.numel() == 1) {
      loaded[key.parameter].step = tensor.item<int64_t>();
    } else {
      errors.emplace_back(name, tensor);
    }
  }
  errors_.load(errors, weight, this->name());
  kept_ = std::move(loaded);
}

}  // namespace

std::unique_ptr<Codec> make_powersgd(const CodecOptions& options) {
  return std::make_unique<PowerSgd>(options);
}

}  // namespace troika::comm::codec
