#include "troika/parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/reducer.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

// In pieces too small for LibTorch to share among threads, whose number would change the bits.
constexpr int64_t kPieceOfNorm = 1 << 14;

double sum_of_squares(const at::Tensor& flat) {
  const int64_t piece = flat.device().is_cpu() ? kPieceOfNorm : std::max<int64_t>(1, flat.numel());
  double sum = 0;
  for (int64_t at = 0; at < flat.numel(); at += piece) {
    const auto values = flat.narrow(0, at, std::min(piece, flat.numel() - at)).to(at::kDouble);
    sum += values.dot(values).item<double>();
  }
  return sum;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, comm::Group group,
                           const DataParallelOptions& options)
    : module_(module), group_(std::move(group)), options_(options) {
  if (options_.hook && options_.codec.name != "none") {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a hook takes the place of the codec",
                 .got = "a hook and codec " + options_.codec.name,
                 .expected = "one of them"});
  }
  attach();
}

DataParallel::~DataParallel() = default;

void DataParallel::attach() {
  check_same_structure(group_, module_);
  if (options_.copy_state) {
    broadcast_state(group_, module_);
  } else {
    check_same_bits(group_, module_);
  }
  BucketHook hook = options_.hook;
  if (options_.codec.name != "none") {
    codec_ = comm::make_codec(options_.codec);
    hook = [codec = codec_](const comm::Group& group, const comm::GradientBucket& bucket) {
      codec->average(group, bucket);
    };
  }
  reducer_ = std::make_unique<Reducer>(
      group_, nn::trained_parameters(module_),
      ReducerOptions{.bucket_bytes = options_.bucket_bytes,
                     .first_bucket_bytes = options_.first_bucket_bytes,
                     .find_unused_parameters = options_.find_unused_parameters,
                     .static_graph = options_.static_graph,
                     .bucket_order = options_.bucket_order,
                     .trace = options_.trace},
      std::move(hook));
}

void DataParallel::refresh() {
  if (!reducer_->syncing()) {
    throw Error(
        "parallel", ErrorKind::usage,
        {.what = "refresh() was called inside no_sync()", .hint = "it belongs between steps"});
  }
  options_.bucket_order.clear();
  attach();
}

void DataParallel::finish_backward() {
  reducer_->check_unchanged(nn::trained_parameters(module_));
  reducer_->finish();
  const int root = std::exchange(buffers_from_, 0);
  if (options_.broadcast_buffers) {
    const TraceSpan span(options_.trace, "compute", "buffers");
    broadcast_packed(group_, module_.buffers(), root, "module buffers");
  }
}

DataParallel::NoSync::NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.syncing()) {
  reducer_.set_syncing(false);
}

DataParallel::NoSync::~NoSync() {
  reducer_.set_syncing(before_);
}

DataParallel::NoSync DataParallel::no_sync() {
  return NoSync(*reducer_);
}

bool DataParallel::begin_step(double weight, Divisor divisor) {
  if (!(weight >= 0) || !std::isfinite(weight)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "the weight of a rank's gradient",
                 .got = fmt::format("{}", weight),
                 .expected = "a number >= 0"});
  }
  const auto mine = at::full({1}, weight, at::kDouble);
  const auto all = at::empty({group_.size()}, at::kDouble);
  group_.all_gather(all, mine, {}, {.label = "step weights"});
  const double* first = all.data_ptr<double>();
  const double* last = first + group_.size();
  double total = 0;
  for (const double* w = first; w != last; ++w) total += *w;
  if (total == 0) return false;
  buffers_from_ =
      static_cast<int>(std::find_if(first, last, [](double w) { return w > 0; }) - first);
  reducer_->set_factor(divisor == Divisor::ranks ? weight : weight * group_.size() / total);
  return true;
}

double DataParallel::clip_grad_norm(double max_norm) {
  double sum = 0;
  for (const auto& bucket : reducer_->buckets()) sum += sum_of_squares(bucket.gradient.flat);
  const double norm = std::sqrt(sum);
  if (std::isfinite(norm) && norm > max_norm) {
    for (const auto& bucket : reducer_->buckets()) bucket.gradient.flat.mul_(max_norm / norm);
  }
  return norm;
}

std::vector<std::string> DataParallel::bucket_order() const {
  return reducer_->order();
}

size_t DataParallel::bucket_count() const {
  return reducer_->buckets().size();
}

size_t DataParallel::launched() const {
  return reducer_->launched();
}

}  // namespace troika::parallel
